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
    """Per bin of confidence: mean confidence, accuracy (both NaN in an empty bin), row count."""

    confidence: Floats
    accuracy: Floats
    count: Integers


def accuracy(scores: ArrayLike, labels: ArrayLike) -> float:
    """Share of rows whose highest score is at the label; the first of equal scores counts.

    scores (n, c): logits or probabilities; labels (n,): integers in 0…c−1.
    """
    values = floats(scores, "scores", "n", "c")
    return float(np.mean(values.argmax(axis=1) == class_numbers(labels, values)))


def wilson_interval(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion: sound at small n and near 0 or 1."""
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
    """Mean negative log-likelihood in nats; probabilities (n, c), labels (n,).

    A probability that underflowed to zero counts as the smallest normal number of its dtype, so
    that one row costs much, but not everything.
    """
    values = distributions(probabilities)
    targets = class_numbers(labels, values)
    given = np.asarray(probabilities).dtype
    floor = float(np.finfo(given if given.kind == "f" else np.float64).tiny)
    at_label = values[np.arange(len(values)), targets]
    return float(np.mean(-np.log(np.maximum(at_label, floor))))


def ece(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15, scheme: Binning = "width"
) -> float:
    """Expected calibration error as a fraction in [0, 1]; probabilities (n, c), labels (n,).

    The mean over rows of |accuracy − confidence| of the row's bin; `reliability` tells the bins.
    """
    table = reliability(probabilities, labels, bins=bins, scheme=scheme)
    filled = table.count > 0
    gaps = np.abs(table.accuracy[filled] - table.confidence[filled])
    return float(np.average(gaps, weights=table.count[filled]))


def reliability(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15, scheme: Binning = "width"
) -> Reliability:
    """Accuracy against confidence in bins, from low to high; probabilities (n, c), labels (n,).

    scheme="width": bins (i/bins, (i+1)/bins]. scheme="mass": edges at the quantiles of the
    confidences, so that bins hold n/bins rows; rows of equal confidence share a bin, because
    their order means nothing.
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
    """The mean ECE that a perfectly calibrated model with these confidences would score.

    Each of n_draws times, every row of probabilities (n, c) is right with the probability that it
    claims. An ECE near this figure is what so few rows show of no fault at all.
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
