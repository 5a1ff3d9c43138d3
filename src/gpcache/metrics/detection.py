"""How well a score tells two kinds of rows apart, such as known images from foreign ones."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from gpcache.errors import DataError
from gpcache.metrics import checks
from gpcache.metrics.checks import Floats


def auroc(scores: ArrayLike, positive: ArrayLike) -> float:
    """The chance that a positive row scores above a negative one; a tie counts as half.

    scores (n,): higher means positive; positive (n,): which rows are.
    """
    inside, outside = _parted(scores, positive)
    outside = np.sort(outside)
    below = np.searchsorted(outside, inside, side="left")
    not_above = np.searchsorted(outside, inside, side="right")
    return float((below + not_above).sum() / (2 * len(inside) * len(outside)))


def fpr_at_tpr(scores: ArrayLike, positive: ArrayLike, *, tpr: float = 0.95) -> float:
    """The share of negative rows let in by the highest threshold that lets in `tpr` of the others.

    scores (n,): higher means positive; positive (n,): which rows are. A row at the threshold is let
    in, with all rows that tie with it.
    """
    checks.share("tpr", tpr, closed=True)
    inside, outside = _parted(scores, positive)
    # Rounding must not ask for one row more than 0.95 · 20 = 19.
    needed = max(1, math.ceil(tpr * len(inside) * (1 - 1e-12)))
    threshold = np.sort(inside)[len(inside) - needed]
    return float(np.mean(outside >= threshold))


def _parted(scores: ArrayLike, positive: ArrayLike) -> tuple[Floats, Floats]:
    values = checks.row_of_numbers(scores, "scores")
    is_positive = checks.outcomes(positive, "positive", len(values))
    if is_positive.all() or not is_positive.any():
        kind = "positive" if is_positive.all() else "negative"
        raise DataError(f"positive must hold rows of both kinds, but all {len(values)} are {kind}.")
    return values[is_positive], values[~is_positive]
