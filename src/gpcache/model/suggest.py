"""Chooses which unlabelled images to label next: those that reduce the total variance most.

The variance of a Gaussian process does not depend on labels, so the value of a label is known
before it is given. Labelling x reduces the variance at p by cov(x, p)² / (v(x) + noise); the image
with the largest reduction over the whole pool comes first.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.cholesky import cholesky
from gpcache.gp.exact import lifted
from gpcache.gp.feature_maps import KernelSpace
from gpcache.gp.kernels import gram, kernel, unit_rows
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.support.checks import shown, to_numpy, whole
from gpcache.support.devices import ensure_memory

CPU = torch.device("cpu")
SPACES = ("raw", "centred")


class Suggestion(NamedTuple):
    """Rows of the pool (count,), the best first, and the reduction of variance (count,) by each.

    The reduction is summed over the pool, after all rows before it are labelled.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


def suggest(
    pool: ArrayLike,
    count: int,
    *,
    model: CacheClassifier | None = None,
    beta: float | None = None,
    noise: float = 0.01,
    space: Literal["raw", "centred"] | None = None,
) -> Suggestion:
    """Choose `count` rows of the pool (m, d) to label.

    A fitted `model` provides its shots, its feature map and its β. Without a model, before there
    are any labels, `beta` is 1 and `space` "centred" unless given. The lower the `noise`, the less
    a second, similar image is worth. The noise of the model is not used: with it, similar images
    were chosen (docs/results/photos.md).
    """
    whole("count", count, least=1)
    noise = _above_zero("noise", noise)
    if model is None:
        mapped, keys, beta = _without_labels(pool, beta, space)
    elif beta is None and space is None:
        mapped, keys, beta = _with_model(pool, model)
    else:
        raise DataError("beta and space come from the model: leave them out, or the model.")
    if count > len(mapped):
        raise DataError(f"count is {count}, but the pool has only {len(mapped)} rows.")
    return _greedy(_covariance(mapped, keys, beta, noise), count, noise)


def _without_labels(
    pool: Any, beta: float | None, space: str | None
) -> tuple[Tensor, Tensor, float]:
    """The pool (m, d) in the space of the kernel, no keys (0, d), and β."""
    if space not in (None, *SPACES):
        raise DataError(f"space must be 'raw' or 'centred', got {shown(space)}.")
    array = np.asarray(to_numpy(pool))
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise DataError(f"pool must be numbers (m, d), got shape {array.shape}.")
    usable = np.isfinite(array).all(1) & array.any(1)
    if not usable.all():
        row = int(np.flatnonzero(~usable)[0])
        raise DataError(f"Row {row} of pool holds NaN, inf or only zeros: remove or fix it.")
    rows = unit_rows(torch.as_tensor(array.astype(np.float64)))
    if space != "raw" and len(rows):
        rows = KernelSpace("centred").fit(rows, torch.zeros(len(rows), dtype=torch.int64))(rows)
    return rows, rows[:0], 1.0 if beta is None else _above_zero("beta", beta)


def _with_model(pool: Any, model: CacheClassifier) -> tuple[Tensor, Tensor, float]:
    """The pool (m, d') and the model's keys (n, d') in the space of its kernel, and its β."""
    if not hasattr(model, "fitted_"):
        raise DataError("model is not fitted: call fit first, or leave it out.")
    fitted = model.fitted_.model
    with torch.no_grad():
        mapped = fitted.feature_map(model._read_queries(pool))
    keys = fitted.precision.keys.detach()
    return mapped.to(CPU, torch.float64), keys.to(CPU, torch.float64), float(fitted.precision.beta)


def _above_zero(name: str, value: Any) -> float:
    number = isinstance(value, int | float | np.integer | np.floating)
    if not number or isinstance(value, bool) or not 0 < value < np.inf:
        raise DataError(f"{name} must be a number above zero, got {shown(value)}.")
    return float(value)


def _covariance(mapped: Tensor, keys: Tensor, beta: float, noise: float) -> Tensor:
    """The covariance (m, m) of the pool, given that the keys (n, d') are labelled."""
    m, n = len(mapped), len(keys)
    ensure_memory(
        8 * (2 * m * m + 2 * m * n + 2 * n * n),
        CPU,
        what=f"Choosing among {m:,} images",
        remedy="Choose among a random part of them.",
    )
    covariance = gram(mapped, beta)
    if n:
        factor = cholesky(lifted(gram(keys, beta), noise))
        known = torch.linalg.solve_triangular(factor, kernel(keys, mapped, beta), upper=False)
        covariance.addmm_(known.mT, known, alpha=-1)
    return covariance


def _greedy(covariance: Tensor, count: int, noise: float) -> Suggestion:
    """The rows with the largest reductions, in order; overwrites the covariance (m, m)."""
    rows, scores = [], []
    taken = torch.zeros(len(covariance), dtype=torch.bool)
    for _ in range(count):
        reduction = torch.linalg.vector_norm(covariance, dim=1).square_()
        reduction /= covariance.diagonal().clamp(min=0) + noise
        best = int(reduction.masked_fill(taken, -1.0).argmax())
        rows.append(best)
        scores.append(float(reduction[best]))
        taken[best] = True
        reach = covariance[best].clone()
        # Update the covariance in place, because a second matrix would be as large.
        covariance.addr_(reach, reach, alpha=-1 / (float(reach[best]) + noise))
    return Suggestion(np.array(rows, dtype=np.int64), np.array(scores))
