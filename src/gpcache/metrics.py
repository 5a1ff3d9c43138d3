"""How good predictions and their probabilities are: pure functions of arrays."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpcache.errors import DataError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Binning = Literal["width", "mass"]

# Wide enough for probabilities that were computed in half precision.
_SUM_TOLERANCE = 1e-3
# Resampled rows held at once by the bootstrap: 32 MB of indices.
_BOOTSTRAP_BLOCK = 2**22


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
    values = _check_scores(scores, "scores")
    return float(np.mean(values.argmax(axis=1) == _check_labels(labels, values)))


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean negative log-likelihood in nats; probabilities (n, c), labels (n,).

    A probability that underflowed to zero counts as the smallest normal number of its dtype, so
    that one row costs much, but not everything.
    """
    values = _check_probabilities(probabilities)
    targets = _check_labels(labels, values)
    given = np.asarray(probabilities).dtype
    floor = float(np.finfo(given if given.kind == "f" else np.float64).tiny)
    at_label = values[np.arange(len(values)), targets]
    return float(np.mean(-np.log(np.maximum(at_label, floor))))


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean squared distance to the one-hot label, in [0, 2]; probabilities (n, c), labels (n,)."""
    errors = _check_probabilities(probabilities).copy()
    errors[np.arange(len(errors)), _check_labels(labels, errors)] -= 1.0
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
    values = _check_probabilities(probabilities)
    targets = _check_labels(labels, values)
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise DataError(f"bins must be an integer of at least 1, got {bins!r}.")
    confidence = np.minimum(values.max(axis=1), 1.0)  # rounding may pass 1
    correct = values.argmax(axis=1) == targets
    index = np.searchsorted(_inner_edges(confidence, int(bins), scheme), confidence, side="left")
    count = np.bincount(index, minlength=bins)
    divisor = np.where(count > 0, count, np.nan)
    return Reliability(
        confidence=np.bincount(index, weights=confidence, minlength=bins) / divisor,
        accuracy=np.bincount(index, weights=correct, minlength=bins) / divisor,
        count=count,
    )


def _inner_edges(confidence: Floats, bins: int, scheme: Binning) -> Floats:
    """The upper edges of all bins but the last, each belonging to the bin below it."""
    steps = np.arange(1, bins)
    if scheme == "width":
        return steps / bins
    if scheme == "mass":
        ranks = -(-len(confidence) * steps // bins)  # n·i/bins, rounded up
        return np.sort(confidence)[ranks - 1]
    raise DataError(f"scheme must be 'width' or 'mass', got {scheme!r}.")


def bootstrap_interval(
    values: ArrayLike, *, level: float = 0.95, repeats: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of per-row values (n,), such as correct or not."""
    rows = _check_numbers(values, "values").astype(np.float64)
    if rows.ndim != 1 or rows.size == 0 or not np.isfinite(rows).all():
        raise DataError(f"values must be a row of finite numbers, got shape {rows.shape}.")
    _check_level(level)
    if repeats < 1:
        raise DataError(f"repeats must be at least 1, got {repeats}.")
    generator = np.random.default_rng(seed)
    means = np.empty(repeats)
    step = max(1, _BOOTSTRAP_BLOCK // rows.size)
    for start in range(0, repeats, step):
        block = means[start : start + step]
        block[:] = rows[generator.integers(rows.size, size=(block.size, rows.size))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson_interval(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion: sound at small n and near 0 or 1."""
    _check_level(level)
    if n < 1 or not 0 <= successes <= n:
        raise DataError(f"successes must lie in 0…n with n at least 1, got {successes} of {n}.")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / n
    centre = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    scale = 1 + z**2 / n
    # Clipped, because rounding may pass the exact bounds 0 and 1 by one digit.
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def _check_numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"{name} must be an array, but its rows differ in length.") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} must be real numbers, got dtype {array.dtype}.")
    return array


def _check_scores(scores: ArrayLike, name: str) -> Floats:
    array = _check_numbers(scores, name)
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{name} must be (n, c) with n and c at least 1, got shape {array.shape}.")
    array = array.astype(np.float64, copy=False)
    bad = np.flatnonzero(np.isnan(array).any(axis=1))
    if bad.size:
        raise DataError(f"{name} must not be NaN, but row {bad[0]} has NaN.")
    return array


def _check_probabilities(probabilities: ArrayLike) -> Floats:
    array = _check_scores(probabilities, "probabilities")
    bad = np.flatnonzero((array < 0).any(axis=1))
    if bad.size:
        raise DataError(f"probabilities must not be negative, but row {bad[0]} is (logits?).")
    sums = array.sum(axis=1)
    bad = np.flatnonzero(np.abs(sums - 1) > _SUM_TOLERANCE)
    if bad.size:
        raise DataError(
            f"probabilities must sum to 1 in each row, but row {bad[0]} sums to "
            f"{sums[bad[0]]:.6g} (logits?)."
        )
    return array


def _check_labels(labels: ArrayLike, scores: Floats) -> Integers:
    n, c = scores.shape
    array = _check_numbers(labels, "labels")
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise DataError(
            f"labels must be {n} integers, one per row, got {array.dtype} of shape {array.shape}."
        )
    bad = np.flatnonzero((array < 0) | (array >= c))
    if bad.size:
        raise DataError(f"labels must lie in 0…{c - 1}, but row {bad[0]} has {array[bad[0]]}.")
    return array.astype(np.int64, copy=False)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise DataError(f"level must lie between 0 and 1, got {level!r}.")
