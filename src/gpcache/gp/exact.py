"""Posteriors from Cholesky factors, and the exact one over all keys.

The exact posterior has updates in O(n²) for added or removed rows.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, log_determinant, quadratic, solve
from gpcache.gp.implicit import posterior_terms, symmetric_inverse
from gpcache.gp.kernels import gram, kernel
from gpcache.gp.precision import BATCH_ELEMENTS, Posterior, Precision, padded_sets, proper
from gpcache.gp.quick_variance import LARGE, QuickVariance, quick_variance
from gpcache.support.devices import ensure_memory, free_memory, has_memory

# The kernel matrix, its factor, and the inverse that leaving out and updating need.
MATRICES = 3


def need_memory(n: int, n_groups: int, n_classes: int, labels: Tensor, dtype: torch.dtype) -> None:
    """Raise an error if n keys in n_groups need more memory than the device has free."""
    required = MATRICES * n * n * dtype.itemsize // n_groups
    if has_memory(required, labels.device):
        return
    enough = math.ceil(2 * required * n_groups / max(1, free_memory(labels.device)))
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


class ExactPrecision(FactoredPrecision):
    """P = (K + noise·I)⁻¹ over all keys.

    After an update it holds P itself, without a factor.
    """

    _holds_inverse = False

    def _form(self, cross: Tensor) -> Tensor:
        if self._holds_inverse:
            return ((cross @ self._inverse) * cross).sum(-1)
        return super()._form(cross)

    def weights(self, queries: Tensor) -> Tensor:
        if self._holds_inverse:
            return self._cross(queries) @ self._inverse
        return super().weights(queries)

    @classmethod
    def plan(
        cls, labels: Tensor, n_classes: int, *, dtype: torch.dtype = torch.float64, **_: Any
    ) -> Any:
        """No plan is needed; raises an error if the keys need too much memory."""
        need_memory(len(labels), 1, n_classes, labels, dtype)

    def log_marginal_likelihood(self) -> Tensor:
        n, c = self.values.shape
        fit = (self.values * self.solved_values).sum()
        determinant = log_determinant(self._factor)
        return -0.5 * (fit + c * determinant + n * c * math.log(2 * math.pi))

    def leave_one_out(self) -> Posterior:
        return self.leave_out(torch.arange(len(self.keys), device=self.keys.device))

    @torch.no_grad()
    def leave_out(self, sets: Tensor) -> Posterior:
        """Posterior at every cached row without its set; `sets` (n,) has the set of each row.

        With A = PY, the mean of a set T is Y_T − (P_TT)⁻¹ A_T, its variance diag((P_TT)⁻¹) − noise.
        """
        mean, variance = torch.empty_like(self.values), self.values.new_ones(len(self.keys), 1)
        for rows, present in padded_sets(sets, BATCH_ELEMENTS // max(1, len(self.keys))):
            pair = present[:, :, None] & present[:, None, :]
            eye = torch.eye(rows.shape[1], dtype=mean.dtype, device=mean.device)
            block = torch.where(pair, self._inverse[rows[:, :, None], rows[:, None, :]], eye)
            inverse, inside = torch.linalg.inv(block), rows[present]
            mean[inside] = (self.values[rows] - inverse @ self.solved_values[rows])[present]
            spread = inverse.diagonal(dim1=-2, dim2=-1)[present] - self.noise
            variance[inside] = spread[:, None]
        return Posterior(mean, proper(variance))

    @torch.no_grad()
    def variance(
        self, queries: Tensor, *, quick: bool = False, rows: Tensor | None = None
    ) -> Tensor:
        rows = self._cross(queries) if rows is None else rows
        if quick and self._quick is not None:
            return proper(self._quick(rows))[:, None]
        return proper(1 - self._form(rows))[:, None]

    @cached_property
    def _quick(self) -> QuickVariance | None:
        if len(self.keys) < LARGE:
            return None
        return quick_variance(gram(self.keys, self.beta), self._factor, self.noise)

    def posterior_without(self, queries: Tensor, rows: Tensor) -> Posterior:
        """Mean (m, c) and variance (m, 1) of queries (m, d), each without the key of its row (m,).

        With w = k P: mean − wᵢ (P Y)ᵢ / Pᵢᵢ and variance + wᵢ² / Pᵢᵢ.
        """
        inverse = symmetric_inverse(self._covariance())
        cross = self._cross(queries)
        solved = inverse @ self.values
        weight = (cross * inverse[rows]).sum(1, keepdim=True)
        diagonal = inverse.diagonal()[rows, None]
        mean = cross @ solved - weight / diagonal * solved[rows]
        form = ((cross @ inverse) * cross).sum(1, keepdim=True)
        return Posterior(mean, proper(1 - form + weight.square() / diagonal))

    # Exact updates. Each returns a new posterior with updated G, P and PY.

    def add(self, keys: Tensor, values: Tensor) -> ExactPrecision:
        """The posterior with rows (k, d), (k, c) appended, by bordering."""
        inverse = self._inverse
        border = kernel(self.keys, keys, self.beta)
        corner = lifted(gram(keys, self.beta), self.noise)
        reach = inverse @ border
        schur = cholesky(corner - border.mT @ reach)
        surprise = solve(schur, values - reach.mT @ self.values)
        gained = solve(schur, reach.mT)
        return self._updated(
            torch.cat([self.keys, keys]),
            torch.cat([self.values, values]),
            _bordered(self.covariance, border, corner),
            _bordered(inverse + reach @ gained, -gained.mT, torch.cholesky_inverse(schur)),
            torch.cat([self.solved_values - reach @ surprise, surprise]),
        )

    def remove(self, rows: Tensor) -> ExactPrecision:
        """The posterior without these rows, by the Schur complement."""
        kept = torch.ones(len(self.keys), dtype=torch.bool, device=self.keys.device)
        kept[rows] = False
        gone = ~kept
        inverse, solved = self._inverse, self.solved_values
        block = cholesky(inverse[gone][:, gone])
        edge = inverse[kept][:, gone]
        return self._updated(
            self.keys[kept],
            self.values[kept],
            self.covariance[kept][:, kept],
            inverse[kept][:, kept] - edge @ solve(block, edge.mT),
            solved[kept] - edge @ solve(block, solved[gone]),
        )

    def with_values(self, values: Tensor) -> ExactPrecision:
        """The posterior with other values (n, c'): O(n) for each row that changed."""
        if values.shape != self.values.shape:  # other classes
            solved = self._inverse @ values
        else:
            rows = (values != self.values).any(1)
            if not bool(rows.any()):
                return self
            change = (values - self.values)[rows]
            solved = self.solved_values + self._inverse[:, rows] @ change
        return self._updated(self.keys, values, self.covariance, self._inverse, solved)

    @cached_property
    def covariance(self) -> Tensor:
        """G = K + noise·I (n, n), kept for the drift check."""
        return self._covariance().detach()

    def drift(self) -> float:
        """The residuals of G P z = z and G (P Y) r = Y r, for one random z and r.

        They are relative to the largest entry and cost O(n²); the full residual costs O(n³).
        """
        n, c = self.values.shape
        generator = torch.Generator().manual_seed(n)
        probe = torch.randn(n, generator=generator, dtype=torch.float64).to(self.keys)
        mix = torch.randn(c, generator=generator, dtype=torch.float64).to(self.keys)
        target = torch.stack([probe, self.values @ mix], 1)
        answer = torch.stack([self._inverse @ probe, self._solved @ mix], 1)
        size = target.abs().amax(0).clamp(min=1.0)
        return float(((self.covariance @ answer - target).abs().amax(0) / size).max())

    def _updated(
        self, keys: Tensor, values: Tensor, covariance: Tensor, inverse: Tensor, solved: Tensor
    ) -> ExactPrecision:
        result = ExactPrecision(None, keys, values, beta=self.beta, noise=self.noise)
        result._holds_inverse = True
        result.covariance, result._inverse, result._solved = covariance, inverse, solved
        # A drift of NaN must count as too large.
        if len(keys) and not result.drift() <= drift_tolerance(keys.dtype):
            return ExactPrecision(None, keys, values, beta=self.beta, noise=self.noise)
        return result


def drift_tolerance(dtype: torch.dtype) -> float:
    """The drift at which an updated inverse is computed again: 1e-8 in float64."""
    return 1e-8 if dtype == torch.float64 else 1e-3


def _bordered(matrix: Tensor, edge: Tensor, corner: Tensor) -> Tensor:
    """The symmetric matrix of a block (n, n), its edge (n, k) and its corner (k, k)."""
    return torch.cat([torch.cat([matrix, edge], 1), torch.cat([edge.mT, corner], 1)])


def lifted(matrix: Tensor, noise: float | Tensor) -> Tensor:
    """matrix (..., n, n) + diag(noise), differentiable."""
    result = matrix.clone()
    result.diagonal(dim1=-2, dim2=-1).add_(noise)
    return result
