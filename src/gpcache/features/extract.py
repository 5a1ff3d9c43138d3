"""From images to a feature store: decode, encode and write at once, and go on where it stopped."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpcache.encoders import Encoder
from gpcache.errors import ImageRefusedError
from gpcache.features.store import FeatureStore, Item
from gpcache.files import sha256
from gpcache.images.augment import Views
from gpcache.images.decode import decode, read_file
from gpcache.images.records import Record, Refused, Source
from gpcache.images.workers import DecodePool, Prepared, prepare
from gpcache.progress import progress_bar

SHARD_ROWS = 1024
# A slow encoder must not hold hours of work in memory.
SHARD_SECONDS = 60.0


@dataclass
class Extraction:
    """What an extraction did: images encoded now, known before, refused; notes on single images."""

    encoded: int = 0
    known: int = 0
    refused: list[Refused] = field(default_factory=list)
    notes: list[Refused] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class _Task:
    """An image on its way: `future` is None where its features are known or under way already."""

    record: Record
    hash: str
    future: Future[Prepared] | None


def extract(
    source: Source,
    folder: str | Path,
    encoder: Encoder,
    *,
    views: Views | None = None,
    split: str | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    shard_rows: int = SHARD_ROWS,
) -> Extraction:
    """Bring the features of every image of `source` into the store in `folder`.

    Images are known by their content: what the store has is not encoded again. Refused images are
    reported and left out. `split` names the split of images whose source does not tell. Stopped at
    any moment, the next call goes on; at most one shard of work is lost.
    """
    start = time.perf_counter()
    store = FeatureStore.create(folder, encoder, views)
    report = Extraction()
    items: list[Item] = []

    def here(image: Image.Image, key: str) -> Prepared:
        return prepare(image, encoder.preprocess, views, key)

    failed: dict[str, str] = {}
    with (
        _Writer(store, encoder, views, batch_size or encoder.batch_size, shard_rows) as writer,
        DecodePool(encoder.preprocess, views, workers=workers) as pool,
        closing(_tasks(source, store.hashes(), pool, here, 2 * writer.images + 2)) as tasks,
        progress_bar("extract", total=source.total, unit="image") as bar,
    ):
        for task in tasks:
            record = task.record
            try:
                if task.future is not None:
                    prepared = task.future.result()
                    report.notes += [Refused(record.name, note) for note in prepared.notes]
                    report.encoded += 1
                    writer.add(task.hash, prepared.pixels)
                elif task.hash in failed:
                    raise ImageRefusedError(failed[task.hash])
                else:
                    report.known += 1
            except ImageRefusedError as error:
                failed[task.hash] = error.reason
                report.refused.append(Refused(record.name, error.reason))
            else:
                items.append(
                    Item(
                        source.name,
                        record.name,
                        task.hash,
                        record.label,
                        record.split or split,
                        record.group,
                    )
                )
            bar.update()
    # A stream's own refusals are complete only now.
    report.refused += source.refused
    report.notices += source.notices
    store.record(source.name, items, report.refused)
    report.seconds = time.perf_counter() - start
    return report


class _Writer:
    """Collects prepared images into batches for the encoder, and vectors into shards."""

    def __init__(
        self,
        store: FeatureStore,
        encoder: Encoder,
        views: Views | None,
        batch_size: int,
        shard_rows: int,
    ) -> None:
        self._store, self._encoder, self._views = store, encoder, views
        self._shard_rows = shard_rows
        self.images = max(1, batch_size // (views.count if views else 1))
        self._waiting: list[tuple[str, NDArray[np.uint8]]] = []
        self._hashes: list[str] = []
        self._features: list[NDArray[np.float32]] = []
        self._written = time.monotonic()

    def add(self, image_hash: str, pixels: NDArray[np.uint8]) -> None:
        """Take the pixels (v, size, size, 3) of one image."""
        self._waiting.append((image_hash, pixels))
        if len(self._waiting) >= self.images:
            self._encode()

    def _encode(self) -> None:
        if not self._waiting:
            return
        hashes, pixels = zip(*self._waiting, strict=True)
        self._waiting.clear()
        stacked = np.stack(pixels)
        if self._views is None:
            features = self._encoder.encode_pixels(stacked[:, 0])
        else:
            features = self._encoder.encode_views(stacked, average=self._views.average)
        self._hashes += hashes
        self._features.append(features)
        late = time.monotonic() - self._written > SHARD_SECONDS
        if late or len(self._hashes) >= self._shard_rows:
            self._write()

    def _write(self) -> None:
        if self._hashes:
            self._store.append(self._hashes, np.concatenate(self._features))
            self._hashes, self._features = [], []
        self._written = time.monotonic()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Also after Ctrl-C: what is encoded is kept, what waits for the encoder is not.
        if kind is None:
            self._encode()
        self._write()


def _tasks(
    source: Source, known: set[str], pool: DecodePool, prepare_here: _Prepare, ahead: int
) -> Generator[_Task, None, None]:
    """The records in their order, read, hashed and decoded up to `ahead` images in advance.

    `known` grows by what is under way.
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


def _task(record: Record, known: set[str], pool: DecodePool, prepare_here: _Prepare) -> _Task:
    done: Future[Prepared] = Future()
    content = record.content
    try:
        if isinstance(content, Path):
            content = read_file(content)
        image = content if isinstance(content, bytes) else decode(content).image
        key = sha256(image if isinstance(image, bytes) else _pixels(image))
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


_Prepare = Callable[[Image.Image, str], Prepared]
