"""The base of Nyström and random Fourier features: K ≈ U S⁻¹ Uᵀ with a small core S.

Everything is computed from M = noise·S + UᵀU (L, L), by Woodbury: P = (I − U M⁻¹ Uᵀ) / noise.
"Approximate the precision" can mean two things, which differ much (the option `cross`):

* ``cross="consistent"``: the query's kernel row is approximated as well, mean = b M⁻¹ Uᵀ Y with
  b = u(query) — the posterior of the approximate kernel.
* ``cross="exact"``: the query's kernel row k stays exact, mean = k P Y — usually the better mean.

Both use the variance 1 − b S⁻¹ bᵀ + noise·b M⁻¹ bᵀ (deterministic training conditional): it lies in
(0, 1], while 1 − k P kᵀ with an exact k may be negative. The core is always computed in float64,
because it is small and ill-conditioned.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, log_determinant, quadratic, solve
from gpcache.gp.implicit import posterior_terms
from gpcache.gp.kernels import kernel
from gpcache.gp.precision import OwnTerms, Posterior, Precision, proper
from gpcache.support.devices import ensure_memory

Cross = Literal["exact", "consistent"]


def need_low_rank_memory(n: int, rank: int, device: torch.device, remedy: str) -> None:
    """Raise an error if U, a temporary copy and the three matrices of the core do not fit."""
    ensure_memory(
        torch.float64.itemsize * (2 * n * rank + 3 * rank * rank),
        device,
        what=f"A posterior of rank {rank:,} over {n:,} keys",
        remedy=remedy,
    )


class LowRankPrecision(Precision):
    """P ≈ (U S⁻¹ Uᵀ + noise·I)⁻¹."""

    @property
    def _cross_is_exact(self) -> bool:
        """Whether the option `cross` of the plan is "exact"."""
        return bool(self._plan.cross == "exact")

    @abstractmethod
    def _features(self, points: Tensor) -> Tensor:
        """u(points) (m, L) in float64."""

    @abstractmethod
    def _core(self) -> Tensor:
        """S (L, L) in float64."""

    @cached_property
    def _values64(self) -> Tensor:
        return self.values.double()

    def _exact_cross(self, queries: Tensor) -> Tensor:
        return kernel(queries.double(), self.keys.double(), self.beta)

    def prior_rows(self, queries: Tensor) -> Tensor:
        """u S⁻¹ Uᵀ (m, n), also if `cross` is "exact": the coefficients were fitted with it."""
        return (self._features(queries) @ self._prior_reach).to(self.values)

    def prior_product(self, right: Tensor) -> Tensor:
        """U (S⁻¹ Uᵀ right), without a matrix of n rows and columns."""
        return (self._u @ (self._prior_reach @ right.double())).to(right)

    @cached_property
    def _prior_reach(self) -> Tensor:
        """S⁻¹ Uᵀ (L, n)."""
        return solve(self._core_factor, self._u.mT)

    # The same quantities without a gradient, computed once.

    @cached_property
    def _u(self) -> Tensor:
        return self._features(self.keys).detach()

    @cached_property
    def _core_factor(self) -> Tensor:
        return cholesky(self._core().detach())

    @cached_property
    def _m_factor(self) -> Tensor:
        return cholesky(self.noise * self._core().detach() + self._u.mT @ self._u)

    @cached_property
    def _solved_core(self) -> Tensor:
        return solve(self._m_factor, self._u.mT @ self._values64)

    @property
    def solved_values(self) -> Tensor:
        return ((self._values64 - self._u @ self._solved_core) / self.noise).to(self.values)

    def posterior(self, queries: Tensor) -> Posterior:
        if self.keys.requires_grad or queries.requires_grad:
            return self._differentiable(queries)
        near = self._features(queries)
        unexplained = 1 - quadratic(self._core_factor, near)
        variance = unexplained + self.noise * quadratic(self._m_factor, near)
        return Posterior(self.mean(queries), proper(variance)[:, None].to(self.values))

    @torch.no_grad()
    def mean(self, queries: Tensor) -> Tensor:
        if self._cross_is_exact:
            cross = self._exact_cross(queries)
            mean = (cross @ (self._values64 - self._u @ self._solved_core)) / self.noise
        else:
            mean = self._features(queries) @ self._solved_core
        return mean.to(self.values)

    def _differentiable(self, queries: Tensor) -> Posterior:
        if not self.precision_gradient:
            return self._with_fixed_precision(queries)
        u, core = self._features(self.keys), self._core()
        matrix = self.noise * core + u.mT @ u
        near = self._features(queries)
        if self._cross_is_exact:
            cross = self._exact_cross(queries)
            rows = torch.cat([cross @ u, near])
            terms, forms = posterior_terms(matrix, rows, u.mT @ self._values64)
            m = len(queries)
            mean = (cross @ self._values64 - terms[:m]) / self.noise
            form = forms[m:]
        else:
            mean, form = posterior_terms(matrix, near, u.mT @ self._values64)
        _, prior_form = posterior_terms(core, near, near.new_zeros(core.shape[0], 1))
        variance = proper(1 - prior_form + self.noise * form)[:, None]
        return Posterior(mean.to(self.values), variance.to(self.values))

    def _with_fixed_precision(self, queries: Tensor) -> Posterior:
        """The paper's *nograd*: kernel rows b S⁻¹ Uᵀ move with the keys, P does not."""
        u, core = self._features(self.keys), self._core()
        consistent, _ = posterior_terms(core, self._features(queries), u.mT)
        cross = self._exact_cross(queries) if self._cross_is_exact else consistent
        u, core = u.detach(), core.detach()
        factor = cholesky(self.noise * core + u.mT @ u)
        explained = solve(factor, (consistent @ u).mT).mT @ u.mT
        form = (consistent * (consistent - explained)).sum(-1) / self.noise
        solved = solve(factor, u.mT @ self._values64)
        mean = (cross @ self._values64 - (cross @ u) @ solved) / self.noise
        variance = proper(1 - form)[:, None]
        return Posterior(mean.to(self.values), variance.to(self.values))

    def _consistent_weights(self, queries: Tensor) -> Tensor:
        return solve(self._m_factor, self._features(queries).mT).mT @ self._u.mT

    def weights(self, queries: Tensor) -> Tensor:
        if not self._cross_is_exact:
            return self._consistent_weights(queries).to(self.values)
        cross = self._exact_cross(queries)
        explained = solve(self._m_factor, (cross @ self._u).mT).mT @ self._u.mT
        return ((cross - explained) / self.noise).to(self.values)

    def log_marginal_likelihood(self) -> Tensor:
        n, c = self.values.shape
        rank = self._u.shape[1]
        determinant = (
            log_determinant(self._m_factor)
            - log_determinant(self._core_factor)
            + (n - rank) * math.log(self.noise)
        )
        fit = (self.values * self.solved_values).sum()
        likelihood = -0.5 * (fit + c * determinant + n * c * math.log(2 * math.pi))
        return likelihood.to(self.values)

    def _own_terms(self, rows: Tensor) -> OwnTerms:
        flat, shape = rows.flatten(), rows.shape
        mean, variance = self.posterior(self.keys[flat])
        columns = rows[:, None, :].expand(-1, shape[1], -1)
        mean_weights = self.weights(self.keys[flat]).view(*shape, -1).gather(2, columns)
        consistent = self._consistent_weights(self.keys[flat]).to(self.values)
        variance_weights = consistent.view(*shape, -1).gather(2, columns)
        u = self._u[flat]
        # One system for all sets: a batch of sets would make as many copies of the factor.
        solved = solve(self._m_factor, u.mT).mT.view(*shape, -1)
        hat = u.view(*shape, -1) @ solved.mT
        eye = torch.eye(shape[1], dtype=hat.dtype, device=hat.device)
        block = ((eye - hat) / self.noise).to(self.values)
        return OwnTerms(
            mean.view(*shape, -1), variance.view(*shape, -1), mean_weights, variance_weights, block
        )
