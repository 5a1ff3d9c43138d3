"""Exact posteriors of one set of keys at many (β, noise): similarities are computed once.

For a few noises per β, one Cholesky factor each is fastest. For more, one symmetric
eigendecomposition K = U Λ Uᵀ is used for every noise. It costs as much as six factors on a CPU and
fourteen on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, inverse_factor, log_determinant, quadratic, solve
from gpcache.gp.kernels import kernel_of
from gpcache.gp.precision import proper

EIGEN_FROM = {"cpu": 7, "cuda": 15}


class SweepPoint(NamedTuple):
    """Mean (m, c), variance (m, 1) or None if not requested, and log marginal likelihood."""

    mean: Tensor
    variance: Tensor | None
    log_marginal_likelihood: float


class Sweep:
    """Keys (n, d) and queries (m, d): unit rows in the kernel's space.

    Without queries, the points are the keys themselves, each left out in turn.
    """

    def __init__(self, keys: Tensor, queries: Tensor | None = None, *, keep: bool = True) -> None:
        """`keep` holds the similarities between calls, which takes more memory."""
        self._keys = keys
        self._queries = queries
        self._kept = self._similarities() if keep else None

    def _similarities(self) -> tuple[Tensor, Tensor | None]:
        cross = None if self._queries is None else self._queries @ self._keys.mT
        return self._keys @ self._keys.mT, cross

    @torch.no_grad()
    def at(
        self, values: Tensor, beta: float, noises: Sequence[float], *, with_variance: bool = True
    ) -> list[SweepPoint]:
        """One point for each noise, for keys with values (n, c)."""
        similarity, cross_similarity = self._kept or self._similarities()
        matrix = kernel_of(similarity, beta)
        cross = None if cross_similarity is None else kernel_of(cross_similarity, beta)
        if len(noises) >= EIGEN_FROM["cuda" if matrix.is_cuda else "cpu"]:
            return _by_eigenvalues(values, matrix, cross, noises, with_variance)
        return [_by_factor(values, matrix, cross, noise, with_variance) for noise in noises]


def _by_factor(
    values: Tensor, matrix: Tensor, cross: Tensor | None, noise: float, with_variance: bool
) -> SweepPoint:
    lifted = matrix.clone()
    lifted.diagonal().add_(noise)
    factor = cholesky(lifted)
    evidence = log_determinant(factor)
    if cross is None:
        inverse = inverse_factor(factor)
        solved, diagonal = inverse.mT @ (inverse @ values), inverse.square_().sum(0)
        return _left_out(values, solved, diagonal, noise, evidence, with_variance)
    solved = solve(factor, values)
    variance = proper(1 - quadratic(factor, cross))[:, None] if with_variance else None
    return SweepPoint(cross @ solved, variance, _likelihood(values, solved, evidence))


def _by_eigenvalues(
    values: Tensor,
    matrix: Tensor,
    cross: Tensor | None,
    noises: Sequence[float],
    with_variance: bool,
) -> list[SweepPoint]:
    spectrum, vectors = torch.linalg.eigh(matrix)
    # The kernel is positive semi-definite; negative eigenvalues are rounding errors.
    spectrum = spectrum.clamp(min=0)
    projected = vectors.mT @ values
    reach = None if cross is None else cross @ vectors
    points = []
    for noise in noises:
        inverse = 1 / (spectrum + noise)
        evidence = -inverse.log().sum()
        scaled = inverse[:, None] * projected
        solved = vectors @ scaled
        if reach is None:
            diagonal = vectors.square() @ inverse
            points.append(_left_out(values, solved, diagonal, noise, evidence, with_variance))
            continue
        variance = proper(1 - reach.square() @ inverse)[:, None] if with_variance else None
        points.append(SweepPoint(reach @ scaled, variance, _likelihood(values, solved, evidence)))
    return points


def _left_out(
    values: Tensor,
    solved: Tensor,
    diagonal: Tensor,
    noise: float,
    evidence: Tensor,
    with_variance: bool,
) -> SweepPoint:
    mean = values - solved / diagonal[:, None]
    variance = proper(1 / diagonal - noise)[:, None] if with_variance else None
    return SweepPoint(mean, variance, _likelihood(values, solved, evidence))


def _likelihood(values: Tensor, solved: Tensor, log_determinant: Tensor) -> float:
    n, c = values.shape
    fit = (values * solved).sum()
    return float(-0.5 * (fit + c * log_determinant + n * c * math.log(2 * math.pi)))
