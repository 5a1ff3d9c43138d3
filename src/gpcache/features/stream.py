"""Turns a stream of images into features: reads, hashes, decodes and encodes in parallel.

Memory is bounded for any length: only a few batches are in progress at any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import ImageRefusedError
from gpcache.images.augment import Views
from gpcache.images.decode import decode, read_file
from gpcache.images.records import Record, Refused, Source
from gpcache.images.workers import DecodePool, Prepared, prepare
from gpcache.support.files import sha256

if TYPE_CHECKING:
    from gpcache.encoders import Encoder


@dataclass(frozen=True, eq=False)
class Encoded:
    """An image, the hash of its content, and its vector (dim,), or vectors (views, dim).

    `features` is None for an image that was known before, or came earlier in the stream. `pixels`
    (size, size, 3) are those that were encoded.
    """

    record: Record
    hash: str
    features: NDArray[np.float32] | None
    notes: tuple[str, ...] = ()
    pixels: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class _Task:
    """An image in progress; `future` is None if its features are known or in progress already."""

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
    hashes = None if repeat else set(known or ())
    failed: dict[str, str] = {}
    batch: list[tuple[_Task, Prepared | Refused | None]] = []
    waiting = 0
    with (
        DecodePool(encoder.preprocess, views, workers=workers) as pool,
        closing(_ahead(_tasks(source, hashes, pool, encoder, views), 2 * size + 2)) as tasks,
    ):
        for task in tasks:
            outcome = _result(task, failed)
            waiting += isinstance(outcome, Prepared)
            batch.append((task, outcome))
            # Images that are not encoded hold no pixels, but must keep their place in the order.
            if waiting == size or len(batch) == 16 * size:
                yield from _encode(batch, encoder, views)
                batch, waiting = [], 0
        yield from _encode(batch, encoder, views)


def images_at_once(encoder: Encoder, views: Views | None, batch_size: int | None) -> int:
    """Images in a batch: `batch_size`, or the encoder's batch size divided by the views."""
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
    pixels = [outcome.pixels for _, outcome in batch if isinstance(outcome, Prepared)]
    rows = iter(vectors(pixels, encoder, views) if pixels else ())
    for task, outcome in batch:
        if isinstance(outcome, Refused):
            yield outcome
        elif outcome is None:
            yield Encoded(task.record, task.hash, None)
        else:
            yield Encoded(task.record, task.hash, next(rows), outcome.notes, outcome.pixels[0])


def _tasks(
    source: Source,
    known: set[str] | None,
    pool: DecodePool,
    encoder: Encoder,
    views: Views | None,
) -> Iterator[_Task]:
    """Read and hash the records of a source and pass them to the decoders, one at a time.

    Hashes of images in progress are added to `known`; None decodes everything.
    """
    for record in source.records:
        key, content = "", record.content
        done: Future[Prepared] = Future()
        try:
            image = read_file(content) if isinstance(content, Path) else content
            if isinstance(image, bytes):
                key = sha256(image)
            else:
                image = decode(image).image
                key = sha256(f"{image.size}".encode() + image.tobytes())
            if known is not None and key in known:
                yield _Task(record, key, None)
                continue
            if known is not None:
                known.add(key)
            if isinstance(image, bytes):
                done = pool.submit(image, key)
            else:
                done.set_result(prepare(image, encoder.preprocess, views, key))
        except ImageRefusedError as error:
            done.set_exception(error)
        yield _Task(record, key, done)


def _ahead(tasks: Iterator[_Task], count: int) -> Generator[_Task, None, None]:
    """The tasks in their order, made by another thread up to `count` of them in advance."""
    reader = ThreadPoolExecutor(1)
    try:
        waiting = deque(reader.submit(next, tasks, None) for _ in range(count))
        while (task := waiting.popleft().result()) is not None:
            waiting.append(reader.submit(next, tasks, None))
            yield task
    finally:
        reader.shutdown(cancel_futures=True)
