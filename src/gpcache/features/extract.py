"""From images and prompts to features, in a store or in memory; nothing is encoded twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders import Encoder
from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.features.store import FeatureStore, Item
from gpcache.features.stream import Encoded, encoded
from gpcache.images.augment import Views
from gpcache.images.records import Record, Refused, Source, readable
from gpcache.support.progress import progress_bar

# Encodes the images of a source: `stream.encoded`, or `cluster.extraction.encoded_on_ray`.
Stream: TypeAlias = Callable[..., Generator[Encoded | Refused, None, None]]

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
    stream: Stream = encoded,
) -> Extraction:
    """Bring the features of every image of `source` into the store in `folder`.

    Images are known by their content: what the store has is not encoded again. Refused images are
    reported and left out. `split` names the split of images whose source does not tell. Stopped at
    any moment, the next call goes on; at most one shard of work is lost.

    `stream` decodes and encodes; this process alone writes the store.
    """
    start = time.perf_counter()
    store = FeatureStore.create(folder, encoder, views)
    report = Extraction()
    items: list[Item] = []
    name = readable(source.name)  # a path, which may hold bytes that are no UTF-8
    settings = {"views": views, "batch_size": batch_size, "workers": workers}
    images = stream(source, encoder, known=store.hashes(), **settings)
    with _Writer(store, shard_rows) as writer:
        for found in _with_progress(images, source, "extract"):
            if isinstance(found, Refused):
                report.refused.append(found)
                continue
            record = found.record
            report.notes += [Refused(record.name, note) for note in found.notes]
            if found.features is None:
                report.known += 1
            else:
                report.encoded += 1
                writer.add(found.hash, found.features)
            known = (record.label, record.split or split, record.group)
            items.append(Item(name, record.name, found.hash, *known))
    # A stream's own refusals are complete only now.
    report.refused += source.refused
    report.notices += source.notices
    store.record(name, items, report.refused)
    report.seconds = time.perf_counter() - start
    return report


@dataclass
class Gathered:
    """Features (n, dim) of `records` and the hashes of their content; the others, and notes."""

    features: NDArray[np.float32]
    records: list[Record] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    pictures: list[NDArray[np.uint8]] | None = None


def gather(
    source: Source,
    encoder: Encoder,
    *,
    views: Views | None = None,
    description: str = "encode",
    picture: Callable[[NDArray[np.uint8]], NDArray[np.uint8]] | None = None,
) -> Gathered:
    """Encode every image that can be read; a copy shares the features of what it copies.

    `picture` makes `pictures` of the pixels that the encoder is given.
    """
    found = Gathered(np.zeros((0, encoder.dim), dtype=np.float32))
    rows: list[NDArray[np.float32]] = []
    known: dict[str, NDArray[np.float32]] = {}
    pictures: dict[str, NDArray[np.uint8]] = {}
    for one in _with_progress(encoded(source, encoder, views=views), source, description):
        if isinstance(one, Refused):
            found.refused.append(one)
            continue
        if one.features is not None:
            known[one.hash] = one.features
        if picture is not None and one.pixels is not None:
            pictures[one.hash] = picture(one.pixels)
        found.records.append(one.record)
        found.hashes.append(one.hash)
        found.notices += [f"{one.record.name}: {note}" for note in one.notes]
        rows.append(known[one.hash])
    # A stream's own refusals are complete only now.
    found.refused += source.refused
    found.notices += source.notices
    if rows:
        found.features = np.stack(rows)
    if picture is not None:
        found.pictures = [pictures[key] for key in found.hashes]
    return found


def stored_text_weights(
    store: FeatureStore, encoder: Encoder, prompts: Prompts
) -> NDArray[np.float32]:
    """One unit vector per class (c, dim), from the store or, the first time, from the encoder."""
    store.require_encoder(encoder)
    known = store.text(prompts.digest)
    if known is None:
        known = text_weights(encoder, prompts)
        store.cache_text(prompts.digest, known)
    return known


def _with_progress(
    images: Generator[Encoded | Refused, None, None], source: Source, description: str
) -> Iterator[Encoded | Refused]:
    with closing(images), progress_bar(description, total=source.total, unit="image") as bar:
        for found in images:
            bar.update()
            yield found


class _Writer:
    """Collects vectors into shards; also after Ctrl-C or an error what is encoded is kept."""

    def __init__(self, store: FeatureStore, shard_rows: int) -> None:
        self._store, self._shard_rows = store, shard_rows
        self._rows: list[tuple[str, NDArray[np.float32]]] = []
        self._written = time.monotonic()

    def add(self, image_hash: str, features: NDArray[np.float32]) -> None:
        """Take the vectors of one image."""
        self._rows.append((image_hash, features))
        late = time.monotonic() - self._written > SHARD_SECONDS
        if late or len(self._rows) >= self._shard_rows:
            self._write()

    def _write(self) -> None:
        if self._rows:
            hashes, features = zip(*self._rows, strict=True)
            self._store.append(hashes, np.stack(features))
            self._rows = []
        self._written = time.monotonic()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
