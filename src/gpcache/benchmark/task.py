"""A task: a data set through one encoder, with its features, ready to draw shots from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders import Encoder
from gpcache.encoders.vectors import Features
from gpcache.errors import ProtocolError
from gpcache.features.splits import Draw, draw_shots
from gpcache.methods import TextPrior
from gpcache.support.files import sha256

# A data set without validation images (ImageNet) takes this many per class from its training set.
SPARE_SHOTS = 4
RowNumbers = NDArray[np.int64]


class Labelled(NamedTuple):
    """Features (n, d), class names (n,), and names of the rows (n,), which are files of images."""

    features: Features
    labels: NDArray[Any]
    names: NDArray[Any] | None = None

    def only(self, rows: RowNumbers) -> Labelled:
        """These rows only."""
        names = None if self.names is None else self.names[rows]
        return Labelled(self.features[rows], self.labels[rows], names)


class Drawn(NamedTuple):
    """The shots of a draw, training rows that are not among them, and how the draw was made.

    `views` (n, v, d) are the views of the images whose means are the features of the shots; `wrong`
    (n,) says which labels were made wrong.
    """

    shots: Labelled
    spare: Labelled | None
    source: str
    views: Features | None = None
    wrong: NDArray[np.bool_] | None = None

    def only(self, rows: RowNumbers) -> Drawn:
        """These shots only."""
        views = None if self.views is None else self.views[rows]
        return self._replace(shots=self.shots.only(rows), views=views)


@dataclass(frozen=True, eq=False)
class Pool:
    """Rows to draw from: labels and names (n,), and the features of chosen rows.

    `rows_of` holds the rows of ready-made draws by (shots, seed); other draws are made here.
    `keys` gives the features of shots, (n, d) or, of images, one for each view (n, v, d); `queries`
    those of rows to predict (n, d). Names of images start from `root`.
    """

    labels: NDArray[Any]
    names: Sequence[str]
    keys: Callable[[RowNumbers], Features]
    queries: Callable[[RowNumbers], Features]
    root: Path | None = None
    rows_of: Mapping[tuple[int, int], RowNumbers] = field(default_factory=dict)

    def draw(self, shots: int, seed: int) -> tuple[RowNumbers, RowNumbers]:
        """The rows of the shots, and others to choose on if there is no validation set."""
        labels = self.labels.tolist()
        if (given := self.rows_of.get((shots, seed))) is not None:
            return given, np.setdiff1d(np.arange(len(labels)), given)
        draw = draw_shots(labels, self.names, shots, seed)
        return draw.indices, spare_rows(labels, self.names, draw)

    def labelled(self, rows: RowNumbers, features: Features) -> Labelled:
        """Features of rows with their labels and names."""
        names = [self.names[row] for row in rows.tolist()]
        if self.root is not None:
            names = [str(self.root / name) for name in names]
        return Labelled(features, self.labels[rows], np.array(names))


@dataclass(frozen=True, eq=False)
class Task:
    """A data set through one encoder: text, test rows, validation rows, and the source of shots.

    `given` are ready-made draws by their number of shots; others are drawn from the `pool`.
    `reference` is the spec's name of the data set, `notes` belong under every table. Tasks of
    images also have the `encoder`, `spatial_features` of rows, and `prompt_vectors`: those of every
    prompt of a class. `outside` are features of images that belong to none of the classes.
    """

    name: str
    encoder_name: str
    fingerprint: str
    split_hash: str
    class_names: Sequence[str]
    prior: TextPrior | None
    test: Labelled
    validation: Labelled | None
    pool: Pool | None
    given: dict[int, Labelled]
    notes: tuple[str, ...] = ()
    encoder: Encoder | None = None
    spatial_features: Callable[[Labelled], NDArray[Any]] | None = None
    prompt_vectors: Callable[[], dict[str, Features]] | None = None
    reference: str = ""
    outside: Features | None = None

    @cached_property
    def content(self) -> str:
        """The hash of what all draws share: the features of the test rows, and the text."""
        if self.prior is None:
            return digest(self.test)
        return digest(self.test, Labelled(self.prior.vectors, np.array(self.prior.class_names)))

    def seeds(self, shots: int, seeds: Sequence[int]) -> Sequence[int]:
        """The seeds that give different draws: a ready-made draw exists only once."""
        return seeds[:1] if shots in self.given or self.pool is None else seeds

    def draw(self, shots: int, seed: int) -> Drawn:
        """The shots of a draw."""
        if shots in self.given:
            return Drawn(self.given[shots], None, "ready-made")
        if self.pool is None:
            known = ", ".join(map(str, sorted(self.given))) or "none"
            raise ProtocolError(f"{self.name!r} has no draw of {shots} shots (it has {known}).")
        pool = self.pool
        rows, spare = pool.draw(shots, seed)
        unused = None
        if self.validation is None and len(spare):
            unused = pool.labelled(spare, pool.queries(spare))
        features, views = pool.keys(rows), None
        if features.ndim == 3:
            views, means = features, features.mean(1)
            features = means / np.linalg.norm(means, axis=1, keepdims=True)
        return Drawn(pool.labelled(rows, features), unused, f"seed {seed}", views)


def digest(*parts: Labelled | None) -> str:
    """The hash of features and labels, because files of the same names may hold other images."""
    contents = (
        "" if part is None else sha256(part.features.tobytes()) + "\n".join(map(str, part.labels))
        for part in parts
    )
    return sha256("\n\n".join(contents).encode())


def spare_rows(
    labels: Sequence[Any], names: Sequence[Any], draw: Draw, per_class: int = SPARE_SHOTS
) -> RowNumbers:
    """Training rows that serve as validation rows: some of each class, none of them drawn.

    `labels` and `names` are those that `draw` was made of.
    """
    # Fewer shots are a subset of more: the rows that a longer draw adds are as random as the shots.
    longer = draw_shots(labels, names, draw.shots + per_class, draw.seed)
    rows: RowNumbers = np.setdiff1d(longer.indices, draw.indices)
    return rows
