"""The rows that an audit reads, and its findings by kind, the most serious first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gpcache.model.training_images import Example

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


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by kind, the most serious first."""
    return sorted(findings, key=lambda one: (KINDS.index(one.kind), -one.score, one.row))


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Labelled images: unit features (n, d), examples, and their row numbers in the audit.

    `pictures` are small grey pictures of the images, if there are any.
    """

    features: Tensor
    examples: Sequence[Example]
    numbers: Sequence[int]
    pictures: Sequence[NDArray[np.uint8]] | None = None

    def first_of_content(self, *, by_label: bool = False) -> list[int]:
        """The first row of each content hash (and label)."""
        first: dict[tuple[str, str | None], int] = {}
        for row, example in enumerate(self.examples):
            first.setdefault((example.hash, example.label if by_label else None), row)
        return list(first.values())

    def part(self, rows: Sequence[int]) -> LabelledRows:
        """Some of the rows, without their pictures."""
        examples = [self.examples[row] for row in rows]
        return LabelledRows(self.features[rows], examples, [self.numbers[row] for row in rows])
