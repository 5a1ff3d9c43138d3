"""Nyström and random Fourier features: K ≈ U S⁻¹ Uᵀ with a small core S.

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
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, jitter_of, log_determinant, quadratic, solve
from gpcache.gp.exact import lifted
from gpcache.gp.implicit import posterior_terms
from gpcache.gp.kernels import gram, kernel
from gpcache.gp.precision import OwnTerms, Posterior, Precision, proper, rank_within
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
        keys, own, u = self.keys[rows], rows[:, None], self._u[rows]
        mean, variance = self.posterior(keys)
        mean_weight = self.weights(keys).gather(1, own)
        variance_weight = self._consistent_weights(keys).gather(1, own).to(self.values)
        hat = (u * solve(self._m_factor, u.mT).mT).sum(1, keepdim=True)
        diagonal = ((1 - hat) / self.noise).to(self.values)
        return OwnTerms(mean, variance, mean_weight, variance_weight, diagonal)


@dataclass(frozen=True)
class Landmarks:
    """Row numbers (L,) of the landmarks, and the option `cross`."""

    rows: Tensor
    cross: Cross


class NystromPrecision(LowRankPrecision):
    """P through landmarks, an equal number of shots of every class.

    U = K(keys, landmarks) and S = K(landmarks, landmarks) plus jitter. It needs no singular value
    decomposition, so any number of landmarks works, also with duplicates. With every key a landmark
    it is exact.
    """

    _plan: Landmarks

    @classmethod
    def plan(
        cls,
        labels: Tensor,
        n_classes: int,
        *,
        n_landmarks: int | None = None,
        cross: Cross = "exact",
        order: Tensor | None = None,
        seed: int = 0,
        **_: Any,
    ) -> Landmarks:
        """The first rows of each class in `order` (n,), as many per class as `n_landmarks` allows.

        A class with fewer rows gives all of them; at least one row of each class is taken.
        """
        if order is None:
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        order = order.to(labels.device)
        per_class = max(1, (n_classes if n_landmarks is None else n_landmarks) // n_classes)
        rank = rank_within(labels, order)
        rows = torch.nonzero(rank < per_class).flatten()
        need_low_rank_memory(len(labels), len(rows), labels.device, "Use fewer n_landmarks.")
        return Landmarks(rows, cross)

    def _features(self, points: Tensor) -> Tensor:
        return kernel(points.double(), self.keys[self._plan.rows].double(), self.beta)

    def _core(self) -> Tensor:
        landmarks = self.keys[self._plan.rows].double()
        return lifted(gram(landmarks, self.beta), jitter_of(torch.float64))


@dataclass(frozen=True)
class Frequencies:
    """Standard normal draws (d, D/2), which are scaled by √β when used, and the option `cross`."""

    draws: Tensor
    cross: Cross


class FourierPrecision(LowRankPrecision):
    """P through D random Fourier features: κ(x, y) ≈ φ(x)ᵀφ(y) with frequencies from N(0, β).

    Each frequency has a cosine and a sine: φ(x)ᵀφ(x) = 1 exactly, so the variance of the
    approximation needs no correction, and the error is lower than with random phases.
    """

    _plan: Frequencies

    @classmethod
    def plan(  # type: ignore[override]  # the width is not optional here
        cls,
        labels: Tensor,
        n_classes: int,  # noqa: ARG003 — the interface's
        *,
        width: int,
        n_features: int = 1024,
        cross: Cross = "exact",
        seed: int = 0,
        **_: Any,
    ) -> Frequencies:
        """Frequencies for features of this width; `n_features` is rounded up to an even number."""
        need_low_rank_memory(len(labels), n_features, labels.device, "Use fewer n_features.")
        generator = torch.Generator().manual_seed(seed)
        draws = torch.randn(width, (n_features + 1) // 2, generator=generator, dtype=torch.float64)
        return Frequencies(draws.to(labels.device), cross)

    def _features(self, points: Tensor) -> Tensor:
        phase = points.double() @ (math.sqrt(self.beta) * self._plan.draws)
        return torch.cat([phase.cos(), phase.sin()], -1) / math.sqrt(self._plan.draws.shape[1])

    def _core(self) -> Tensor:
        size = 2 * self._plan.draws.shape[1]
        return torch.eye(size, dtype=torch.float64, device=self.keys.device)
