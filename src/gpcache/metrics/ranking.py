"""How well a score orders rows: known images above foreign ones, right answers above wrong ones."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from gpcache.errors import DataError
from gpcache.metrics.checks import Floats, floats, outcomes
from gpcache.support.checks import share

# What rounding may add to a share of whole rows, such as 0.95 · 20 = 19.
_ROUNDING = 1e-12


def auroc(scores: ArrayLike, positive: ArrayLike) -> float:
    """The chance that a positive row scores above a negative one; a tie counts as half.

    scores (n,): higher means positive; positive (n,): which rows are.
    """
    inside, outside = _by_kind(scores, positive)
    outside = np.sort(outside)
    below = np.searchsorted(outside, inside, side="left")
    not_above = np.searchsorted(outside, inside, side="right")
    return float((below + not_above).sum() / (2 * len(inside) * len(outside)))


def fpr_at_tpr(scores: ArrayLike, positive: ArrayLike, *, tpr: float = 0.95) -> float:
    """The false positive rate at the highest threshold with a true positive rate of `tpr`.

    scores (n,): higher means positive; positive (n,): which rows are. Rows at the threshold, and
    all that tie with them, count as positive answers.
    """
    share("tpr", tpr, closed=True)
    inside, outside = _by_kind(scores, positive)
    needed = max(1, math.ceil(tpr * len(inside) * (1 - _ROUNDING)))
    threshold = np.sort(inside)[len(inside) - needed]
    return float(np.mean(outside >= threshold))


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Coverage (n,) 1/n…1 and the risk (n,), the share of errors among the answers that are kept.

    The most confident are kept first. Where confidences are equal the risk is the expected one over
    their orders, because the order means nothing.
    """
    values = floats(confidence, "confidence", "n")
    right = outcomes(correct, "correct", len(values))
    order = np.argsort(-values, kind="stable")
    errors = np.cumsum(~right[order])
    # The last of each run of equal confidences; between them errors come at an even rate. Compared,
    # not subtracted: ∞ − ∞ is no number.
    ranked = values[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    kept = np.arange(1, len(values) + 1)
    expected = np.interp(kept, np.append(0, ends + 1), np.append(0, errors[ends]))
    return kept / len(values), expected / kept


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk–coverage curve: the mean risk over all coverages; lower is better."""
    return float(risk_coverage(confidence, correct)[1].mean())


def accuracy_at_coverage(confidence: ArrayLike, correct: ArrayLike, coverage: float) -> float:
    """Accuracy of the most confident share `coverage` of the answers, rounded up to whole rows."""
    share("coverage", coverage, closed=True)
    _, risk = risk_coverage(confidence, correct)
    kept = max(1, math.ceil((coverage - _ROUNDING) * len(risk)))
    return float(1 - risk[kept - 1])


def _by_kind(scores: ArrayLike, positive: ArrayLike) -> tuple[Floats, Floats]:
    """The scores of the positive rows and of the negative ones; both must exist."""
    values = floats(scores, "scores", "n")
    is_positive = outcomes(positive, "positive", len(values))
    if is_positive.all() or not is_positive.any():
        kind = "positive" if is_positive.all() else "negative"
        raise DataError(f"positive must hold rows of both kinds, but all {len(values)} are {kind}.")
    return values[is_positive], values[~is_positive]
