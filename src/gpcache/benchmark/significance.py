"""Significance of differences between methods: draws, paired bootstrap, mean ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, studentized_range

from gpcache.errors import DataError

REPEATS = 2000
LEVEL = 0.95


class Difference(NamedTuple):
    """A mean difference, its interval, and the share of resamples on the other side of zero, ×2."""

    mean: float
    low: float
    high: float
    p_value: float


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; the latter is NaN for one value."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return float(np.mean(values)), deviation


def paired_bootstrap(
    first: Sequence[NDArray[Any]],
    second: Sequence[NDArray[Any]],
    *,
    repeats: int = REPEATS,
    seed: int = 0,
) -> Difference:
    """The mean over data sets of accuracy(first) − accuracy(second), both on the same test images.

    Each array (n,) says which images of a data set were predicted correctly, or in which share of
    the draws. Images are resampled, the same ones for both methods and all draws, and every data
    set has the same weight. The interval is that of other test images, not of other data sets.
    """
    if not first or [len(rows) for rows in first] != [len(rows) for rows in second]:
        raise DataError("A paired bootstrap needs both methods on the same test rows.")
    generator = np.random.default_rng(seed)
    means = np.zeros(repeats)
    observed = 0.0
    for one, other in zip(first, second, strict=True):
        # Images with the same difference are alike: only their counts need to be resampled.
        gaps = np.round(one.astype(np.float64) - other, 9)
        values, counts = np.unique(gaps, return_counts=True)
        drawn = generator.multinomial(len(gaps), counts / len(gaps), size=repeats)
        means += drawn @ values / len(gaps) / len(first)
        observed += float(gaps.mean()) / len(first)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    tail = min(float(np.mean(means <= 0)), float(np.mean(means >= 0)))
    return Difference(observed, float(low), float(high), min(1.0, 2 * tail))


def mean_ranks(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean ranks (m,) by scores (m, data sets), 1 the highest; equal scores share a rank."""
    ranks: NDArray[np.float64] = rankdata(-scores, axis=0).mean(axis=1)
    return ranks


def critical_difference(methods: int, datasets: int) -> float:
    """Mean ranks closer than this do not differ at the 5 % level (Nemenyi; Demšar, 2006)."""
    quantile = float(studentized_range.ppf(LEVEL, methods, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * datasets))


def alike(ranks: NDArray[np.float64], difference: float) -> list[tuple[int, int]]:
    """The longest runs (first, last) of sorted mean ranks (m,) that lie within `difference`."""
    runs: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = int(np.flatnonzero(ranks <= ranks[first] + difference)[-1])
        if last > first and (not runs or last > runs[-1][1]):
            runs.append((first, last))
    return runs
