"""The space of the kernel: raw, centred or whitened features, after an optional projection.

A `KernelSpace` is the recipe, a `FeatureMap` the map fitted on given rows. To leave rows out, fit
the recipe again without them: `KernelSpace.sees_labels` says whether this is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.cholesky import cholesky
from gpcache.gp.kernels import unit_rows
from gpcache.gp.products import matmul

Projection = Callable[[Tensor], Tensor]
SpaceName = Literal["raw", "centred", "whitened", "decorrelated"]


@dataclass(frozen=True)
class ResidualProjection:
    """The paper's φ(f) = normalise(P f + f) for a matrix P (d, d), applied to rows."""

    matrix: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return unit_rows(features + features @ self.matrix.to(features).mT)


@dataclass(frozen=True)
class CastProjection:
    """A projection that gets rows of `dtype`, whatever the dtype of the features."""

    projection: Projection
    dtype: torch.dtype

    def __call__(self, features: Tensor) -> Tensor:
        return self.projection(features.to(self.dtype)).to(features)


@dataclass(frozen=True)
class FeatureMap:
    """Features (m, d) → unit rows in the kernel's space. Differentiable."""

    projection: Projection | None = None
    mean: Tensor | None = None
    matrix: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        return unit_rows(self.unscaled(features))

    def unscaled(self, features: Tensor) -> Tensor:
        """The rows (m, d') before they are scaled to length one."""
        if self.projection is not None:
            features = projected(self.projection, features)
        if self.mean is not None:
            features = features - self.mean
        if self.matrix is not None:
            features = matmul(features, self.matrix)
        return features


class Moments(NamedTuple):
    """Sums over labelled rows, in float64: counts (c,), rows (c, d) and products (d, d)."""

    counts: Tensor
    sums: Tensor
    products: Tensor

    @classmethod
    def of(cls, batches: Iterable[tuple[Tensor, Tensor]], n_classes: int) -> Moments:
        """Of batches of rows (b, d) and class numbers (b,), in one pass."""
        total: Moments | None = None
        for rows, labels in batches:
            rows = rows.double()
            counts = torch.bincount(labels, minlength=n_classes).double()
            sums = rows.new_zeros(n_classes, rows.shape[1]).index_add(0, labels, rows)
            part = cls(counts, sums, rows.mT @ rows)
            total = part if total is None else cls(*map(torch.add, total, part))
        assert total is not None
        return total

    def without(self, some: Moments) -> Moments:
        """The moments without those of some of the rows."""
        return Moments(*map(torch.sub, self, some))

    @property
    def class_means(self) -> Tensor:
        """(c, d); zeros for a class without rows."""
        return self.sums / self.counts.clamp(min=1)[:, None]

    def scatter(self, *, within: bool) -> Tensor:
        """Σ (x − mean)(x − mean)ᵀ (d, d), around the mean of the class or of all rows."""
        if within:
            return self.products - self.sums.mT @ self.class_means
        total = self.sums.sum(0)
        return self.products - torch.outer(total, total) / self.counts.sum()


@dataclass(frozen=True)
class KernelSpace:
    """How to make a feature map from labelled rows.

    *centred*: the mean of the rows is subtracted. *whitened*: then multiplied by the inverse square
    root (a Cholesky factor is enough: only inner products matter) of the shrunk scatter within
    classes, S + λ·tr(S)/(n − 1)·I, with S = Σ (x − class mean)(x − class mean)ᵀ and λ `shrinkage`.
    *decorrelated*: the same with the scatter of all rows around their mean, which needs no labels;
    it is used if classes have one shot each. `diagonal` is the share of the ridge that follows the
    diagonal of S, so that it does not dominate features with little scatter.
    """

    name: SpaceName = "raw"
    shrinkage: float = 4.0
    projection: Projection | None = None
    diagonal: float = 0.0

    @property
    def sees_labels(self) -> bool:
        """Whether leave-one-out in a fixed map would leak: the map has seen the left-out label."""
        return self.name == "whitened"

    def fit(self, features: Tensor, labels: Tensor, weights: Tensor | None = None) -> FeatureMap:
        """The map made from rows (n, d) with class numbers (n,).

        A row counts as often as its weight (n,) says; once by default.
        """
        if self.name == "raw":
            return FeatureMap(self.projection)
        rows = features if self.projection is None else projected(self.projection, features)
        mean = mean_row(rows, weights)
        if is_constant(rows):
            # A single distinct row equals its mean: centring would leave nothing.
            return FeatureMap(self.projection)
        if self.name == "centred":
            return FeatureMap(self.projection, mean)
        if self.name == "decorrelated":
            labels = torch.zeros_like(labels)
        return FeatureMap(self.projection, mean, self._whitening(rows, labels, weights))

    def fit_moments(self, moments: Moments, dtype: torch.dtype) -> FeatureMap:
        """As `fit`, from the moments of (projected) rows; the whitening differs by a rotation."""
        if self.name == "raw":
            return FeatureMap(self.projection)
        n = float(moments.counts.sum())
        mean = moments.sums.sum(0) / n
        if self.name == "centred":
            return FeatureMap(self.projection, mean.to(dtype))
        scatter = moments.scatter(within=self.name == "whitened")
        variance = scatter.diagonal() / n
        if float(variance.mean()) <= torch.finfo(dtype).eps:
            return FeatureMap(self.projection, mean.to(dtype))
        scale = target_of(variance, self.diagonal).rsqrt()
        scatter = scale[:, None] * scatter * scale
        ridge = self.shrinkage * scatter.diagonal().sum() / (n - 1)
        matrix = scale[:, None] * _from_scatter(scatter, ridge)
        return FeatureMap(self.projection, mean.to(dtype), matrix.to(dtype))

    def _whitening(self, rows: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor | None:
        """A matrix (d, d); with a `diagonal`, features are scaled by their own scatter first."""
        centred, scale = weighted_rows(within_class(rows, labels, weights), weights), None
        if self.diagonal:
            variance = centred.square().mean(0)
            if float(variance.mean().detach()) <= tiny_of(centred) ** 2:
                return None
            scale = target_of(variance, self.diagonal).rsqrt()
            centred = centred * scale
        spread = spread_of(centred, weights)
        if spread is None:
            return None
        ridge = self.shrinkage * spread
        # For few rows R, a factorisation of RRᵀ costs less than one of RᵀR.
        if 2 * len(centred) <= centred.shape[1]:
            return _few_rows(centred, ridge, scale)
        matrix = _from_scatter(matmul(centred.mT, centred), ridge)
        return matrix if scale is None else scale[:, None] * matrix


def target_of(variance: Tensor, diagonal: float) -> Tensor:
    """The target (..., d) of the shrinkage: the variance of features, mixed with its mean."""
    return diagonal * variance + (1 - diagonal) * variance.mean(-1, keepdim=True)


def mean_row(rows: Tensor, weights: Tensor | None) -> Tensor:
    """The mean (d,) of rows (n, d) with weights (n,)."""
    return rows.mean(0) if weights is None else weights @ rows / weights.sum()


def weighted_rows(rows: Tensor, weights: Tensor | None) -> Tensor:
    """Rows R (n, d) whose RᵀR counts each row as often as its weight (n,) says."""
    return rows if weights is None else rows * weights.sqrt()[:, None]


def spread_of(centred: Tensor, weights: Tensor | None = None) -> Tensor | None:
    """tr(S) / (n − 1) of the (weighted) differences (n, d) to the class means.

    None with one shot a class (or copies of it): nothing is known of the scatter within classes.
    """
    total = len(centred) if weights is None else float(weights.sum())
    spread = centred.square().sum() / max(1.0, total - 1)
    return None if float(spread.detach()) <= tiny_of(centred) ** 2 else spread


def is_constant(rows: Tensor) -> bool:
    """Whether no row (n, d) differs from the mean of all."""
    return not bool(((rows - rows.mean(0)).norm(dim=1) > tiny_of(rows)).any())


def within_class(rows: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """x − class mean (n, d) of rows (n, d) with weights (n,)."""
    counted, counts = rows, torch.bincount(labels)
    if weights is not None:
        counted = rows * weights[:, None]
        counts = rows.new_zeros(len(counts)).index_add(0, labels, weights.to(rows))
    sums = rows.new_zeros(len(counts), rows.shape[1]).index_add(0, labels, counted)
    centred: Tensor = rows - (sums / counts[:, None])[labels]
    return centred


def _from_scatter(scatter: Tensor, ridge: Tensor) -> Tensor:
    """A matrix W (d, d) with W Wᵀ = (S + ridge·I)⁻¹ for a scatter S = RᵀR (d, d) of rows R."""
    eye = torch.eye(len(scatter), dtype=scatter.dtype, device=scatter.device)
    factor = cholesky(scatter + ridge * eye)
    whitening: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
    return whitening.mT


def _few_rows(centred: Tensor, ridge: Tensor, scale: Tensor | None) -> Tensor:
    """The same for rows R (n, d), from the small matrix RRᵀ; its rows times a scale (d,).

    (I − Rᵀ L⁻ᵀ (L + √δ I)⁻¹ R) / √δ with L Lᵀ = RRᵀ + δI (Andrews, 1968).
    """
    root = ridge.sqrt()
    eye = torch.eye(len(centred), dtype=centred.dtype, device=centred.device)
    factor = cholesky(centred @ centred.mT + ridge * eye)
    left = torch.linalg.solve_triangular(factor, centred, upper=False)
    right = torch.linalg.solve_triangular(factor + root * eye, centred, upper=False)
    scale = centred.new_ones(centred.shape[1]) if scale is None else scale
    whitening: Tensor = (-left.mT * scale[:, None] / root) @ right
    whitening.diagonal().add_(scale / root)
    return whitening


def projected(projection: Projection, features: Tensor) -> Tensor:
    """Projected rows (m, d') of rows (m, d), scaled to length one."""
    rows = projection(features)
    if rows.ndim != 2 or len(rows) != len(features):
        raise DataError(
            f"The projection must map {len(features)} rows to as many, got shape "
            f"{tuple(rows.shape)}."
        )
    return unit_rows(rows)


def tiny_of(rows: Tensor) -> float:
    """Lengths up to this are those of rounding errors."""
    return 100 * float(torch.finfo(rows.dtype).eps)
