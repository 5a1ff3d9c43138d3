"""Original features and those of their views, checked: unit rows on one device, in one order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.kernels import unit_rows


def paired_rows(original: Any, views: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Unit rows in float32: originals (p, d) and views (p, v, d); views (p, d) are one each."""
    first, others = _tensor("original", original, device), _tensor("views", views, device)
    if others.ndim == 2:
        others = others[:, None]
    if first.ndim != 2 or others.ndim != 3 or 0 in others.shape:
        raise DataError(
            "original must be of shape (images, columns) and views of (images, views, columns), "
            f"got {tuple(first.shape)} and {tuple(others.shape)}."
        )
    if (len(first), first.shape[1]) != (len(others), others.shape[2]):
        raise DataError(
            f"original holds {len(first)} images of {first.shape[1]} columns, views "
            f"{len(others)} of {others.shape[2]}: give the same images of one encoder."
        )
    return first, others


def _tensor(name: str, rows: Any, device: torch.device) -> Tensor:
    if not isinstance(rows, Tensor):
        array = np.asarray(rows)
        if array.dtype.kind not in "fiu":
            raise DataError(f"{name} must be numbers, got an array of {array.dtype}.")
        rows = torch.from_numpy(array)
    unit = unit_rows(rows.detach().to(device, torch.float32))
    lengths = unit.norm(dim=-1)
    bad = ~(torch.isfinite(lengths) & (lengths > 0))
    if bool(bad.any()):
        raise DataError(
            f"Row {int(bad.nonzero()[0, 0])} of {name} is all zeros or holds NaN or inf."
        )
    return unit
