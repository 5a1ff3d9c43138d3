"""Encodes the images of a data set: features and spatial features, stored on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache as cache_once
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from gpcache.benchmark.datasets.dataset import Dataset, Split
from gpcache.benchmark.task import Labelled, Pool, RowNumbers, Task
from gpcache.encoders import Encoder
from gpcache.encoders.prompts import sentence_vectors
from gpcache.encoders.vectors import Features
from gpcache.errors import DataError
from gpcache.features.extract import extract, stored_text_weights
from gpcache.features.store import FeatureStore
from gpcache.images.augment import Views
from gpcache.images.records import Record, Source
from gpcache.methods import TextPrior
from gpcache.methods.calip import image_and_places
from gpcache.support.files import make_folder, replacing, sha256
from gpcache.support.progress import progress_bar

# A key is the mean of ten views, as in Tip-Adapter; a query is one centre view. All views are
# stored, because methods that train, and GDA, learn from each of them.
KEY_VIEWS = Views(count=10, scale=(0.5, 1.0), seed=0, average=False)
# Images whose spatial features are encoded together: each has about fifty vectors.
BLOCK = 64


def encode_dataset(
    dataset: Dataset, encoder: Encoder, cache: Path, draws: Sequence[tuple[int, int]]
) -> Task:
    """A task of images: the test and validation images and these draws (shots, seed) are encoded.

    Their features are kept in stores below `cache`, which other data sets and experiments share.
    """
    base = cache / f"{encoder.name.replace('/', '-').replace(':', '-')}-{encoder.fingerprint[:12]}"
    centres = _EncodedImages(dataset, encoder, base / "centre", None)
    views = _EncodedImages(dataset, encoder, base / "views-apart", KEY_VIEWS)

    def pool_of(split: Split) -> Pool:
        labels = np.array(dataset.class_names)[split.labels]
        keys, queries = views.features_of(split), centres.features_of(split)
        return Pool(labels, split.paths, keys, queries, dataset.root)

    def labelled(part: str, split: Split) -> Labelled:
        pool, rows = pool_of(split), np.arange(len(split))
        centres.encode(part, split, [rows])
        return pool.labelled(rows, pool.queries(rows))

    def spatial_features(rows: Labelled) -> NDArray[Any]:
        assert rows.names is not None
        return stored_spatial_features(list(map(Path, rows.names)), encoder, base / "places")

    pool = pool_of(dataset.train)
    drawn = [pool.draw(shots, seed) for shots, seed in draws]
    views.encode("shots", dataset.train, [rows for rows, _ in drawn])
    if dataset.validation is None and drawn:
        centres.encode("spare", dataset.train, [spare for _, spare in drawn])
    test = labelled("test", dataset.test)
    validation = labelled("validation", dataset.validation) if dataset.validation else None
    vectors = stored_text_weights(centres.store, encoder, dataset.prompts)
    return Task(
        name=dataset.name,
        encoder_name=encoder.name,
        fingerprint=encoder.fingerprint,
        split_hash=dataset.split_hash,
        class_names=dataset.class_names,
        prior=TextPrior(list(dataset.class_names), vectors, encoder.logit_scale),
        test=test,
        validation=validation,
        pool=pool,
        given={},
        encoder=encoder,
        spatial_features=spatial_features if encoder.has_spatial else None,
        prompt_vectors=cache_once(lambda: sentence_vectors(encoder, dataset.prompts)),
    )


class _EncodedImages:
    """Images of a data set in a feature store of one kind of views."""

    def __init__(
        self, dataset: Dataset, encoder: Encoder, folder: Path, views: Views | None
    ) -> None:
        self._dataset, self._encoder, self._folder, self._views = dataset, encoder, folder, views
        self.store = FeatureStore.create(folder, encoder, views)
        self._hash: dict[str, str] = {}

    def encode(self, part: str, split: Split, draws: Sequence[RowNumbers]) -> None:
        """Encode the rows of a split that the store does not have; a broken image is an error."""
        root, name = self._dataset.root, f"{self._dataset.name} {part}"
        rows = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *draws]))
        paths = [split.paths[row] for row in rows.tolist()]
        source = Source(name, [Record(path, root / path) for path in paths], total=len(paths))
        refused = extract(source, self._folder, self._encoder, views=self._views).refused
        if refused:
            first = str(root / refused[0].name)
            raise DataError(
                f"Images of {self._dataset.name!r} cannot be read ({len(refused)} of them); the "
                f"first is {first!r}: {refused[0].reason}. Fix or replace it."
            )
        self.store = FeatureStore.open(self._folder)
        self._hash |= {item.path: item.hash for item in self.store.items() if item.source == name}

    def features_of(self, split: Split) -> Callable[[RowNumbers], Features]:
        """A function from rows of a split that were encoded to their features."""
        return lambda rows: self.store.vectors([self._hash[split.paths[r]] for r in rows.tolist()])


def stored_spatial_features(images: Sequence[Path], encoder: Encoder, folder: Path) -> NDArray[Any]:
    """The X (n, 1 + positions, dim) that CALIP takes for these images, from a file in `folder`.

    The file is mapped into memory, not read: for a large test set it has gigabytes.
    """
    # The name of the file changes with the size and time of any image.
    facts = [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in images]
    place = make_folder(folder) / f"{sha256(repr(facts).encode())}.npy"
    # If several processes ask for the same images at once, one of them encodes.
    with FileLock(place.with_suffix(".lock")):
        if not place.exists():
            with replacing(place) as temporary:
                _write_spatial_features(temporary, images, encoder)
    features: NDArray[Any] = np.load(place, mmap_mode="c", allow_pickle=False)
    return features


def _write_spatial_features(place: Path, images: Sequence[Path], encoder: Encoder) -> None:
    target = None
    with progress_bar("places", total=len(images), unit="image") as bar:
        for start in range(0, len(images), BLOCK):
            block = image_and_places(encoder, images[start : start + BLOCK])
            if target is None:
                # Half precision keeps three digits of a unit vector in half the space.
                shape = (len(images), *block.shape[1:])
                target = np.lib.format.open_memmap(place, "w+", np.float16, shape)
            target[start : start + len(block)] = block
            bar.update(len(block))
    if target is not None:
        target.flush()
