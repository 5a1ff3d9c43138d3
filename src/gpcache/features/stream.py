"""A stream of images becomes a stream of features: read, hashed, decoded and encoded side by side.

Memory is bounded whatever the length: a few batches are under way at any time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpcache.errors import ImageRefusedError
from gpcache.images.augment import Views
from gpcache.images.decode import decode, read_file
from gpcache.images.records import Record, Refused, Source
from gpcache.images.workers import DecodePool, Prepared, prepare
from gpcache.support.files import sha256

if TYPE_CHECKING:
    from gpcache.encoders import Encoder

Prepare = Callable[[Image.Image, str], Prepared]


@dataclass(frozen=True, eq=False)
class Encoded:
    """An image, the hash of its content, and its vector (dim,), or vectors (views, dim).

    `features` is None for an image that was known before, or came earlier in the stream.
    """

    record: Record
    hash: str
    features: NDArray[np.float32] | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Task:
    """An image on its way: `future` is None where its features are known or under way already."""

    record: Record
    hash: str
    future: Future[Prepared] | None


def encoded(
    source: Source,
    encoder: Encoder,
    *,
    views: Views | None = None,
    known: set[str] | None = None,
    repeat: bool = False,
    batch_size: int | None = None,
    workers: int | None = None,
) -> Generator[Encoded | Refused, None, None]:
    """Every image of `source` in its order, encoded or refused.

    Images whose hash is `known` are not decoded, nor is a copy of an earlier one, unless `repeat`.
    """
    size = images_at_once(encoder, views, batch_size)

    def here(image: Image.Image, key: str) -> Prepared:
        return prepare(image, encoder.preprocess, views, key)

    seen = None if repeat else set(known or ())
    failed: dict[str, str] = {}
    batch: list[tuple[_Task, Prepared | Refused | None]] = []
    waiting = 0
    with (
        DecodePool(encoder.preprocess, views, workers=workers) as pool,
        closing(_tasks(source, seen, pool, here, 2 * size + 2)) as tasks,
    ):
        for task in tasks:
            found = _result(task, failed)
            waiting += isinstance(found, Prepared)
            batch.append((task, found))
            # What is not encoded holds no pixels, but still must come in its turn.
            if waiting == size or len(batch) == 16 * size:
                yield from _encode(batch, encoder, views)
                batch, waiting = [], 0
        yield from _encode(batch, encoder, views)


def images_at_once(encoder: Encoder, views: Views | None, batch_size: int | None) -> int:
    """How many images make a batch: `batch_size`, or what the encoder can take, in views."""
    return max(1, (batch_size or encoder.batch_size) // (views.count if views else 1))


def vectors(
    pixels: list[NDArray[np.uint8]], encoder: Encoder, views: Views | None
) -> NDArray[np.float32]:
    """Unit vectors (n, dim), or (n, views, dim), of images (views, size, size, 3) each."""
    stacked = np.stack(pixels)
    if views is None:
        return encoder.encode_pixels(stacked[:, 0])
    return encoder.encode_views(stacked, average=views.average)


def _result(task: _Task, failed: dict[str, str]) -> Prepared | Refused | None:
    try:
        if task.future is not None:
            return task.future.result()
        if task.hash in failed:  # a copy of an image that was refused
            raise ImageRefusedError(failed[task.hash])
    except ImageRefusedError as error:
        failed[task.hash] = error.reason
        return Refused(task.record.name, error.reason)
    return None


def _encode(
    batch: list[tuple[_Task, Prepared | Refused | None]], encoder: Encoder, views: Views | None
) -> Iterator[Encoded | Refused]:
    pixels = [found.pixels for _, found in batch if isinstance(found, Prepared)]
    rows = iter(vectors(pixels, encoder, views) if pixels else ())
    for task, found in batch:
        if isinstance(found, Refused):
            yield found
        elif found is None:
            yield Encoded(task.record, task.hash, None)
        else:
            yield Encoded(task.record, task.hash, next(rows), found.notes)


def _tasks(
    source: Source, known: set[str] | None, pool: DecodePool, prepare_here: Prepare, ahead: int
) -> Generator[_Task, None, None]:
    """The records in their order, read, hashed and decoded up to `ahead` images in advance.

    `known` grows by what is under way; None decodes everything.
    """
    tasks: queue.Queue[_Task | BaseException | None] = queue.Queue(ahead)
    stopped = threading.Event()

    def put(task: _Task | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                tasks.put(task, timeout=0.1)
                break
            except queue.Full:
                continue

    def produce() -> None:
        try:
            for record in source.records:
                if stopped.is_set():
                    return
                put(_task(record, known, pool, prepare_here))
            put(None)
        except BaseException as error:  # it belongs to the thread that waits for the tasks
            put(error)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        while (task := tasks.get()) is not None:
            if isinstance(task, BaseException):
                raise task
            yield task
    finally:
        stopped.set()
        thread.join()


def _task(record: Record, known: set[str] | None, pool: DecodePool, prepare_here: Prepare) -> _Task:
    done: Future[Prepared] = Future()
    content = record.content
    try:
        image = read_file(content) if isinstance(content, Path) else content
        if not isinstance(image, bytes):
            image = decode(image).image
        key = sha256(image if isinstance(image, bytes) else _pixels(image))
        if known is not None:
            if key in known:
                return _Task(record, key, None)
            known.add(key)
        if isinstance(image, bytes):
            return _Task(record, key, pool.submit(image, key))
        done.set_result(prepare_here(image, key))
    except ImageRefusedError as error:
        key = ""
        done.set_exception(error)
    return _Task(record, key, done)


def _pixels(image: Image.Image) -> bytes:
    """What an image that never was a file contains."""
    return f"{image.size}".encode() + image.tobytes()
