"""Accuracy with its interval, likelihood and calibration of predicted probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from gpcache.errors import DataError
from gpcache.metrics.checks import Floats, Integers, class_numbers, distributions, floats
from gpcache.support.checks import share, whole

Binning = Literal["width", "mass"]

# Simulated outcomes held at once: 32 MB of random numbers.
_DRAWN_BLOCK = 2**22


@dataclass(frozen=True)
class Reliability:
    """Accuracy against confidence, bin by bin.

    Parameters
    ----------
    confidence : array of shape (bins,)
        Mean confidence of each bin; NaN in an empty bin.
    accuracy : array of shape (bins,)
        Accuracy of each bin; NaN in an empty bin.
    count : array of shape (bins,)
        Number of rows in each bin.

    Examples
    --------
    >>> from gpcache.metrics import reliability
    >>> table = reliability([[0.9, 0.1], [0.8, 0.2]], [0, 1], bins=2)
    >>> table.count.tolist(), table.accuracy.tolist()
    ([0, 2], [nan, 0.5])
    """

    confidence: Floats
    accuracy: Floats
    count: Integers


def accuracy(scores: ArrayLike, labels: ArrayLike) -> float:
    """Compute the share of rows whose highest score is at the label.

    Parameters
    ----------
    scores : array of shape (n, c)
        Logits or probabilities. The first of equal scores counts.
    labels : array of shape (n,)
        Class numbers from 0 to c - 1.

    Returns
    -------
    float
        The accuracy.

    Raises
    ------
    DataError
        If the shapes do not match or a label is out of range.

    Examples
    --------
    >>> from gpcache.metrics import accuracy
    >>> accuracy([[0.9, 0.1], [0.4, 0.6]], [0, 0])
    0.5
    """
    values = floats(scores, "scores", "n", "c")
    return float(np.mean(values.argmax(axis=1) == class_numbers(labels, values)))


def wilson_interval(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Compute the Wilson score interval of a proportion.

    It is reliable for small n and near 0 or 1.

    Parameters
    ----------
    successes : int
        Number of successes.
    n : int
        Number of trials.
    level : float, default=0.95
        Confidence level.

    Returns
    -------
    tuple of float
        Lower and upper bound.

    Raises
    ------
    DataError
        If `successes` is not between 0 and `n`.

    Examples
    --------
    >>> from gpcache.metrics import wilson_interval
    >>> low, high = wilson_interval(9, 10)
    >>> round(low, 2), round(high, 2)
    (0.6, 0.98)
    """
    share("level", level)
    if n < 1 or not 0 <= successes <= n:
        raise DataError(f"successes must lie in 0…n with n at least 1, got {successes} of {n}.")
    z = NormalDist().inv_cdf((1 + level) / 2)
    rate = successes / n
    centre = rate + z**2 / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + (z / (2 * n)) ** 2)
    scale = 1 + z**2 / n
    # Clipped, because rounding may pass the exact bounds 0 and 1 by one digit.
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Compute the mean negative log-likelihood in nats.

    A probability that underflowed to zero counts as the smallest normal number of its dtype, so
    that one row cannot make the mean infinite.

    Parameters
    ----------
    probabilities : array of shape (n, c)
        Predicted probabilities; each row sums to 1.
    labels : array of shape (n,)
        Class numbers from 0 to c - 1.

    Returns
    -------
    float
        The mean negative log-likelihood.

    Examples
    --------
    >>> from gpcache.metrics import nll
    >>> round(nll([[0.5, 0.5], [1.0, 0.0]], [0, 0]), 3)
    0.347
    """
    values = distributions(probabilities)
    targets = class_numbers(labels, values)
    dtype = np.asarray(probabilities).dtype
    floor = float(np.finfo(dtype if dtype.kind == "f" else np.float64).tiny)
    at_label = values[np.arange(len(values)), targets]
    return float(np.mean(-np.log(np.maximum(at_label, floor))))


def ece(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15, scheme: Binning = "width"
) -> float:
    """Compute the expected calibration error as a fraction from 0 to 1.

    It is the mean over rows of the gap between accuracy and confidence in the row's bin.
    `reliability` returns the bins.

    Parameters
    ----------
    probabilities : array of shape (n, c)
        Predicted probabilities; each row sums to 1.
    labels : array of shape (n,)
        Class numbers from 0 to c - 1.
    bins : int, default=15
        Number of bins of confidence.
    scheme : {"width", "mass"}, default="width"
        Bins of equal width, or bins with equal numbers of rows.

    Returns
    -------
    float
        The expected calibration error.

    Examples
    --------
    >>> from gpcache.metrics import ece
    >>> round(ece([[0.9, 0.1], [0.9, 0.1]], [0, 1]), 2)
    0.4
    """
    table = reliability(probabilities, labels, bins=bins, scheme=scheme)
    filled = table.count > 0
    gaps = np.abs(table.accuracy[filled] - table.confidence[filled])
    return float(np.average(gaps, weights=table.count[filled]))


def reliability(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15, scheme: Binning = "width"
) -> Reliability:
    """Compare accuracy with confidence in bins, from low to high confidence.

    Parameters
    ----------
    probabilities : array of shape (n, c)
        Predicted probabilities; each row sums to 1.
    labels : array of shape (n,)
        Class numbers from 0 to c - 1.
    bins : int, default=15
        Number of bins of confidence.
    scheme : {"width", "mass"}, default="width"
        "width" uses the bins (i/bins, (i+1)/bins]. "mass" puts the edges at the quantiles of the
        confidences; rows of equal confidence share a bin.

    Returns
    -------
    Reliability
        Mean confidence, accuracy and row count of each bin.

    Raises
    ------
    DataError
        If `scheme` is unknown.

    Examples
    --------
    >>> from gpcache.metrics import reliability
    >>> reliability([[0.9, 0.1], [0.6, 0.4]], [0, 1], bins=2).accuracy.tolist()
    [nan, 0.5]
    """
    values = distributions(probabilities)
    targets = class_numbers(labels, values)
    confidence = _confidence(values)
    correct = values.argmax(axis=1) == targets
    index = _bin_numbers(confidence, bins, scheme)
    count = np.bincount(index, minlength=bins)
    divisor = np.where(count > 0, count, np.nan)
    return Reliability(
        confidence=np.bincount(index, weights=confidence, minlength=bins) / divisor,
        accuracy=np.bincount(index, weights=correct, minlength=bins) / divisor,
        count=count,
    )


def expected_ece_if_calibrated(
    probabilities: ArrayLike,
    n_draws: int = 200,
    seed: int = 0,
    *,
    bins: int = 15,
    scheme: Binning = "width",
) -> float:
    """Compute the mean ECE that a perfectly calibrated model with these confidences would score.

    In each of `n_draws` simulations every row is right with the probability that it claims. With
    few rows this value is above zero: an ECE near it is no evidence of miscalibration.

    Parameters
    ----------
    probabilities : array of shape (n, c)
        Predicted probabilities; each row sums to 1.
    n_draws : int, default=200
        Number of simulations.
    seed : int, default=0
        Seed of the simulations.
    bins : int, default=15
        Number of bins of confidence.
    scheme : {"width", "mass"}, default="width"
        Bins of equal width, or bins with equal numbers of rows.

    Returns
    -------
    float
        The expected ECE.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.metrics import expected_ece_if_calibrated
    >>> round(expected_ece_if_calibrated(np.full((10, 2), 0.5)), 2)
    0.12
    """
    confidence = _confidence(distributions(probabilities))
    index = _bin_numbers(confidence, bins, scheme)
    n_draws = whole("n_draws", n_draws, least=1)
    order = np.argsort(index, kind="stable")
    claimed = confidence[order]
    starts = np.flatnonzero(np.diff(index[order], prepend=-1))
    generator = np.random.default_rng(seed)
    n = len(claimed)
    step = max(1, _DRAWN_BLOCK // n)
    total = 0.0
    for start in range(0, n_draws, step):
        right = generator.random((min(step, n_draws - start), n)) < claimed
        total += float(np.abs(np.add.reduceat(right - claimed, starts, axis=1)).sum())
    return total / (n * n_draws)


def _confidence(probabilities: Floats) -> Floats:
    confidence: Floats = np.minimum(probabilities.max(axis=1), 1.0)  # rounding may pass 1
    return confidence


def _bin_numbers(confidence: Floats, bins: int, scheme: Binning) -> Integers:
    """The bin (n,) of each row; a value at an edge belongs to the bin below it."""
    steps = np.arange(1, whole("bins", bins, least=1))
    if scheme == "width":
        edges = steps / bins
    elif scheme == "mass":
        ranks = -(-len(confidence) * steps // bins)  # n·i/bins, rounded up
        edges = np.sort(confidence)[ranks - 1]
    else:
        raise DataError(f"scheme must be 'width' or 'mass', got {scheme!r}.")
    return np.searchsorted(edges, confidence, side="left")
