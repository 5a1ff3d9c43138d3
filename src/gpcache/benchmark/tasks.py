"""Tasks: a data set through one encoder, its features loaded once, ready to draw shots from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache as cache_once
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.benchmark.allowed import nearest
from gpcache.benchmark.datasets import (
    Dataset,
    FeatureSet,
    Split,
    catalogue,
    held_out,
    load_dataset,
    load_folder,
    open_features,
)
from gpcache.benchmark.datasets.features import FeatureRows
from gpcache.benchmark.places import stored_places
from gpcache.benchmark.protocols import Labelled, digest
from gpcache.encoders import Encoder
from gpcache.encoders.prompts import sentence_vectors
from gpcache.errors import DataError, ProtocolError
from gpcache.features.extract import extract
from gpcache.features.manifest import NAME as STORE_MANIFEST
from gpcache.features.splits import draw_shots
from gpcache.features.store import FeatureStore
from gpcache.features.texts import stored_text_weights
from gpcache.images.augment import Views
from gpcache.images.records import Record, Source
from gpcache.methods import TextPrior

# A key is the mean of ten views, as Tip-Adapter makes them; whatever is asked about is one. The
# views are kept apart: methods that train, and GDA, learn from each of them.
KEY_VIEWS = Views(count=10, scale=(0.5, 1.0), seed=0, average=False)
Rows = NDArray[np.int64]
Wanted = Sequence[tuple[int, int]]  # numbers of shots and seeds


class Keys(NamedTuple):
    """Features (n, d) of shots and, of images, the views (n, v, d) that they are the means of."""

    features: NDArray[np.float32]
    views: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, views: NDArray[np.float32]) -> Keys:
        """The means of unit views, scaled to length one."""
        means = views.mean(1)
        return cls(means / np.linalg.norm(means, axis=1, keepdims=True), views)


class Drawn(NamedTuple):
    """The shots of a draw, training rows that are none of them, and where the draw is from."""

    shots: Labelled
    spare: Labelled | None
    source: str
    views: NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class Pool:
    """Images to draw from: labels and names (n,), and the features of chosen rows.

    `keys` gives them as shots, `centres` as what is asked about; `root` is where names of images
    start.
    """

    labels: NDArray[Any]
    names: Sequence[str]
    keys: Callable[[Rows], Keys]
    centres: Callable[[Rows], NDArray[np.float32]]
    root: Path | None = None

    def labelled(self, rows: Rows, features: NDArray[np.float32]) -> Labelled:
        """Rows with their labels and files."""
        images = None
        if self.root is not None:
            images = np.array([str(self.root / self.names[row]) for row in rows.tolist()])
        return Labelled(features, self.labels[rows], images)

    def draw(self, shots: int, seed: int) -> tuple[Rows, Rows]:
        """The rows of the shots, and others to choose on where there is no validation set."""
        labels = self.labels.tolist()
        draw = draw_shots(labels, self.names, shots, seed)
        return draw.indices, held_out(labels, self.names, draw)


@dataclass(frozen=True, eq=False)
class Task:
    """A data set through one encoder: text, test rows, validation rows, and where shots come from.

    `given` are ready-made draws by their number of shots; others are drawn from the `pool`.
    `reference` is what the spec calls the data set. Of images, `places` gives what CALIP sees of
    labelled rows, and `prompt_vectors` the vectors of every sentence about a class.
    """

    name: str
    encoder_name: str
    fingerprint: str
    split_hash: str
    class_names: Sequence[str]
    prior: TextPrior | None
    test: Labelled
    validation: Labelled | None
    given: dict[int, Labelled]
    pool: Pool | None
    encoder: Encoder | None = None
    places: Callable[[Labelled], NDArray[Any]] | None = None
    prompt_vectors: Callable[[], dict[str, NDArray[np.float32]]] | None = None
    notes: tuple[str, ...] = ()
    reference: str = ""

    @cached_property
    def content(self) -> str:
        """The hash of what every draw shares: the test rows and the text, to their numbers."""
        if self.prior is None:
            return digest(self.test)
        return digest(self.test, Labelled(self.prior.vectors, np.array(self.prior.class_names)))

    def seeds(self, shots: int, seeds: Sequence[int]) -> Sequence[int]:
        """The seeds that give different draws: a ready-made draw is there only once."""
        return seeds[:1] if shots in self.given else seeds

    def draw(self, shots: int, seed: int) -> Drawn:
        """The shots of a draw."""
        if shots in self.given:
            return Drawn(self.given[shots], None, "ready-made")
        if self.pool is None:
            known = ", ".join(map(str, sorted(self.given))) or "none"
            raise ProtocolError(f"{self.name!r} has no draw of {shots} shots (it has {known}).")
        pool = self.pool
        rows, spare = pool.draw(shots, seed)
        others = None
        if self.validation is None and len(spare):
            others = pool.labelled(spare, pool.centres(spare))
        keys = pool.keys(rows)
        return Drawn(pool.labelled(rows, keys.features), others, f"seed {seed}", keys.views)


def open_task(
    reference: str,
    encoder: Callable[[], Encoder | None],
    *,
    folder: Path,
    root: Path | None,
    cache: Path,
    wanted: Wanted,
) -> Task:
    """A data set of a spec: a name below `root`, or a path that starts from `folder` or `root`.

    Of images, all test and validation images and the `wanted` draws are encoded, into stores below
    `cache` that other data sets and experiments share.
    """
    task = _opened(reference, encoder, folder=folder, root=root, cache=cache, wanted=wanted)
    return replace(task, reference=reference)


def check_reference(reference: str, where: str, *, folder: Path, root: Path | None) -> None:
    """Refuse what is neither a name that is known nor a path that is there."""
    if reference not in catalogue() and _found(reference, folder, root) is None:
        names = catalogue()
        raise DataError(
            f"{where} names {reference!r}{nearest(reference, names)}, which is no data set: use "
            f"{', '.join(names)}, or the path of class folders, a feature store or an .npz file."
        )


def _found(reference: str, folder: Path, root: Path | None) -> Path | None:
    places = [folder / Path(reference).expanduser(), *([] if root is None else [root / reference])]
    return next((place for place in places if place.exists()), None)


def _opened(
    reference: str,
    encoder: Callable[[], Encoder | None],
    *,
    folder: Path,
    root: Path | None,
    cache: Path,
    wanted: Wanted,
) -> Task:
    if reference in catalogue():
        if root is None:
            raise DataError(
                f"{reference!r} is a data set on disk: say below which folder by --root."
            )
        return _encoded(load_dataset(reference, root), encoder(), cache, wanted)
    place = _found(reference, folder, root)
    if place is None:
        raise DataError(f"{reference!r} is not there any more.")
    if (place / STORE_MANIFEST).exists():
        return _stored(open_features(place), FeatureStore.open(place).manifest.logit_scale)
    if place.is_file():
        return _stored(open_features(place))
    return _encoded(load_folder(place), encoder(), cache, wanted)


def _stored(features: FeatureSet, logit_scale: float = 100.0) -> Task:
    """A task of features that are there."""
    names = np.array(features.class_names)
    prior = None
    # The methods compare all classes: text for some of them is no text.
    if features.text is not None and len(features.text_classes) == len(names):
        prior = TextPrior(list(features.text_classes), features.text, logit_scale)

    def labelled(rows: FeatureRows) -> Labelled:
        return Labelled(rows.X, names[rows.y])

    pool = None
    if features.pool is not None:
        X, y, identifiers = features.pool
        pool = Pool(names[y], identifiers, lambda rows: Keys(X[rows]), X.__getitem__)
    return Task(
        name=features.name,
        encoder_name="stored features",
        fingerprint=features.fingerprint,
        split_hash=features.split_hash,
        class_names=features.class_names,
        prior=prior,
        test=labelled(features.test),
        validation=None if features.validation is None else labelled(features.validation),
        given={shots: labelled(rows) for shots, rows in features.shots.items()},
        pool=pool,
        notes=features.notes,
    )


def _encoded(dataset: Dataset, encoder: Encoder | None, cache: Path, wanted: Wanted) -> Task:
    """A task of images: what is asked about in one centre view, keys in the mean of ten."""
    if encoder is None:
        raise DataError(f"{dataset.name!r} is images: name an encoder in the spec's encoders.")
    names = np.array(dataset.class_names)
    base = cache / f"{encoder.name.replace('/', '-').replace(':', '-')}-{encoder.fingerprint[:12]}"
    centres = _Images(dataset, encoder, base / "centre", None)
    views = _Images(dataset, encoder, base / "views-apart", KEY_VIEWS)
    train = dataset.train
    labels = names[train.labels]
    pool = Pool(
        labels,
        train.paths,
        lambda rows: Keys.of(views.features(train, rows)),
        lambda rows: centres.features(train, rows),
        dataset.root,
    )
    draws = [pool.draw(shots, seed) for shots, seed in wanted]
    views.encode("shots", train, [rows for rows, _ in draws])
    if dataset.validation is None and draws:
        centres.encode("spare", train, [spare for _, spare in draws])

    def labelled(part: str, split: Split) -> Labelled:
        everything = np.arange(len(split.paths))
        centres.encode(part, split, [everything])
        images = np.array([str(dataset.root / path) for path in split.paths])
        return Labelled(centres.features(split, everything), names[split.labels], images)

    def places(rows: Labelled) -> NDArray[Any]:
        assert rows.images is not None
        return stored_places([Path(file) for file in rows.images], encoder, base / "places")

    test = labelled("test", dataset.test)
    validation = None
    if dataset.validation is not None:
        validation = labelled("validation", dataset.validation)
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
        given={},
        pool=pool,
        encoder=encoder,
        places=places if encoder.has_spatial else None,
        prompt_vectors=cache_once(lambda: sentence_vectors(encoder, dataset.prompts)),
    )


class _Images:
    """Images of a data set in a store of one kind of views."""

    def __init__(
        self, dataset: Dataset, encoder: Encoder, folder: Path, views: Views | None
    ) -> None:
        self._dataset, self._encoder, self._folder, self._views = dataset, encoder, folder, views
        self.store = FeatureStore.create(folder, encoder, views)
        self._hash: dict[str, str] = {}

    def encode(self, part: str, split: Split, draws: Sequence[Rows]) -> None:
        """Encode the rows of a split that the store does not have; a broken image is an error."""
        rows = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *draws]))
        records = [
            Record(split.paths[row], self._dataset.root / split.paths[row]) for row in rows.tolist()
        ]
        name = f"{self._dataset.name} {part}"
        source = Source(name, records, total=len(records))
        report = extract(source, self._folder, self._encoder, views=self._views)
        if report.refused:
            first = report.refused[0]
            raise DataError(
                f"Images of {self._dataset.name!r} cannot be read ({len(report.refused)} of them); "
                f"the first is {str(self._dataset.root / first.name)!r}: {first.reason}. Mend or "
                "replace it."
            )
        self.store = FeatureStore.open(self._folder)
        for item in self.store.items():
            if item.source == name:
                self._hash[item.path] = item.hash

    def features(self, split: Split, rows: Rows) -> NDArray[np.float32]:
        """Features (len(rows), d), or (len(rows), v, d), of rows that were encoded."""
        return self.store.vectors([self._hash[split.paths[row]] for row in rows.tolist()])
