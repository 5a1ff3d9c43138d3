"""From images and prompts to features, in a store or in memory; nothing is encoded twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.features.store import FeatureStore, Item
from gpcache.features.stream import Encoded, encoded
from gpcache.images.augment import Views
from gpcache.images.records import Record, Refused, Source, readable
from gpcache.support.progress import progress_bar

if TYPE_CHECKING:
    from gpcache.encoders import Encoder

# Encodes the images of a source: `stream.encoded`, or `cluster.extraction.encoded_on_ray`.
Stream: TypeAlias = Callable[..., Generator[Encoded | Refused, None, None]]

SHARD_ROWS = 1024
# With a slow encoder, hours of work must not be held in memory.
SHARD_SECONDS = 60.0


@dataclass
class Extraction:
    """Result of an extraction.

    Parameters
    ----------
    encoded : int
        Number of images that were encoded now.
    known : int
        Number of images that the store had already.
    refused : list of Refused
        Refused images with their reasons.
    notes : list of Refused
        Notes on single images.
    notices : list of str
        Notes on the source.
    seconds : float
        Time that it took.

    Examples
    --------
    >>> from gpcache.features.extract import Extraction
    >>> Extraction(encoded=3).known
    0
    """

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
    """Encode every image of a source into the store in a folder.

    Images are recognised by their content, so an image that the store has is not encoded again.
    Refused images are reported and left out. After a stop at any moment the next call continues; at
    most one shard of work is lost.

    Parameters
    ----------
    source : Source
        Images, as `gpcache.images.sources.open_source` returns them.
    folder : str or Path
        Folder of the store.
    encoder : Encoder
        The encoder.
    views : Views, optional
        Augmented views; None is one centre view per image.
    split : str, optional
        Name of the split for images whose source names none.
    batch_size : int, optional
        Number of images to encode at once.
    workers : int, optional
        Number of decoding processes.
    shard_rows : int, default=1024
        Number of images in a shard.
    stream : callable, optional
        Decodes and encodes; only this process writes the store.

    Returns
    -------
    Extraction
        What was done.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from gpcache import load_encoder
    >>> from gpcache.features.extract import extract
    >>> from gpcache.images.sources import from_iterable
    >>> pairs = [(np.full((32, 32, 3), i, np.uint8), "cat") for i in range(2)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     extract(from_iterable(pairs), folder, load_encoder("lite")).encoded
    2
    """
    start = time.perf_counter()
    store = FeatureStore.create(folder, encoder, views)
    report = Extraction()
    items: list[Item] = []
    name = readable(source.name)  # a path, which may hold bytes that are not UTF-8
    settings = {"views": views, "batch_size": batch_size, "workers": workers}
    images = stream(source, encoder, known=store.hashes(), **settings)
    with closing(_Writer(store, shard_rows)) as writer:
        for image in _encoded_images(images, source, "extract", report):
            record = image.record
            report.notes += [Refused(record.name, note) for note in image.notes]
            if image.features is None:
                report.known += 1
            else:
                report.encoded += 1
                writer.add(image.hash, image.features)
            known = (record.label, record.split or split, record.group)
            items.append(Item(name, record.name, image.hash, *known))
    store.record(name, items, report.refused)
    report.seconds = time.perf_counter() - start
    return report


@dataclass
class Gathered:
    """Features of images in memory.

    Parameters
    ----------
    features : array of shape (n, dim)
        Unit vectors.
    records : list of Record
        The images.
    hashes : list of str
        SHA-256 of their content.
    refused : list of Refused
        Refused images with their reasons.
    notices : list of str
        Notes.
    pictures : list of arrays, optional
        The result of `picture` of `gather` for each image.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.features.extract import Gathered
    >>> Gathered(np.zeros((0, 4))).records
    []
    """

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
    """Encode every image that can be read, in memory; copies share their features.

    Parameters
    ----------
    source : Source
        Images, as `gpcache.images.sources.open_source` returns them.
    encoder : Encoder
        The encoder.
    views : Views, optional
        Augmented views; None is one centre view per image.
    description : str, default="encode"
        Text of the progress bar.
    picture : callable, optional
        Makes `pictures` from the pixels that the encoder gets.

    Returns
    -------
    Gathered
        Features and records of the images.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import load_encoder
    >>> from gpcache.features.extract import gather
    >>> from gpcache.images.sources import from_iterable
    >>> pairs = [(np.full((32, 32, 3), i, np.uint8), "cat") for i in range(2)]
    >>> gather(from_iterable(pairs), load_encoder("lite")).features.shape
    (2, 1664)
    """
    gathered = Gathered(np.zeros((0, encoder.dim), dtype=np.float32))
    known: dict[str, NDArray[np.float32]] = {}
    pictures: dict[str, NDArray[np.uint8]] = {}
    images = encoded(source, encoder, views=views)
    for image in _encoded_images(images, source, description, gathered):
        if image.features is not None:
            known[image.hash] = image.features
        if picture is not None and image.pixels is not None:
            pictures[image.hash] = picture(image.pixels)
        gathered.records.append(image.record)
        gathered.hashes.append(image.hash)
        gathered.notices += [f"{image.record.name}: {note}" for note in image.notes]
    if gathered.hashes:
        gathered.features = np.stack([known[key] for key in gathered.hashes])
    if picture is not None:
        gathered.pictures = [pictures[key] for key in gathered.hashes]
    return gathered


def stored_text_weights(
    store: FeatureStore, encoder: Encoder, prompts: Prompts
) -> NDArray[np.float32]:
    """Return class vectors from the store; encode and cache them the first time.

    Parameters
    ----------
    store : FeatureStore
        The store.
    encoder : Encoder
        The encoder that made the store.
    prompts : Prompts
        Classes and their sentences.

    Returns
    -------
    array of shape (c, dim)
        One unit vector per class.

    Examples
    --------
    >>> import tempfile
    >>> from gpcache import FeatureStore, Prompts, load_encoder
    >>> from gpcache.features.extract import stored_text_weights
    >>> encoder, prompts = load_encoder("lite"), Prompts.from_templates(["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stored_text_weights(FeatureStore.create(folder, encoder), encoder, prompts).shape
    (2, 1664)
    """
    store.require_encoder(encoder)
    known = store.text(prompts.digest)
    if known is None:
        known = text_weights(encoder, prompts)
        store.cache_text(prompts.digest, known)
    return known


def _encoded_images(
    images: Generator[Encoded | Refused, None, None],
    source: Source,
    description: str,
    report: Extraction | Gathered,
) -> Iterator[Encoded]:
    """The images that were not refused; refusals and notices go to the report."""
    with closing(images), progress_bar(description, total=source.total, unit="image") as bar:
        for image in images:
            bar.update()
            if isinstance(image, Refused):
                report.refused.append(image)
            else:
                yield image
    # Those of a stream are complete only at its end.
    report.refused += source.refused
    report.notices += source.notices


class _Writer:
    """Collects vectors into shards; after Ctrl-C or an error, encoded images are kept."""

    def __init__(self, store: FeatureStore, shard_rows: int) -> None:
        self._store, self._shard_rows = store, shard_rows
        self._rows: list[tuple[str, NDArray[np.float32]]] = []
        self._written = time.monotonic()

    def add(self, image_hash: str, features: NDArray[np.float32]) -> None:
        """Add the vectors of one image."""
        self._rows.append((image_hash, features))
        late = time.monotonic() - self._written > SHARD_SECONDS
        if late or len(self._rows) >= self._shard_rows:
            self.close()

    def close(self) -> None:
        """Write the vectors that were added since the last shard."""
        if self._rows:
            hashes, features = zip(*self._rows, strict=True)
            self._store.append(hashes, np.stack(features))
            self._rows = []
        self._written = time.monotonic()
