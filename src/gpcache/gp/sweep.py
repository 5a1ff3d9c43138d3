"""Exact posteriors of one set of keys at many (β, noise): similarities are computed once.

For a few noises per β, one Cholesky factor each is fastest. For more, one symmetric
eigendecomposition K = U Λ Uᵀ is used for every noise. It costs as much as six factors on a CPU and
fourteen on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, inverse_factor, log_determinant, quadratic, solve
from gpcache.gp.exact import lifted
from gpcache.gp.kernels import kernel_of
from gpcache.gp.precision import proper

EIGEN_FROM = {"cpu": 7, "cuda": 15}


class SweepPoint(NamedTuple):
    """Mean (m, c), variance (m, 1) or None if not requested, and log marginal likelihood."""

    mean: Tensor
    variance: Tensor | None
    log_marginal_likelihood: float


class Solved(NamedTuple):
    """P Y (n, c) and log |G|, and the diagonal of P (n,) or, at queries, k P kᵀ (m,)."""

    values: Tensor
    form: Tensor | None
    log_determinant: Tensor


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
            solved_at = _by_eigenvalues(values, matrix, cross)
        else:
            solved_at = _by_factors(values, matrix, cross, with_variance)
        points = []
        for noise in noises:
            solved, form, log_determinant = solved_at(noise)
            variance: Tensor | None = None
            if cross is not None:
                mean = cross @ solved
                variance = None if form is None else 1 - form
            else:
                assert form is not None
                mean, variance = values - solved / form[:, None], 1 / form - noise
            if variance is not None:
                variance = proper(variance)[:, None] if with_variance else None
            likelihood = _likelihood(values, solved, log_determinant)
            points.append(SweepPoint(mean, variance, likelihood))
        return points


def _by_factors(
    values: Tensor, matrix: Tensor, cross: Tensor | None, with_form: bool
) -> Callable[[float], Solved]:
    def at(noise: float) -> Solved:
        factor = cholesky(lifted(matrix, noise))
        if cross is None:
            inverse = inverse_factor(factor)
            solved = inverse.mT @ (inverse @ values)
            return Solved(solved, inverse.square_().sum(0), log_determinant(factor))
        form = quadratic(factor, cross) if with_form else None
        return Solved(solve(factor, values), form, log_determinant(factor))

    return at


def _by_eigenvalues(
    values: Tensor, matrix: Tensor, cross: Tensor | None
) -> Callable[[float], Solved]:
    spectrum, vectors = torch.linalg.eigh(matrix)
    # The kernel is positive semi-definite; negative eigenvalues are rounding errors.
    spectrum = spectrum.clamp(min=0)
    projected = vectors.mT @ values
    squares = (vectors if cross is None else cross @ vectors).square()

    def at(noise: float) -> Solved:
        inverse = 1 / (spectrum + noise)
        solved = vectors @ (inverse[:, None] * projected)
        return Solved(solved, squares @ inverse, -inverse.log().sum())

    return at


def _likelihood(values: Tensor, solved: Tensor, log_determinant: Tensor) -> float:
    n, c = values.shape
    fit = (values * solved).sum()
    return float(-0.5 * (fit + c * log_determinant + n * c * math.log(2 * math.pi)))
