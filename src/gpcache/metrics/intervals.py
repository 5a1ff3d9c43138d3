"""How sure a figure is: intervals by the bootstrap over rows, and Wilson's for a proportion."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from gpcache.errors import DataError
from gpcache.metrics import checks
from gpcache.metrics.checks import Floats

# Resampled rows held at once by the bootstrap: 32 MB of indices.
_BOOTSTRAP_BLOCK = 2**22


def bootstrap_interval(
    values: ArrayLike, *, level: float = 0.95, repeats: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of per-row values (n,), such as correct or not."""
    rows = checks.numbers(values, "values").astype(np.float64)
    if rows.ndim != 1 or rows.size == 0 or not np.isfinite(rows).all():
        raise DataError(f"values must be a row of finite numbers, got shape {rows.shape}.")
    checks.share("level", level)
    checks.count("repeats", repeats)
    generator = np.random.default_rng(seed)
    means = np.empty(repeats)
    step = max(1, _BOOTSTRAP_BLOCK // rows.size)
    for start in range(0, repeats, step):
        block = means[start : start + step]
        block[:] = rows[generator.integers(rows.size, size=(block.size, rows.size))].mean(axis=1)
    return _percentiles(means, level)


def bootstrap_metric(
    metric: Callable[..., float],
    *arrays: ArrayLike,
    level: float = 0.95,
    repeats: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of metric(*arrays): rows (n, …) of all arrays go together.

    `bootstrap_metric(ece, probabilities, labels)`. The metric must be defined on every resample:
    one that needs both outcomes fails where a few rows hold one of them once.
    """
    columns = [checks.numbers(values, f"array {i}") for i, values in enumerate(arrays)]
    lengths = {column.shape[0] if column.ndim else 0 for column in columns}
    if len(lengths) != 1 or 0 in lengths:
        shapes = ", ".join(str(column.shape) for column in columns) or "none"
        raise DataError(f"The arrays must have the same number of rows, at least 1; got {shapes}.")
    checks.share("level", level)
    checks.count("repeats", repeats)
    n = lengths.pop()
    generator = np.random.default_rng(seed)
    drawn = (generator.integers(n, size=n) for _ in range(repeats))
    found = np.array([metric(*(column[rows] for column in columns)) for rows in drawn])
    return _percentiles(found, level)


def _percentiles(found: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson_interval(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion: sound at small n and near 0 or 1."""
    checks.share("level", level)
    if n < 1 or not 0 <= successes <= n:
        raise DataError(f"successes must lie in 0…n with n at least 1, got {successes} of {n}.")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / n
    centre = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    scale = 1 + z**2 / n
    # Clipped, because rounding may pass the exact bounds 0 and 1 by one digit.
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
