"""The exact posterior over all keys, and exact updates in O(n²) for added or removed rows."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, log_determinant, solve
from gpcache.gp.factored import FactoredPrecision, lifted, need_memory
from gpcache.gp.implicit import symmetric_inverse
from gpcache.gp.kernels import gram, kernel
from gpcache.gp.precision import OwnTerms, Posterior, proper
from gpcache.gp.quick_variance import LARGE, QuickVariance, quick_variance


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
        cls,
        labels: Tensor,
        n_classes: int,
        *,
        dtype: torch.dtype = torch.float64,
        **_: Any,
    ) -> Any:
        """No plan is needed; raises an error if the keys need too much memory."""
        need_memory(len(labels), 1, n_classes, labels, dtype)

    def log_marginal_likelihood(self) -> Tensor:
        n, c = self.values.shape
        fit = (self.values * self.solved_values).sum()
        determinant = log_determinant(self._factor)
        return -0.5 * (fit + c * determinant + n * c * math.log(2 * math.pi))

    def _own_terms(self, rows: Tensor) -> OwnTerms:
        # At its own keys the posterior needs no kernel: K P = I − noise·P.
        block = self._inverse[rows[:, :, None], rows[:, None, :]]
        eye = torch.eye(rows.shape[1], dtype=block.dtype, device=block.device)
        weights = eye - self.noise * block
        mean = self.values[rows] - self.noise * self.solved_values[rows]
        variance = self.noise * weights.diagonal(dim1=-2, dim2=-1)[..., None]
        return OwnTerms(mean, variance, weights, weights, block)

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
