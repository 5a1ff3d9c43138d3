"""The rows that an audit reads, and its findings by kind, the most serious first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Kind = Literal["leak", "label", "duplicate", "near-duplicate", "look", "harmful", "outlier"]

# In the order in which they should be fixed.
KINDS: tuple[Kind, ...] = get_args(Kind)
# Findings that are almost certain; the other kinds are worth a look.
FAULTS: tuple[Kind, ...] = ("leak", "label", "duplicate", "near-duplicate")


@dataclass(frozen=True)
class Finding:
    """A suspicion about one row, in a sentence.

    `score` ranks findings of one kind: the probability that a label is wrong, the cosine of copies,
    the log-likelihood that the other rows gain from a removal, the deviations of an outlier.
    `probability` is that of the suggestion, if there is one.
    """

    kind: Kind
    row: int
    score: float
    suggestion: Any | None = None
    other: int | None = None
    sentence: str = ""
    probability: float | None = None


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """The labelled rows: unit features (n, d), labels, groups, hashes, names and row numbers.

    `pictures` are small grey pictures of the images, if there are any.
    """

    features: Tensor
    labels: NDArray[Any]
    groups: list[Hashable]
    hashes: list[Hashable]
    names: list[str]
    numbers: list[int]
    pictures: list[NDArray[np.uint8]] | None = None

    def first_of_content(self, *, by_label: bool = False) -> list[int]:
        """The first row of each content hash (and label), and all rows without a hash."""
        first: dict[Hashable, int] = {}
        labels = self.labels.tolist() if by_label else [None] * len(self.hashes)
        for row, key in enumerate(self.hashes):
            first.setdefault(("row", row) if key is None else (key, labels[row]), row)
        return list(first.values())

    def part(self, rows: Sequence[int]) -> LabelledRows:
        """Some of the rows, without their pictures."""
        columns: dict[str, list[Any]] = {
            name: [getattr(self, name)[row] for row in rows]
            for name in ("groups", "hashes", "names", "numbers")
        }
        features, labels = self.features[rows], self.labels[rows]
        return replace(self, features=features, labels=labels, pictures=None, **columns)
