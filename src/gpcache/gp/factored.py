"""Posteriors from Cholesky factors: the base of the exact and the grouped precision."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, quadratic, solve
from gpcache.gp.implicit import posterior_terms
from gpcache.gp.kernels import gram, kernel
from gpcache.gp.precision import Posterior, Precision, proper
from gpcache.support.devices import ensure_memory, free_memory

# The kernel matrix, its factor, and the inverse that leaving out and updating need.
MATRICES = 3


def need_memory(n: int, n_groups: int, n_classes: int, labels: Tensor, dtype: torch.dtype) -> None:
    """Raise an error if n keys in n_groups need more memory than the device has free."""
    required = MATRICES * n * n * dtype.itemsize // n_groups
    free = max(1, free_memory(labels.device))
    enough = math.ceil(2 * required * n_groups / free)
    remedy = f"Use precision='grouped' with n_groups={enough} or more, or precision='nystrom'."
    if enough > n_classes:
        remedy = "Use precision='nystrom' or precision='fourier', or fewer shots."
    ensure_memory(
        required,
        labels.device,
        what=f"A Gaussian process over {n:,} keys in {n_groups} group(s) of classes",
        remedy=remedy,
    )


class FactoredPrecision(Precision):
    """P = (K + noise·I)⁻¹, of all keys at once or block by block."""

    # The layout of keys, values and results; grouping overrides these.

    @property
    def _block_keys(self) -> Tensor:
        return self.keys

    @cached_property
    def _block_values(self) -> Tensor:
        return self.values

    def _covariance(self) -> Tensor:
        """G = K + noise·I; without a gradient for the paper's *nograd*."""
        keys = self._block_keys if self.precision_gradient else self._block_keys.detach()
        return lifted(gram(keys, self.beta), self.noise)

    def _cross(self, queries: Tensor) -> Tensor:
        return kernel(queries, self._block_keys, self.beta)

    def _join_mean(self, mean: Tensor) -> Tensor:
        return mean

    def _join_variance(self, variance: Tensor) -> Tensor:
        return variance[:, None]

    # The posterior.

    @cached_property
    def _factor(self) -> Tensor:
        return cholesky(self._covariance().detach())

    @cached_property
    def _solved(self) -> Tensor:
        return solve(self._factor, self._block_values)

    @property
    def solved_values(self) -> Tensor:
        return self._solved

    def posterior(self, queries: Tensor) -> Posterior:
        cross = self._cross(queries)
        if cross.requires_grad:
            mean, form = posterior_terms(self._covariance(), cross, self._block_values)
        else:
            mean, form = cross @ self._solved, self._form(cross)
        return Posterior(self._join_mean(mean), self._join_variance(proper(1 - form)))

    @torch.no_grad()
    def mean(self, queries: Tensor) -> Tensor:
        return self._join_mean(self._cross(queries) @ self._solved)

    def _form(self, cross: Tensor) -> Tensor:
        return quadratic(self._factor, cross)

    def weights(self, queries: Tensor) -> Tensor:
        return solve(self._factor, self._cross(queries).mT).mT

    @cached_property
    def _inverse(self) -> Tensor:
        return torch.cholesky_inverse(self._factor)


def lifted(matrix: Tensor, noise: float | Tensor) -> Tensor:
    """matrix (..., n, n) + diag(noise), differentiable."""
    result = matrix.clone()
    result.diagonal(dim1=-2, dim2=-1).add_(noise)
    return result
