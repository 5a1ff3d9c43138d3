"""Checks that every metric makes on its arrays; each failure is one sentence."""

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
    """An array of real numbers of any shape, without NaN."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"{name} must be an array, but its rows differ in length.") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} must be real numbers, got dtype {array.dtype}.")
    if np.isnan(array).any():
        row = np.argwhere(np.isnan(array))[0, 0] if array.ndim else 0
        raise DataError(f"{name} must not be NaN, but row {row} has NaN.")
    return array


def floats(values: ArrayLike, name: str, *axes: str, may_be_empty: str = "") -> Floats:
    """Numbers of as many axes as are named, for example "n" and "c", in float64."""
    array = numbers(values, name)
    require_shape(array, name, *axes, may_be_empty=may_be_empty)
    return array.astype(np.float64, copy=False)


def require_shape(array: NDArray[Any], name: str, *axes: str, may_be_empty: str = "") -> None:
    """Refuse another number of axes, or an axis of length zero except `may_be_empty`."""
    filled = [axis for axis in axes if axis != may_be_empty]
    lengths = [n for n, axis in zip(array.shape, axes, strict=False) if axis in filled]
    if array.ndim != len(axes) or 0 in lengths:
        shape = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
        raise DataError(
            f"{name} must be {shape} with {' and '.join(filled)} at least 1, "
            f"got shape {array.shape}."
        )


def outcomes(values: ArrayLike, name: str, n: int) -> Booleans:
    """Yes or no (n,), as booleans or as 0 and 1."""
    array = numbers(values, name)
    if array.shape != (n,):
        raise DataError(f"{name} must be {n} outcomes, one per row, got shape {array.shape}.")
    bad = np.flatnonzero((array != 0) & (array != 1))
    if bad.size:
        raise DataError(f"{name} must be true or false, but row {bad[0]} is {array[bad[0]]}.")
    return array.astype(bool)


def distributions(probabilities: ArrayLike) -> Floats:
    """Probabilities (n, c) whose rows sum to one."""
    array = floats(probabilities, "probabilities", "n", "c")
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
