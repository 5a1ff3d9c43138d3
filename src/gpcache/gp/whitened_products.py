"""Inner products of whitened rows, without the rows: for no more rows than features.

With the differences R (n, d) to the class means μ, the whitened inner product of x and y is

    x M y = (xᵀy − (Rx)ᵀ T Ry) / δ  with  M = (RᵀR + δI)⁻¹ and T = (RRᵀ + δI)⁻¹.

A row is its class mean and its difference. Of differences, R M x = T R x and R M Rᵀ = I − δT, so
that T is the only large matrix that depends on δ: another shrinkage costs its inverse and a product
with the others, none of d features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, quadratic
from gpcache.gp.exact import lifted
from gpcache.gp.feature_maps import KernelSpace, projected, target_of, tiny_of
from gpcache.gp.kernels import kernel_of
from gpcache.gp.precision import proper

# Weights below this share of the largest count as this share: errors are of the same size.
LEAST_WEIGHT = {torch.float64: 1e-8, torch.float32: 1e-4}
# Others are at most this multiple of the features: more cost less where they are whitened.
MOST_OTHERS = 4


class Similarities(NamedTuple):
    """Cosines among the rows (f, n, n) and of others (f, m, n), and discriminant scores (f, m, c).

    The f problems are independent of each other.
    """

    own: Tensor
    cross: Tensor
    scores: Tensor

    def variance(self, beta: float, noise: float) -> Tensor:
        """The posterior variance (f, m) of the others, given the rows."""
        covariance = lifted(kernel_of(self.own, beta), noise)
        return proper(1 - quadratic(cholesky(covariance), kernel_of(self.cross, beta)))


class LabelledRows(NamedTuple):
    """Rows (n, d) with class numbers (n,) and maybe weights (n,), and others (m, d)."""

    features: Tensor
    labels: Tensor
    others: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Differences:
    """What rows differ from their class means by, in f problems filled up to the same sizes.

    `rows` (f, n + c + m, d) are √w times the differences of rows of weight w, zeros where filled
    up; the class means; and the others. All are around the mean of the rows. `member` (f, n, c)
    says which class a row is of, `inverse_roots` (f, n) are 1/√w, and `variance` (f, d) is that of
    the differences. `freedom` (f, 1, 1) is the number of rows minus one.
    """

    rows: Tensor
    member: Tensor
    inverse_roots: Tensor
    variance: Tensor
    freedom: Tensor

    @classmethod
    def of(
        cls, space: KernelSpace, problems: Sequence[LabelledRows], n_classes: int
    ) -> Differences | None:
        """Those of each problem; None without whitening, or where whitened rows cost less."""
        if space.name != "whitened":
            return None
        sizes = [len(one.labels) for one in problems]
        n, m = max(sizes), max(len(one.others) for one in problems)
        width = problems[0].features.shape[1]
        if n > width or m > MOST_OTHERS * width:
            return None
        blocks = [(one.features, one.others) for one in problems]
        if (projection := space.projection) is not None:
            blocks = [
                (projected(projection, one), projected(projection, two)) for one, two in blocks
            ]
        place = blocks[0][0]
        tiny, dtype = tiny_of(place), place.dtype if place.device.type == "mps" else torch.float64
        # Differences of large numbers below: float32 would keep few of their digits.
        rows = place.new_zeros(len(blocks), n + n_classes + m, place.shape[1], dtype=dtype)
        for filled, (features, others) in zip(rows, blocks, strict=True):
            filled[: len(features)] = features
            filled[n + n_classes :][: len(others)] = others
        del blocks
        known, means, others = rows[:, :n], rows[:, n : n + n_classes], rows[:, n + n_classes :]
        labels = [torch.nn.functional.one_hot(one.labels, n_classes) for one in problems]
        member = torch.stack([padded(one, n) for one in labels]).to(rows)
        weights = torch.stack([padded(_weights(one, dtype), n)[:, 0] for one in problems])
        counted = member * weights[..., None]
        counts, total = counted.sum(1)[..., None], weights.sum(1)[:, None, None]
        mean = weights[:, None] @ known / total
        known -= mean
        others -= mean
        means.copy_(counted.mT @ known / torch.where(counts > 0, counts, 1.0))
        lengths = torch.linalg.vector_norm(known, dim=-1) * (weights > 0)
        known.sub_(member @ means).mul_(weights.sqrt()[..., None])
        variance = known.square().sum(1) / rows.new_tensor(sizes)[:, None]
        # Features must differ, and some by more than their classes do: see `KernelSpace.fit`.
        if float(lengths.amax(1).min()) <= tiny or float(variance.mean(1).min()) <= tiny**2:
            return None
        roots = torch.where(weights > 0, weights.rsqrt(), 0.0)
        return cls(rows, member, roots, variance, (total - 1).clamp(min=1))

    def products(self, diagonal: float) -> WhitenedProducts:
        """Those of a space whose target of the shrinkage has this share of the diagonal."""
        n, c = self.member.shape[1:]
        scaled = self.rows[:, : n + c]
        inverse = 1 / target_of(self.variance, diagonal)[:, None] if diagonal else None
        if inverse is not None:
            scaled = scaled * inverse
        known = scaled[:, :n] @ self.rows.mT
        means = scaled[:, n:] @ self.rows[:, n:].mT
        others = self.rows[:, n + c :]
        lengths = torch.linalg.vecdot(others if inverse is None else others * inverse, others)
        scatter = known[..., :n]
        return WhitenedProducts(
            scatter=scatter,
            across=known[..., n + c :],
            across_means=known[..., n : n + c],
            means=means[..., :c],
            others=means[..., c:].mT,
            lengths=lengths,
            spread=scatter.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] / self.freedom,
            member=self.member,
            inverse_roots=self.inverse_roots,
        )


@dataclass(frozen=True, eq=False)
class WhitenedProducts:
    """What the inner products of n rows and m others are made from, at any shrinkage.

    Of differences R, class means μ and others z: `scatter` (f, n, n) is RRᵀ, `across` (f, n, m)
    Rzᵀ, `across_means` (f, n, c) Rμᵀ, `means` (f, c, c) μμᵀ, `others` (f, m, c) zμᵀ, and `lengths`
    (f, m) are the squared ones of z. δ is a multiple of `spread` (f, 1, 1). `member` and
    `inverse_roots` are those of `Differences`.
    """

    scatter: Tensor
    across: Tensor
    across_means: Tensor
    means: Tensor
    others: Tensor
    lengths: Tensor
    spread: Tensor
    member: Tensor
    inverse_roots: Tensor

    def at(self, shrinkage: float, dtype: torch.dtype) -> Similarities:
        """The similarities at a shrinkage, in this dtype."""
        ridge, roots = shrinkage * self.spread, self.inverse_roots[..., None]
        shrunk = self.scatter.clone()
        shrunk.diagonal(dim1=-2, dim2=-1).add_(ridge.squeeze(-1))
        shrunk = cholesky(shrunk)
        inverse = torch.cholesky_inverse(shrunk)
        del shrunk
        reach, reach_means = inverse @ self.across, inverse @ self.across_means
        means = (self.means - self.across_means.mT @ reach_means) / ridge
        others = (self.others - self.across.mT @ reach_means) / ridge
        lengths = (self.lengths - torch.linalg.vecdot(self.across, reach, dim=-2)) / ridge[..., 0]
        # Differences with differences; then means, once for each side of a pair.
        own = inverse.mul_(-ridge)
        own.diagonal(dim1=-2, dim2=-1).add_(1)
        own.mul_(roots).mul_(roots.mT)
        half = torch.addcmul(0.5 * self.member @ means, reach_means, roots)
        own.baddbmm_(torch.cat([half, self.member], -1), torch.cat([self.member, half], -1).mT)
        cross = (reach * roots).mT + others @ self.member.mT
        scores = others - 0.5 * means.diagonal(dim1=-2, dim2=-1)[..., None, :]
        inverse_lengths = _inverse_roots(own.diagonal(dim1=-2, dim2=-1))[..., None]
        own.mul_(inverse_lengths).mul_(inverse_lengths.mT)
        cross.mul_(_inverse_roots(lengths)[..., None]).mul_(inverse_lengths.mT)
        return Similarities(own.to(dtype), cross.to(dtype), scores.to(dtype))


def _weights(rows: LabelledRows, dtype: torch.dtype) -> Tensor:
    """The weights (n, 1) of rows: ones by default, and hardly any instead of none."""
    if rows.weights is None:
        return rows.features.new_ones(len(rows.labels), 1, dtype=dtype)
    # The difference of a row without weight follows from that of a row with hardly any.
    weights = rows.weights.to(dtype)
    return weights.clamp(min=LEAST_WEIGHT[dtype] * float(weights.max()))[:, None]


def _inverse_roots(squares: Tensor) -> Tensor:
    """1/√ of squared lengths; 0 for a length of zero."""
    return torch.where(squares > 0, squares.rsqrt(), 0.0)


def padded(rows: Tensor, size: int) -> Tensor:
    """Rows (n, d) with rows of zeros below, up to `size`."""
    return torch.nn.functional.pad(rows, (0, 0, 0, size - len(rows)))
