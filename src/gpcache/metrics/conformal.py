"""Conformal prediction, the pure parts: p-values and sets from nonconformity scores.

A nonconformity score says how badly a label fits a row; higher is worse. If the scores of n
labelled rows and of a new one are exchangeable, the new row's p-value is ≤ ε with probability ≤ ε.
The set of all labels with p > ε misses the true label with probability ≤ ε (Vovk et al., 2005).
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import ArrayLike

from gpcache.errors import DataError
from gpcache.metrics.checks import Booleans, Floats, numbers
from gpcache.support.checks import is_number

# Comparisons held at once: 16 MB of booleans.
_BLOCK = 2**24


def p_values(calibration: ArrayLike, scores: ArrayLike) -> Floats:
    """Compute p-values of nonconformity scores.

    A p-value is (1 + the number of calibration scores at least as high) / (n + 1). The row itself
    counts, and a tie counts as at least as high.

    Parameters
    ----------
    calibration : array of shape (n,)
        Scores of labelled rows.
    scores : array of any shape
        Scores to compare.

    Returns
    -------
    array of the shape of scores
        The p-values.

    Examples
    --------
    >>> from gpcache.metrics.conformal import p_values
    >>> p_values([0.1, 0.2, 0.3], [0.25]).tolist()
    [0.5]
    """
    known, values = np.sort(_calibration_row(calibration)), numbers(scores, "Scores")
    at_least = len(known) - np.searchsorted(known, values, side="left")
    p: Floats = (1 + at_least) / (1 + len(known))
    return p


def class_p_values(calibration: ArrayLike, labels: ArrayLike, scores: ArrayLike) -> Floats:
    """p-values (m, c) of scores (m, c), each class compared only with its own rows.

    calibration (n,) are the scores of rows with class numbers `labels` (n,). A class of k rows has
    p-values in steps of 1/(k + 1).
    """
    known, values = _calibration_row(calibration), numbers(scores, "Scores")
    classes = np.asarray(labels, dtype=np.int64)
    if classes.shape != known.shape:
        raise DataError(f"There are {len(known)} calibration scores and {classes.size} labels.")
    member = (classes[:, None] == np.arange(values.shape[1])).astype(np.float64)
    at_least = np.empty_like(values)
    step = max(1, _BLOCK // max(1, len(known)))
    for start in range(0, len(values), step):
        block = slice(start, start + step)
        at_least[block] = (known >= values[block][:, classes]) @ member
    p: Floats = (1 + at_least) / (1 + member.sum(0))
    return p


def uneven_classes(
    calibration: ArrayLike, labels: ArrayLike, error: float
) -> list[tuple[int, int, int]]:
    """Classes whose rows are missed far more often than at the rate `error`, worst first.

    Each is its number, how many of its rows their own sets hold, and how many rows it has.

    calibration (n,) are the scores of rows with class numbers `labels` (n,). Each row is compared
    with all others. A class is listed if its number of misses is improbable at the rate `error`: a
    one-sided binomial test at 5 %, divided by the number of classes.
    """
    known, classes = _calibration_row(calibration), np.asarray(labels, dtype=np.int64)
    # The row itself counts as one that scores at least as high.
    at_least = len(known) - np.searchsorted(np.sort(known), known, side="left")
    missed = ~in_set(at_least / max(1, len(known)), error)
    rows = np.bincount(classes)
    misses = np.bincount(classes, weights=missed)
    from scipy.stats import binom  # half a second that `gpcache predict` need not wait

    chance = binom.sf(misses - 1, rows, error)
    listed = np.flatnonzero((rows > 0) & (chance < 0.05 / max(1, (rows > 0).sum())))
    worst = listed[np.argsort(chance[listed], kind="stable")].tolist()
    return [(one, int(rows[one] - misses[one]), int(rows[one])) for one in worst]


def in_set(p: ArrayLike, error: float) -> Booleans:
    """Which labels are in the set that misses the true label with probability `error` at most."""
    return np.asarray(p, dtype=np.float64) > check_error(error)


def least_rows(error: float) -> int:
    """Compute how many calibration rows it takes before any label can be ruled out.

    The p-value of the worst possible label is 1/(n + 1), so n must be at least 1/ε − 1.

    Parameters
    ----------
    error : float
        Error rate ε, between 0 and 1.

    Returns
    -------
    int
        The number of rows.

    Raises
    ------
    DataError
        If `error` is not between 0 and 1.

    Examples
    --------
    >>> from gpcache.metrics import least_rows
    >>> least_rows(0.1), least_rows(0.05)
    (9, 19)
    """
    n = max(0, round(1 / max(check_error(error), sys.float_info.min)) - 1)  # never infinite
    return n if 1 / (n + 1) <= error else n + 1


def why_everything(n: int, error: float) -> str:
    """A sentence if n rows are too few to rule out any label at this error; otherwise empty."""
    needed = least_rows(error)
    if n >= needed:
        return ""
    return (
        f"Every set contains every class: {n} labelled rows cannot rule out any class at an error "
        f"of {error:g}, which needs {needed:.12g} or more."
    )


def lac_scores(probabilities: ArrayLike) -> Floats:
    """1 − p of every label (m, c); gives the smallest sets on average (Sadinle et al., 2019)."""
    scores: Floats = 1 - np.asarray(probabilities, dtype=np.float64)
    return scores


def check_error(error: float) -> float:
    """An error rate between 0 and 1."""
    if not is_number(error) or not 0 < error < 1:
        raise DataError(f"error must be a rate between 0 and 1, such as 0.1, got {error!r}.")
    return float(error)


def _calibration_row(calibration: ArrayLike) -> Floats:
    known = numbers(calibration, "Calibration scores").astype(np.float64)
    if known.ndim != 1:
        raise DataError(f"Calibration scores must be (n,), got shape {known.shape}.")
    return known
