"""Chooses which unlabelled images to label next: those that reduce the total variance most.

The variance of a Gaussian process does not depend on labels, so the value of a label is known
before it is given. Labelling x reduces the variance at p by cov(x, p)² / (v(x) + noise); the image
with the largest reduction over the whole pool comes first.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.encoders import Encoder
from gpcache.errors import DataError
from gpcache.features.extract import gather
from gpcache.gp.cholesky import cholesky
from gpcache.gp.exact import lifted
from gpcache.gp.feature_maps import KernelSpace
from gpcache.gp.kernels import gram, kernel, unit_rows
from gpcache.images.records import Refused, Source
from gpcache.methods import FeatureClassifier
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.support.devices import ensure_memory

CPU = torch.device("cpu")


class Suggestion(NamedTuple):
    """Rows of the pool (count,), the best first, and the reduction of variance (count,) by each.

    The reduction is summed over the pool, after all rows before it are labelled.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


def suggest(
    pool: NDArray[Any],
    count: int,
    *,
    model: CacheClassifier | None = None,
    beta: float = 1.0,
    noise: float = 0.01,
    space: Literal["raw", "centred"] = "centred",
) -> Suggestion:
    """Choose `count` rows of the pool (m, d) to label.

    A fitted `model` provides its shots, its feature map and its β; `beta` and `space` are for a
    pool before there are any labels. The lower the `noise`, the less a second, similar image is
    worth. The noise of the model is not used: with it, similar images were chosen
    (docs/results/photos.md).
    """
    if model is None:
        mapped = unit_rows(torch.as_tensor(pool).double())
        labels = torch.zeros(len(mapped), dtype=torch.int64)
        mapped = KernelSpace(space).fit(mapped, labels)(mapped)
        keys = mapped[:0]
    else:
        fitted = model.fitted_.model
        with torch.no_grad():
            mapped = fitted.feature_map(model._read_queries(pool)).to(CPU, torch.float64)
        keys = fitted.precision.keys.detach().to(CPU, torch.float64)
        beta = float(fitted.precision.beta)
    return _greedy(_covariance(mapped, keys, beta, noise), count, noise)


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


class SuggestedImages(NamedTuple):
    """Names and scores of the suggested images, the best first, and the files that were refused."""

    names: list[str]
    scores: list[float]
    refused: list[Refused]


def suggest_images(
    pool: Source, count: int, encoder: Encoder, model: FeatureClassifier | None = None
) -> SuggestedImages:
    """Choose at most `count` images of `pool`; a `model` that keeps its shots knows these."""
    if model is not None and not model.has_keys:
        raise DataError(
            "The method of the model keeps no cache to suggest from: fit it with --method gpcache."
        )
    gathered = gather(pool, encoder)
    if not gathered.records:
        raise DataError(f"There is no image that can be read in {pool.name!r}.")
    known, most = cast("CacheClassifier | None", model), min(count, len(gathered.records))
    rows, scores = suggest(gathered.features, most, model=known)
    names = [gathered.records[row].name for row in rows]
    return SuggestedImages(names, scores.tolist(), gathered.refused)
