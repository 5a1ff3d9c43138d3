"""The kinds of findings of an audit, the most serious first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

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
    suggestion: Any | None
    other: int | None
    sentence: str
    probability: float | None = None
