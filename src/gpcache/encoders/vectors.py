"""Unit vectors as every encoder gives them, checked; needs numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import EncoderError

Features = NDArray[np.float32]


def unit_vectors(rows: NDArray[Any], kind: str, name: str) -> Features:
    """Rows (..., d) of length one, refused where the network gave NaN, inf or nothing at all."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise EncoderError(f"The encoder {name!r} gave an {kind} vector of NaN, inf or zeros.")
    unit: Features = (rows / lengths).astype(np.float32, copy=False)
    return unit
