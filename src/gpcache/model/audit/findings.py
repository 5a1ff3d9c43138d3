"""What an audit can find: the kinds of findings, the gravest first, each in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["leak", "label", "duplicate", "near-duplicate", "harmful", "outlier"]

# What is to be mended first comes first.
KINDS: tuple[Kind, ...] = ("leak", "label", "duplicate", "near-duplicate", "harmful", "outlier")


@dataclass(frozen=True)
class Finding:
    """One suspicion about the row of this number, in a sentence.

    score ranks findings of one kind: the probability that a label is wrong, the cosine of copies,
    the nats that the other rows gain from a removal, the deviations of an outlier. `probability`
    is that of the suggestion, where there is one.
    """

    kind: Kind
    row: int
    score: float
    suggestion: Any | None
    other: int | None
    sentence: str
    probability: float | None = None
