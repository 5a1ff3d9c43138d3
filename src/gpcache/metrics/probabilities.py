"""Accuracy, likelihood and calibration of predicted probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from gpcache.errors import DataError
from gpcache.metrics import checks
from gpcache.metrics.checks import Floats, Integers

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
    values = checks.scores_of_classes(scores, "scores")
    return float(np.mean(values.argmax(axis=1) == checks.class_numbers(labels, values)))


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean negative log-likelihood in nats; probabilities (n, c), labels (n,).

    A probability that underflowed to zero counts as the smallest normal number of its dtype, so
    that one row costs much, but not everything.
    """
    values = checks.distributions(probabilities)
    targets = checks.class_numbers(labels, values)
    given = np.asarray(probabilities).dtype
    floor = float(np.finfo(given if given.kind == "f" else np.float64).tiny)
    at_label = values[np.arange(len(values)), targets]
    return float(np.mean(-np.log(np.maximum(at_label, floor))))


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean squared distance to the one-hot label, in [0, 2]; probabilities (n, c), labels (n,)."""
    errors = checks.distributions(probabilities).copy()
    errors[np.arange(len(errors)), checks.class_numbers(labels, errors)] -= 1.0
    return float(np.mean(np.sum(errors**2, axis=1)))


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
    values = checks.distributions(probabilities)
    targets = checks.class_numbers(labels, values)
    bins = checks.count("bins", bins)
    confidence = _confidence(values)
    correct = values.argmax(axis=1) == targets
    index = np.searchsorted(_inner_edges(confidence, bins, scheme), confidence, side="left")
    count = np.bincount(index, minlength=bins)
    divisor = np.where(count > 0, count, np.nan)
    return Reliability(
        confidence=np.bincount(index, weights=confidence, minlength=bins) / divisor,
        accuracy=np.bincount(index, weights=correct, minlength=bins) / divisor,
        count=count,
    )


def classwise_ece(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> float:
    """The mean over classes of the calibration error of that class's probability.

    Per class, rows fall into bins (i/bins, (i+1)/bins] of its probability, and its share of the
    labels is compared with its mean probability; probabilities (n, c), labels (n,).
    """
    values = checks.distributions(probabilities)
    targets = checks.class_numbers(labels, values)
    bins = checks.count("bins", bins)
    n, c = values.shape
    index = np.searchsorted(np.arange(1, bins) / bins, values, side="left")
    cell = (index + bins * np.arange(c)).ravel()
    gaps = values.copy()
    gaps[np.arange(n), targets] -= 1.0
    summed = np.bincount(cell, weights=gaps.ravel(), minlength=bins * c)
    return float(np.abs(summed).sum() / (n * c))


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
    confidence = _confidence(checks.distributions(probabilities))
    bins, n_draws = checks.count("bins", bins), checks.count("n_draws", n_draws)
    index = np.searchsorted(_inner_edges(confidence, bins, scheme), confidence, side="left")
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


def _inner_edges(confidence: Floats, bins: int, scheme: Binning) -> Floats:
    """The upper edges of all bins but the last, each belonging to the bin below it."""
    steps = np.arange(1, bins)
    if scheme == "width":
        return steps / bins
    if scheme == "mass":
        ranks = -(-len(confidence) * steps // bins)  # n·i/bins, rounded up
        return np.sort(confidence)[ranks - 1]
    raise DataError(f"scheme must be 'width' or 'mass', got {scheme!r}.")
