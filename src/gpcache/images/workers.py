"""Decodes in separate processes with a memory limit, and with a time limit for each image."""

from __future__ import annotations

import atexit
import math
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from gpcache.errors import GPCacheError, ImageRefusedError
from gpcache.images.augment import Views
from gpcache.images.preprocess import Preprocess
from gpcache.images.worker import THUMBNAIL, Prepared, prepare, read_message, write_message
from gpcache.support.checks import positive, whole
from gpcache.support.cores import usable_cores

__all__ = ["DecodePool", "Prepared", "prepare", "small_picture"]

MAX_WORKERS = 8
START_LIMIT = 60.0
# Bytes: more than the largest requested JPEG can have.
MAX_THUMBNAIL = 40_000_000


class DecodePool:
    """Worker processes that turn the bytes of images into pixels.

    An image that breaks the policy, takes longer than `time_limit` seconds or crashes its worker is
    refused; the others continue. A worker is a new interpreter that imports neither torch nor the
    caller's script.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        views: Views | None = None,
        *,
        workers: int | None = None,
        time_limit: float = 30.0,
    ) -> None:
        count = min(usable_cores(), MAX_WORKERS) if workers is None else workers
        whole("workers", count, least=1)
        self._time_limit = positive("time_limit", time_limit)
        described = None if views is None else asdict(views)
        self._settings = {"preprocess": asdict(preprocess), "views": described}
        self._shape = (1 if views is None else views.count, preprocess.size, preprocess.size, 3)
        self._closed = False
        # Bounded, so that submitting waits for decoding and the bytes do not pile up.
        self._room = threading.Semaphore(2 * count)
        self._images: dict[Future[Prepared], _Image] = {}
        self._jobs: queue.SimpleQueue[Future[Prepared] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, content: bytes, key: str, *, thumbnail: int = 0) -> Future[Prepared]:
        """Prepare an image; if it is refused, the future's error is an ImageRefusedError.

        `thumbnail` is the longest side of an additional JPEG; 0 makes none.

        Waits while many images are queued. Cancelling the future stops the decoding at any time.
        """
        if self._closed:
            raise RuntimeError("The DecodePool is closed.")
        self._room.acquire()
        future: Future[Prepared] = Future()
        self._images[future] = (content, key, thumbnail)
        future.add_done_callback(self._forget)
        self._jobs.put(future)
        return future

    def close(self) -> None:
        """Finish the submitted images and end the processes."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> DecodePool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for future in list(self._images):
                future.cancel()
        self.close()

    def _forget(self, future: Future[Prepared]) -> None:
        """Make room as soon as an image is prepared, refused or cancelled."""
        self._images.pop(future, None)
        self._room.release()

    def _serve(self) -> None:
        """The work of one thread: feed one process, and replace it when it dies."""
        worker: _Worker | None = None
        while (future := self._jobs.get()) is not None:
            image = self._images.get(future)
            if image is None:
                continue  # cancelled
            with suppress(InvalidStateError):  # cancelled meanwhile
                try:
                    if worker is None or not worker.alive:
                        worker = _Worker(self._settings, self._shape)
                    # Not marked as running: such a future cannot be cancelled.
                    future.add_done_callback(worker.stop_if_cancelled)
                    future.set_result(worker.prepare(image, self._time_limit))
                except Exception as error:
                    future.set_exception(error)
            if future.cancelled() and worker is not None:
                worker.kill()  # or it might be stopped in the middle of the next image
        if worker is not None:
            worker.close()


def small_picture(content: bytes, side: int = THUMBNAIL) -> bytes:
    """A JPEG of an image file of at most `side` pixels a side, decoded in a limited process.

    Raises ImageRefusedError if the image is refused.
    """
    return _picture_pool().submit(content, "", thumbnail=side).result().thumbnail


@cache
def _picture_pool() -> DecodePool:
    """One process for all single pictures: it starts in half a second, a picture takes far less."""
    pool = DecodePool(Preprocess(size=1), workers=1)
    atexit.register(pool.close)
    return pool


# Content, key, and the side of the thumbnail.
_Image = tuple[bytes, str, int]


class _Worker:
    """One process and the pipes to it."""

    def __init__(self, settings: dict[str, Any], shape: tuple[int, ...]) -> None:
        self._shape, self._size = shape, math.prod(shape)
        self._late = False
        self._process = subprocess.Popen(
            # -P keeps the current folder out of the import path.
            [sys.executable, "-P", "-m", "gpcache.images.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        if self._ask(settings, b"", START_LIMIT) is None:
            raise GPCacheError(
                "A decoding process does not start: run 'python -m gpcache.images.worker' in a "
                "terminal to see why."
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def prepare(self, image: _Image, time_limit: float) -> Prepared:
        """The pixels of one image; the process is dead after a crash or a delay."""
        content, key, thumbnail = image
        answer = self._ask({"key": key, "thumbnail": thumbnail}, content, time_limit)
        if answer is None and self._late:
            raise ImageRefusedError(f"decoding took longer than {time_limit:g} s")
        if answer is None:
            raise ImageRefusedError("the decoder crashed")
        header, data = answer
        if "refused" in header:
            raise ImageRefusedError(str(header["refused"]))
        # Copied, because an array on bytes cannot be written to.
        pixels = np.frombuffer(data, dtype=np.uint8, count=self._size).reshape(self._shape).copy()
        return Prepared(pixels, tuple(header["notes"]), data[self._size :])

    def stop_if_cancelled(self, future: Future[Prepared]) -> None:
        """End the process if its image is no longer wanted."""
        if future.cancelled():
            self._process.kill()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """End the process by closing its input."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # the last message was not read
                pipe.close()
        self._process.wait()

    def _ask(
        self, header: dict[str, Any], content: bytes, limit: float
    ) -> tuple[dict[str, Any], bytes] | None:
        """The answer to a message; the process is ended if no valid answer comes in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(limit, self._stop)
        timer.start()
        try:
            write_message(self._process.stdin, header, content)
            answer = read_message(self._process.stdout, self._size + MAX_THUMBNAIL)
        except OSError:
            answer = None
        finally:
            timer.cancel()
            timer.join()  # or it might still end the process under the next image
        if answer is None or self._late or 0 < len(answer[1]) < self._size:
            self.kill()
            return None
        return answer

    def _stop(self) -> None:
        self._late = True
        self._process.kill()


# One thread each: the pool runs in parallel, and threads reserve address space.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
