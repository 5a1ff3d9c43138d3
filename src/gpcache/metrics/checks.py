"""What every metric asks of its input, and the one sentence where it does not hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpcache.errors import DataError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

# Wide enough for probabilities that were computed in half precision.
_SUM_TOLERANCE = 1e-3


def numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    """An array of real numbers of any shape."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"{name} must be an array, but its rows differ in length.") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} must be real numbers, got dtype {array.dtype}.")
    return array


def row_of_numbers(values: ArrayLike, name: str) -> Floats:
    """Numbers (n,), n at least 1 and none of them NaN."""
    array = numbers(values, name).astype(np.float64, copy=False)
    if array.ndim != 1 or not array.size:
        raise DataError(f"{name} must be (n,) with n at least 1, got shape {array.shape}.")
    bad = np.flatnonzero(np.isnan(array))
    if bad.size:
        raise DataError(f"{name} must not be NaN, but row {bad[0]} is.")
    return array


def outcomes(values: ArrayLike, name: str, n: int) -> Booleans:
    """Yes or no (n,), as booleans or as 0 and 1."""
    array = numbers(values, name)
    if array.shape != (n,):
        raise DataError(f"{name} must be {n} outcomes, one per row, got shape {array.shape}.")
    bad = np.flatnonzero((array != 0) & (array != 1))
    if bad.size:
        raise DataError(f"{name} must be true or false, but row {bad[0]} is {array[bad[0]]}.")
    return array.astype(bool)


def scores_of_classes(scores: ArrayLike, name: str) -> Floats:
    """Scores (n, c), none of them NaN."""
    array = numbers(scores, name)
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{name} must be (n, c) with n and c at least 1, got shape {array.shape}.")
    array = array.astype(np.float64, copy=False)
    bad = np.flatnonzero(np.isnan(array).any(axis=1))
    if bad.size:
        raise DataError(f"{name} must not be NaN, but row {bad[0]} has NaN.")
    return array


def distributions(probabilities: ArrayLike) -> Floats:
    """Probabilities (n, c) whose rows sum to one."""
    array = scores_of_classes(probabilities, "probabilities")
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


def class_numbers(labels: ArrayLike, scores: Floats) -> Integers:
    """Labels (n,) in 0…c−1 for scores (n, c)."""
    n, c = scores.shape
    array = numbers(labels, "labels")
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise DataError(
            f"labels must be {n} integers, one per row, got {array.dtype} of shape {array.shape}."
        )
    bad = np.flatnonzero((array < 0) | (array >= c))
    if bad.size:
        raise DataError(f"labels must lie in 0…{c - 1}, but row {bad[0]} has {array[bad[0]]}.")
    return array.astype(np.int64, copy=False)


def count(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise DataError(f"{name} must be an integer of at least 1, got {value!r}.")
    return int(value)


def share(name: str, value: float, *, closed: bool = False) -> None:
    """A number between 0 and 1; `closed` lets both ends in."""
    if not (0 <= value <= 1 if closed else 0 < value < 1):
        raise DataError(f"{name} must lie between 0 and 1, got {value!r}.")
