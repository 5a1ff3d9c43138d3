"""Inner products of whitened rows, without the rows: for fewer rows than features.

With the differences R (n, d) to the class means, whitened rows have the inner products

    xᵀ (RᵀR + δI)⁻¹ y = (xᵀy − (Rx)ᵀ (RRᵀ + δI)⁻¹ Ry) / δ.

All but δ is computed once: another shrinkage costs products of n rows, none of d features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, quadratic
from gpcache.gp.exact import lifted
from gpcache.gp.feature_maps import (
    KernelSpace,
    mean_row,
    projected,
    spread_of,
    tiny_of,
    weighted_rows,
    within_class,
)
from gpcache.gp.kernels import kernel_of
from gpcache.gp.precision import proper


class Similarities(NamedTuple):
    """Cosines among the rows (n, n) and of others (m, n), and discriminant scores (m, c).

    Leading dimensions are independent problems.
    """

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
    `means` (c, n) are the weights of the rows in their class means. All may have a leading
    dimension: see `stacked`.
    """

    products: Tensor
    lengths: Tensor
    across: Tensor
    scatter: Tensor
    spread: Tensor
    means: Tensor

    @classmethod
    def of(
        cls,
        space: KernelSpace,
        features: Tensor,
        labels: Tensor,
        n_classes: int,
        others: Tensor,
        weights: Tensor | None = None,
    ) -> WhitenedProducts | None:
        """Those of rows (n, d) with class numbers (n,) and others (m, d).

        The rows may have weights (n,). None where the space does not whiten, or whitened rows cost
        less.
        """
        n = len(features)
        rows = torch.cat([features, others])
        if space.projection is not None:
            rows = projected(space.projection, rows)
        if space.name != "whitened" or n > rows.shape[1]:
            return None
        tiny = tiny_of(rows)
        # Differences of large numbers below: float32 would keep few of their digits.
        rows = rows if rows.device.type == "mps" else rows.double()
        weights = None if weights is None else weights.to(rows)
        rows = rows - mean_row(rows[:n], weights)

        def differences(rows: Tensor) -> Tensor:
            return weighted_rows(within_class(rows, labels, weights), weights)

        known = differences(rows[:n])
        is_constant = not bool((torch.linalg.vector_norm(rows[:n], dim=1) > tiny).any())
        if is_constant or spread_of(known, weights, tiny) is None:
            return None
        if space.diagonal:
            scale = space.feature_scale(known)
            rows = rows if scale is None else rows * scale
        products = rows[:n] @ rows.mT
        across = differences(products)
        scatter = differences(across[:, :n].mT)
        member = torch.nn.functional.one_hot(labels, n_classes).to(rows).mT
        member = member if weights is None else member * weights
        total = n if weights is None else float(weights.sum())
        sums = member.sum(1, keepdim=True)
        return cls(
            products=products.mT,
            lengths=torch.linalg.vector_norm(rows, dim=1).square_(),
            across=across,
            scatter=scatter,
            spread=scatter.diagonal().sum()[None, None] / max(1.0, total - 1),
            means=member / torch.where(sums > 0, sums, 1.0),
        )

    @classmethod
    def stacked(cls, problems: Sequence[WhitenedProducts]) -> WhitenedProducts:
        """Several problems as one, each filled up with zeros to as many rows and others."""
        n = max(one.n_rows for one in problems)
        m = max(len(one.products) - one.n_rows for one in problems)

        def filled(one: WhitenedProducts) -> WhitenedProducts:
            def rows(part: Tensor) -> Tensor:
                return torch.cat([padded(part[: one.n_rows], n), padded(part[one.n_rows :], m)])

            return cls(
                products=rows(padded(one.products.mT, n).mT),
                lengths=rows(one.lengths[:, None])[:, 0],
                across=rows(padded(one.across, n).mT).mT,
                scatter=padded(padded(one.scatter, n).mT, n),
                spread=one.spread,
                means=padded(one.means.mT, n).mT,
            )

        alike = all(one.products.shape == (n + m, n) for one in problems)
        every = [vars(one if alike else filled(one)) for one in problems]
        return cls(**{name: torch.stack([one[name] for one in every]) for name in every[0]})

    @property
    def n_rows(self) -> int:
        """n."""
        return self.products.shape[-1]

    def at(self, shrinkage: float, dtype: torch.dtype) -> Similarities:
        """The similarities at a shrinkage, in this dtype."""
        n, ridge = self.n_rows, shrinkage * self.spread
        shrunk = self.scatter.clone()
        shrunk.diagonal(dim1=-2, dim2=-1).add_(ridge.squeeze(-1))
        factor = torch.linalg.cholesky(shrunk)
        reach = torch.linalg.solve_triangular(factor, self.across, upper=False)
        products = self.products - reach.mT @ reach[..., :n]  # times δ, as the lengths are
        lengths = self.lengths - torch.linalg.vector_norm(reach, dim=-2).square_()
        inverse = torch.where(lengths > 0, lengths.rsqrt(), 0.0)
        halves = 0.5 * ((self.means @ products[..., :n, :]) * self.means).sum(-1)
        scores = (products[..., n:, :] @ self.means.mT).sub_(halves[..., None, :]).div_(ridge)
        cosines = products.mul_(inverse[..., None]).mul_(inverse[..., None, :n]).to(dtype)
        return Similarities(cosines[..., :n, :], cosines[..., n:, :], scores.to(dtype))


def padded(rows: Tensor, size: int) -> Tensor:
    """Rows (n, d) with rows of zeros below, up to `size`."""
    return torch.nn.functional.pad(rows, (0, 0, 0, size - len(rows)))
