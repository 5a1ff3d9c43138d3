"""The exact posterior: one Cholesky factor, and exact updates in O(n²) when rows come and go."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gpcache.devices import ensure_memory, free_memory
from gpcache.gp.cholesky import cholesky, log_determinant, quadratic, solve
from gpcache.gp.implicit import posterior_terms
from gpcache.gp.kernels import gram, kernel
from gpcache.gp.precision import OwnTerms, Posterior, Precision, proper

# The kernel matrix, its factor, and the inverse that leaving out and updating need.
MATRICES = 3


def need_memory(n: int, n_groups: int, plan_for: Tensor, dtype: torch.dtype) -> None:
    """Refuse before allocating what n keys in n_groups need beyond what the device has free."""
    required = MATRICES * n * n * dtype.itemsize // n_groups
    free = max(1, free_memory(plan_for.device))
    enough = math.ceil(2 * required * n_groups / free)
    ensure_memory(
        required,
        plan_for.device,
        what=f"A Gaussian process over {n:,} keys in {n_groups} group(s) of classes",
        remedy=f"Use precision='grouped' with n_groups={enough} or more, or precision='nystrom'.",
    )


class ExactPrecision(Precision):
    """P = (K + noise·I)⁻¹ over all keys."""

    @classmethod
    def plan(
        cls, labels: Tensor, n_classes: int, *, dtype: torch.dtype = torch.float64, **_: Any
    ) -> None:
        """Nothing depends on the labels; this is the moment to see whether the keys fit."""
        need_memory(len(labels), 1, labels, dtype)

    # How keys, values and results are laid out. Grouping overrides these and nothing else.

    @cached_property
    def _block_keys(self) -> Tensor:
        return self.keys

    @cached_property
    def _block_values(self) -> Tensor:
        return self.values

    def _covariance(self) -> Tensor:
        """G = K + noise·I, without a gradient where the paper's *nograd* is asked for."""
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

    def mean(self, queries: Tensor) -> Tensor:
        return self._join_mean(self._cross(queries) @ self._solved)

    def _form(self, cross: Tensor) -> Tensor:
        return quadratic(self._factor, cross)

    def weights(self, queries: Tensor) -> Tensor:
        return solve(self._factor, self._cross(queries).mT).mT

    def log_marginal_likelihood(self) -> Tensor:
        n, c = self.values.shape
        fit = (self.values * self.solved_values).sum()
        determinant = log_determinant(self._factor)
        return -0.5 * (fit + c * determinant + n * c * math.log(2 * math.pi))

    @cached_property
    def _inverse(self) -> Tensor:
        return torch.cholesky_inverse(self._factor)

    def _own_terms(self, rows: Tensor) -> OwnTerms:
        # On its own keys the posterior needs no kernel: K P = I − noise·P.
        block = self._inverse[rows[:, :, None], rows[:, None, :]]
        eye = torch.eye(rows.shape[1], dtype=block.dtype, device=block.device)
        weights = eye - self.noise * block
        mean = self.values[rows] - self.noise * self.solved_values[rows]
        variance = self.noise * weights.diagonal(dim1=-2, dim2=-1)[..., None]
        return OwnTerms(mean, variance, weights, weights, block)

    # Exact updates. Each returns a new posterior that carries G, P and PY along.

    def add(self, keys: Tensor, values: Tensor) -> ExactPrecision:
        """The posterior with rows (k, d), (k, c) appended, by bordering."""
        covariance, inverse = self.covariance, self._inverse
        border = kernel(self.keys, keys, self.beta)
        corner = lifted(gram(keys, self.beta), self.noise)
        reach = inverse @ border
        schur = cholesky(corner - border.mT @ reach)
        surprise = solve(schur, values - reach.mT @ self.values)
        gained = solve(schur, reach.mT)
        corner_inverse = torch.cholesky_inverse(schur)
        return self._updated(
            torch.cat([self.keys, keys]),
            torch.cat([self.values, values]),
            torch.cat([torch.cat([covariance, border], 1), torch.cat([border.mT, corner], 1)]),
            torch.cat(
                [
                    torch.cat([inverse + reach @ gained, -gained.mT], 1),
                    torch.cat([-gained, corner_inverse], 1),
                ]
            ),
            torch.cat([self.solved_values - reach @ surprise, surprise]),
        )

    def remove(self, rows: Tensor) -> ExactPrecision:
        """The posterior without the rows of these numbers, by the Schur complement."""
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

    def revalue(self, rows: Tensor, values: Tensor) -> ExactPrecision:
        """The posterior with other values (k, c) for these rows (relabelling): O(n) a row."""
        changed = self.values.clone()
        changed[rows] = values
        solved = self.solved_values + self._inverse[:, rows] @ (values - self.values[rows])
        return self._updated(self.keys, changed, self.covariance, self._inverse, solved)

    def with_columns(self, source: Tensor) -> ExactPrecision:
        """The posterior with other classes: column `source[j]` (c',) of the old ones, or zeros (−1)."""
        present = source >= 0
        values = torch.where(present, self.values[:, source.clamp(min=0)], 0.0)
        solved = torch.where(present, self.solved_values[:, source.clamp(min=0)], 0.0)
        return self._updated(self.keys, values, self.covariance, self._inverse, solved)

    @cached_property
    def covariance(self) -> Tensor:
        """G = K + noise·I (n, n), kept for the drift check."""
        return self._covariance().detach()

    def drift(self) -> float:
        """‖G P z − z‖∞ / ‖z‖∞ for one random z: O(n²), where the full residual is O(n³)."""
        generator = torch.Generator().manual_seed(len(self.keys))
        probe = torch.randn(len(self.keys), generator=generator, dtype=torch.float64)
        probe = probe.to(self.keys)
        residual = self.covariance @ (self._inverse @ probe) - probe
        return float(residual.abs().max() / probe.abs().max())

    def _updated(
        self, keys: Tensor, values: Tensor, covariance: Tensor, inverse: Tensor, solved: Tensor
    ) -> ExactPrecision:
        result = _Updated(None, keys, values, beta=self.beta, noise=self.noise)
        result.covariance, result._inverse, result._solved = covariance, inverse, solved
        if len(keys) and result.drift() > drift_tolerance(keys.dtype):
            return ExactPrecision(None, keys, values, beta=self.beta, noise=self.noise)
        return result


class _Updated(ExactPrecision):
    """A posterior that holds P itself: after an update there is no factor, and none is needed."""

    def _form(self, cross: Tensor) -> Tensor:
        return ((cross @ self._inverse) * cross).sum(-1)

    def weights(self, queries: Tensor) -> Tensor:
        return self._cross(queries) @ self._inverse


def drift_tolerance(dtype: torch.dtype) -> float:
    """How far an updated inverse may be off before it is computed anew: 1e-8 in float64."""
    return 1e-8 if dtype == torch.float64 else 1e-3


def lifted(matrix: Tensor, noise: float | Tensor) -> Tensor:
    """matrix (..., n, n) + diag(noise), differentiable."""
    diagonal = torch.as_tensor(noise, dtype=matrix.dtype, device=matrix.device)
    return matrix + torch.diag_embed(diagonal.expand(matrix.shape[:-1]))
