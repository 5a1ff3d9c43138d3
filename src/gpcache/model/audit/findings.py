"""What an audit can find: the kinds of findings, the gravest first, each in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["leak", "label", "duplicate", "near-duplicate", "look", "harmful", "outlier"]

# What is to be mended first comes first.
KINDS: tuple[Kind, ...] = get_args(Kind)
# What is wrong for certain, or nearly so; the other kinds are worth a look.
FAULTS: tuple[Kind, ...] = ("leak", "label", "duplicate", "near-duplicate")


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
