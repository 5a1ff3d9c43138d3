"""Photos of many requests through the decoders and, in shared batches, through the encoder.

Every step is bounded: what is admitted, what is decoded at once, what waits for the encoder.
An engine says where that happens: in this process, or elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders import Encoder
from gpcache.errors import GPCacheError
from gpcache.images.augment import Views
from gpcache.images.preprocess import Preprocess
from gpcache.images.thumbnails import thumbnail
from gpcache.images.workers import MAX_WORKERS, DecodePool
from gpcache.support.files import sha256
from gpcache.web.metrics import Metrics

# A batch waits so long for company, in seconds.
MAX_WAIT = 0.005
# Requests with photos that may be at work at once; the others are told to come back.
MAX_WAITING = 64
RETRY_AFTER = 1

Rows = NDArray[np.float32]
Pixels = NDArray[np.uint8]
Reader = Callable[[], Awaitable[bytes]]


class BusyError(GPCacheError):
    """There is more to do than can be done soon; the client should come back."""


class Encoding(ABC):
    """Bytes → features (dim,) for the requests it admits; lives in one event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._waiting = 0

    def busy(self) -> str:
        """Why there is no place for another request; nothing where there is one."""
        if self._waiting < MAX_WAITING:
            return ""
        return (
            f"The server is busy with {self._waiting} requests: try again in {RETRY_AFTER} second."
        )

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """A place for one request, or BusyError.

        Its body must be here already: who sends slowly would take the place from others.
        """
        if told := self.busy():
            self._metrics.turned_away()
            raise BusyError(told)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    @property
    def waiting(self) -> int:
        """Requests with photos that are at work."""
        return self._waiting

    @property
    def ready(self) -> bool:
        """Whether there is anybody to encode."""
        return True

    @abstractmethod
    async def features(self, read: Reader, *, learn: bool = False) -> tuple[str, Rows, bytes]:
        """The hash of an image's content, its features (dim,), and with `learn` a small picture.

        `read` is called when there is room for the content. `learn` takes the views that examples
        are made of.
        """

    @abstractmethod
    async def close(self) -> None:
        """End what works for it; what still waits is refused."""


# Made inside the event loop that uses it.
Engine = Callable[[Metrics], Encoding]


class Decoded(NamedTuple):
    """An image for the encoder: its hash, its views (v, size, size, 3), and a small picture."""

    key: str
    pixels: Pixels
    picture: bytes


class Decoders:
    """Bytes → pixels, in processes that hold a few whole files at a time."""

    def __init__(self, preprocess: Preprocess, *, views: int, workers: int) -> None:
        self._pool = self._learn_pool = DecodePool(preprocess, workers=workers)
        if views:
            self._learn_pool = DecodePool(preprocess, Views(views), workers=workers)
        # As many files in memory as a pool takes without making the event loop wait.
        self._decoding = asyncio.Semaphore(2 * workers)

    async def prepared(self, read: Reader, *, learn: bool) -> Decoded:
        """An image as the encoder takes it; with `learn` its views and a small picture."""
        pool, picture = self._learn_pool if learn else self._pool, b""
        async with self._decoding:
            content = await read()
            key = sha256(content)
            prepared = await asyncio.wrap_future(pool.submit(content, key))
            if learn:
                picture = await asyncio.to_thread(thumbnail, content)
        return Decoded(key, prepared.pixels, picture)

    def close(self) -> None:
        """End the processes."""
        for pool in (self._pool, self._learn_pool):
            pool.close()


def encoded(encoder: Encoder, images: Sequence[Pixels]) -> Rows:
    """Features (n, dim) of images (v, size, size, 3), some of which may have more views."""
    rows = np.empty((len(images), encoder.dim), dtype=np.float32)
    for views in {len(image) for image in images}:
        places = [place for place, image in enumerate(images) if len(image) == views]
        pixels = np.stack([images[place] for place in places])
        # The mean of one view is that view.
        rows[places] = encoder.encode_views(pixels, average=True)
    return rows


class _Job(NamedTuple):
    pixels: Pixels
    done: asyncio.Future[Rows]


class LocalEncoding(Encoding):
    """Decoders and encoder of this process, batched across requests."""

    def __init__(self, encoder: Encoder, metrics: Metrics, *, views: int = 0) -> None:
        super().__init__(metrics)
        self._encoder = encoder
        workers = min(os.cpu_count() or 1, MAX_WORKERS)
        self._decoders = Decoders(encoder.preprocess, views=views, workers=workers)
        self._decoding = 0
        # Decoded images that wait for the encoder.
        self._ahead = asyncio.Semaphore(4 * encoder.batch_size)
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue(2 * encoder.batch_size)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._task = asyncio.create_task(self._run())

    async def features(self, read: Reader, *, learn: bool = False) -> tuple[str, Rows, bytes]:
        async with self._ahead:
            self._decoding += 1
            try:
                key, pixels, picture = await self._decoders.prepared(read, learn=learn)
            finally:
                self._decoding -= 1
            done: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()
            await self._jobs.put(_Job(pixels, done))
            return key, await done, picture

    async def close(self) -> None:
        self._task.cancel()
        while not self._jobs.empty():
            self._jobs.get_nowait().done.cancel()
        await asyncio.to_thread(self._decoders.close)
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Who has gone away needs no answer.
            batch = [job for job in await self._collect() if not job.done.done()]
            if not batch:
                continue
            self._metrics.batch(len(batch))
            images = [job.pixels for job in batch]
            try:
                rows = await loop.run_in_executor(self._thread, encoded, self._encoder, images)
            except Exception as error:  # it belongs to the requests, not to the loop
                for job in batch:
                    if not job.done.done():
                        job.done.set_exception(error)
                continue
            for job, row in zip(batch, rows, strict=True):
                if not job.done.done():
                    job.done.set_result(row)

    async def _collect(self) -> list[_Job]:
        """The first job, and those that come with it or soon after, if any is on its way."""
        batch = [await self._jobs.get()]
        end = asyncio.get_running_loop().time() + MAX_WAIT
        while len(batch) < self._encoder.batch_size and (self._decoding or self._jobs.qsize()):
            try:
                async with asyncio.timeout_at(end):
                    batch.append(await self._jobs.get())
            except TimeoutError:
                break
        return batch
