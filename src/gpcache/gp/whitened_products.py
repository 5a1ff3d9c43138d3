"""Inner products of whitened rows, without the rows: for fewer rows than features.

With the differences R (n, d) to the class means, whitened rows have the inner products

    xᵀ (RᵀR + δI)⁻¹ y = (xᵀy − (Rx)ᵀ (RRᵀ + δI)⁻¹ Ry) / δ.

All but δ is computed once: another shrinkage costs products of n rows, none of d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, quadratic
from gpcache.gp.exact import lifted
from gpcache.gp.feature_maps import (
    KernelSpace,
    is_constant,
    projected,
    spread_of,
    within_class,
)
from gpcache.gp.kernels import kernel_of
from gpcache.gp.precision import proper

# Up to this share of the width, rows are so few that their products cost less than whitened rows.
FEW_SHARE = 0.7


class Similarities(NamedTuple):
    """Cosines among the rows (n, n) and of others (m, n), and discriminant scores (m, c)."""

    own: Tensor
    cross: Tensor
    scores: Tensor

    def variance(self, beta: float, noise: float) -> Tensor:
        """The posterior variance (m,) of the others, given the rows."""
        covariance = lifted(kernel_of(self.own, beta), noise)
        return proper(1 - quadratic(cholesky(covariance), kernel_of(self.cross, beta)))


@dataclass(frozen=True, eq=False)
class WhitenedProducts:
    """What the inner products of n rows and m others are made from, at any shrinkage.

    `products` (n + m, n) and squared `lengths` (n + m,) are those before whitening. `across`
    (n, n + m) is R times the rows, `scatter` (n, n) is RRᵀ, and δ is a multiple of `spread`.
    `means` (c, n) are the weights of the rows in their class means.
    """

    products: Tensor
    lengths: Tensor
    across: Tensor
    scatter: Tensor
    spread: Tensor
    means: Tensor

    @classmethod
    def of(
        cls, space: KernelSpace, features: Tensor, labels: Tensor, n_classes: int, others: Tensor
    ) -> WhitenedProducts | None:
        """Those of rows (n, d) with class numbers (n,) and others (m, d).

        None where the space does not whiten, or whitened rows cost less.
        """
        n = len(features)
        rows = torch.cat([features, others])
        if space.projection is not None:
            rows = projected(space.projection, rows)
        known = within_class(rows[:n], labels)
        whitens = space.name == "whitened" and not is_constant(rows[:n])
        few = n <= FEW_SHARE * rows.shape[1]
        if not (whitens and few) or spread_of(known) is None:
            return None
        # Differences of large numbers below: float32 would keep few of their digits.
        rows = rows if rows.device.type == "mps" else rows.double()
        rows = rows - rows[:n].mean(0)
        if space.diagonal:
            scale = space.feature_scale(within_class(rows[:n], labels))
            rows = rows if scale is None else rows * scale
        products = rows @ rows[:n].mT
        across = within_class(products.mT, labels)
        scatter = within_class(across[:, :n].mT, labels)
        member = torch.nn.functional.one_hot(labels, n_classes).to(rows).mT
        return cls(
            products=products,
            lengths=rows.square().sum(1),
            across=across,
            scatter=scatter,
            spread=scatter.diagonal().sum() / max(1, n - 1),
            means=member / member.sum(1, keepdim=True).clamp(min=1),
        )

    def at(self, shrinkage: float, dtype: torch.dtype) -> Similarities:
        """The similarities at a shrinkage, in this dtype."""
        n, ridge = self.products.shape[1], shrinkage * self.spread
        eye = torch.eye(n, dtype=self.scatter.dtype, device=self.scatter.device)
        factor = torch.linalg.cholesky(self.scatter + ridge * eye)
        reach = torch.linalg.solve_triangular(factor, self.across, upper=False)
        products = (self.products - reach.mT @ reach[:, :n]) / ridge
        lengths = (self.lengths - reach.square().sum(0)) / ridge
        inverse = torch.where(lengths > 0, lengths.clamp(min=0).rsqrt(), 0.0)
        cosines = (products * inverse[:, None] * inverse[:n]).to(dtype)
        halves = 0.5 * ((self.means @ products[:n]) * self.means).sum(1)
        scores = products[n:] @ self.means.mT - halves
        return Similarities(cosines[:n], cosines[n:], scores.to(dtype))
