"""Selective prediction: how the risk falls as the least confident answers are refused."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpcache.errors import DataError

Floats = NDArray[np.float64]


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Coverage (n,) 1/n…1 and the risk (n,), the share of errors among the answers that are kept.

    The most confident are kept first. Where confidences are equal the risk is the expected one over
    their orders, because the order means nothing.
    """
    values, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=bool)
    if values.ndim != 1 or right.shape != values.shape or not len(values):
        raise DataError(
            "A risk–coverage curve needs one confidence and one outcome per image, got shapes "
            f"{values.shape} and {right.shape}."
        )
    if np.isnan(values).any():
        raise DataError("A risk–coverage curve needs confidences that are numbers, got NaN.")
    order = np.argsort(-values, kind="stable")
    errors = np.cumsum(~right[order])
    # The last of each run of equal confidences; between them errors come at an even rate.
    ends = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))
    kept = np.arange(1, len(values) + 1)
    expected = np.interp(kept, np.append(0, ends + 1), np.append(0, errors[ends]))
    return kept / len(values), expected / kept


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk–coverage curve: the mean risk over all coverages; lower is better."""
    return float(risk_coverage(confidence, correct)[1].mean())
