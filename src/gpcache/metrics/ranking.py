"""How well a score ranks rows: known images above unknown ones, right answers above wrong ones."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from gpcache.errors import DataError
from gpcache.metrics.checks import Floats, floats, outcomes
from gpcache.support.checks import share

# Tolerance for rounding in a share of whole rows, such as 0.95 · 20 = 19.
_ROUNDING = 1e-12


def auroc(scores: ArrayLike, positive: ArrayLike) -> float:
    """Compute the probability that a positive row scores above a negative one.

    A tie counts as half.

    Parameters
    ----------
    scores : array of shape (n,)
        Scores; higher means positive.
    positive : array of shape (n,)
        Which rows are positive.

    Returns
    -------
    float
        Area under the ROC curve.

    Raises
    ------
    DataError
        If all rows are of one kind.

    Examples
    --------
    >>> from gpcache.metrics import auroc
    >>> auroc([0.1, 0.4, 0.8], [False, False, True])
    1.0
    """
    inside, outside = _by_kind(scores, positive)
    outside = np.sort(outside)
    below = np.searchsorted(outside, inside, side="left")
    not_above = np.searchsorted(outside, inside, side="right")
    return float((below + not_above).sum() / (2 * len(inside) * len(outside)))


def fpr_at_tpr(scores: ArrayLike, positive: ArrayLike, *, tpr: float = 0.95) -> float:
    """Compute the false positive rate at the highest threshold that reaches a true positive rate.

    Rows at the threshold, and all that tie with them, count as positive answers.

    Parameters
    ----------
    scores : array of shape (n,)
        Scores; higher means positive.
    positive : array of shape (n,)
        Which rows are positive.
    tpr : float, default=0.95
        True positive rate to reach.

    Returns
    -------
    float
        The false positive rate.

    Examples
    --------
    >>> from gpcache.metrics import fpr_at_tpr
    >>> fpr_at_tpr([0.1, 0.9, 0.5, 0.8], [False, False, True, True])
    0.5
    """
    share("tpr", tpr, closed=True)
    inside, outside = _by_kind(scores, positive)
    needed = max(1, math.ceil(tpr * len(inside) * (1 - _ROUNDING)))
    threshold = np.sort(inside)[len(inside) - needed]
    return float(np.mean(outside >= threshold))


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Compute the risk–coverage curve: the share of errors among the most confident answers.

    The most confident answers are kept first. Where confidences are equal, the risk is the expected
    one over their orders.

    Parameters
    ----------
    confidence : array of shape (n,)
        Confidence of each answer.
    correct : array of shape (n,)
        Which answers are right.

    Returns
    -------
    tuple of arrays of shape (n,)
        Coverage, from 1/n to 1, and the risk at that coverage.

    Examples
    --------
    >>> from gpcache.metrics import risk_coverage
    >>> coverage, risk = risk_coverage([0.9, 0.6], [True, False])
    >>> coverage.tolist(), risk.tolist()
    ([0.5, 1.0], [0.0, 0.5])
    """
    values = floats(confidence, "confidence", "n")
    right = outcomes(correct, "correct", len(values))
    order = np.argsort(-values, kind="stable")
    errors = np.cumsum(~right[order])
    # The last of each run of equal confidences; within a run errors are spread evenly. Compare,
    # do not subtract: ∞ − ∞ is NaN.
    ranked = values[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    n_kept = np.arange(1, len(values) + 1)
    expected = np.interp(n_kept, np.append(0, ends + 1), np.append(0, errors[ends]))
    return n_kept / len(values), expected / n_kept


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Compute the area under the risk–coverage curve, the mean risk over all coverages.

    Lower is better.

    Parameters
    ----------
    confidence : array of shape (n,)
        Confidence of each answer.
    correct : array of shape (n,)
        Which answers are right.

    Returns
    -------
    float
        The area.

    Examples
    --------
    >>> from gpcache.metrics import aurc
    >>> aurc([0.9, 0.6], [True, False])
    0.25
    """
    return float(risk_coverage(confidence, correct)[1].mean())


def accuracy_at_coverage(confidence: ArrayLike, correct: ArrayLike, coverage: float) -> float:
    """Compute the accuracy of the most confident share of the answers.

    Parameters
    ----------
    confidence : array of shape (n,)
        Confidence of each answer.
    correct : array of shape (n,)
        Which answers are right.
    coverage : float
        Share of the answers to keep, rounded up to whole rows.

    Returns
    -------
    float
        The accuracy of the answers that are kept.

    Examples
    --------
    >>> from gpcache.metrics import accuracy_at_coverage
    >>> accuracy_at_coverage([0.9, 0.6], [True, False], 0.5)
    1.0
    """
    share("coverage", coverage, closed=True)
    _, risk = risk_coverage(confidence, correct)
    n_kept = max(1, math.ceil((coverage - _ROUNDING) * len(risk)))
    return float(1 - risk[n_kept - 1])


def _by_kind(scores: ArrayLike, positive: ArrayLike) -> tuple[Floats, Floats]:
    """The scores of the positive rows and of the negative ones; both must exist."""
    values = floats(scores, "scores", "n")
    is_positive = outcomes(positive, "positive", len(values))
    if is_positive.all() or not is_positive.any():
        kind = "positive" if is_positive.all() else "negative"
        raise DataError(f"positive must hold rows of both kinds, but all {len(values)} are {kind}.")
    return values[is_positive], values[~is_positive]
