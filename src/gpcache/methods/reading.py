"""Turns user input into tensors: rows of features and similarity projections, also saved ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.feature_maps import Projection, ResidualProjection
from gpcache.gp.kernels import unit_rows
from gpcache.similarity import ProjectionFacts, SimilarityProjection
from gpcache.support.checks import to_numpy


def unit_tensor(
    array: NDArray[Any], name: str, device: torch.device, dtype: torch.dtype, *, first: int = 0
) -> Tensor:
    """Rows (n, d) as unit rows; NaN, inf and rows of zeros are refused by their number.

    `first` is the number of the first row, where these are a part of all rows.
    """
    array = to_numpy(array)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name} must hold real numbers, got an array of {array.dtype}.")
    finite = np.isfinite(array).all(1)
    if not finite.all():
        row = first + int(np.flatnonzero(~finite)[0])
        raise DataError(f"{name} contains NaN or inf in row {row}: remove or fix that row.")
    # In counts or pixels (integers), a row of zeros is valid: it is equally unlike everything. In
    # the floats of an encoder it means that something went wrong.
    zero = ~array.any(1)
    if zero.any() and array.dtype.kind == "f":
        row = first + int(np.flatnonzero(zero)[0])
        raise DataError(
            f"Row {row} of {name} is all zeros and has no direction: remove it, "
            "or check how its feature was computed."
        )
    if array.dtype.kind not in "fiu":
        array = array.astype(np.float64)
    # Torch takes no array that runs backwards or may not be written to.
    array = np.require(array, requirements=["C", "W"])
    rows = torch.as_tensor(array, device=device)
    if rows.dtype == torch.float64 != dtype:
        largest = rows.abs().amax(1)
        if bool(((largest > 1e30) | (largest < 1e-30)).any()):  # beyond the range of float32
            rows = unit_rows(rows)
    return unit_rows(rows.to(dtype))


def projection_map(
    projection: Any, width: int, device: torch.device, dtype: torch.dtype
) -> Projection | None:
    """The option `projection` as a function: a matrix P (d, d) means normalise(P f + f)."""
    if isinstance(projection, SimilarityProjection):
        projection = projection.matrix
    elif projection is None or callable(projection):
        return projection  # type: ignore[no-any-return]
    matrix = np.asarray(to_numpy(projection))
    if matrix.shape != (width, width):
        raise DataError(
            f"projection must be a callable or a matrix of shape ({width}, {width}), "
            f"got shape {matrix.shape}."
        )
    if matrix.dtype.kind not in "fiu" or not np.isfinite(matrix).all():
        raise DataError("projection must hold finite numbers only.")
    return ResidualProjection(torch.as_tensor(matrix, device=device).to(dtype))


def add_projection(projection: Any, settings: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Add the matrix to a saved state, and where it came from if it says so."""
    if projection is None:
        return
    facts = None
    if isinstance(projection, SimilarityProjection):
        projection, facts = projection.matrix, projection.facts
    elif callable(projection):
        raise DataError("A projection that is a function cannot be saved: give its matrix instead.")
    arrays["projection"] = np.asarray(to_numpy(projection))
    settings["projection"] = None if facts is None else asdict(facts)


def saved_projection(settings: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """The option `projection` of a saved state, if it has one."""
    if "projection" not in arrays:
        return {}
    facts = settings.get("projection")
    known = None if facts is None else ProjectionFacts(**facts)
    return {
        "projection": SimilarityProjection((torch.from_numpy(arrays["projection"]),), facts=known)
    }
