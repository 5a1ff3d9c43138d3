"""One key per class: the normalised mean of its shots, with an exact Gaussian process over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, quadratic, solve
from gpcache.gp.exact import ExactPrecision
from gpcache.gp.factored import need_memory
from gpcache.gp.kernels import kernel, unit_rows
from gpcache.gp.precision import (
    BATCH_ELEMENTS,
    OwnTerms,
    Posterior,
    Precision,
    padded_sets,
    proper,
)


@dataclass(frozen=True)
class Membership:
    """The class key (n,) of each row, and the number of rows (p,) of each class key."""

    key_of_row: Tensor
    counts: Tensor


class _Moved(NamedTuple):
    """Class keys that b sets of left-out rows change, at most t each, without these rows."""

    touched: Tensor  # (b, p) whether a class is
    classes: Tensor  # (b, t) which are, filled up with others
    real: Tensor  # (b, t) whether one is not filling
    kept: Tensor  # (b, t) whether it has shots left
    keys: Tensor  # (b, t, d)
    values: Tensor  # (b, t, c)


class ClassMeanPrecision(Precision):
    """P over the p classes that have shots."""

    _plan: Membership

    @classmethod
    def plan(
        cls, labels: Tensor, n_classes: int, *, dtype: torch.dtype = torch.float64, **_: Any
    ) -> Membership:
        """The class key of each row; raises an error if p class keys need too much memory."""
        # One group at most: the advice to use more groups would count shots, not classes.
        need_memory(min(n_classes, len(labels)), 1, 1, labels, dtype)
        _, key_of_row, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        return Membership(key_of_row, counts)

    def _class_sums(self, rows: Tensor) -> Tensor:
        """Sum (p, k) of rows (n, k) by class."""
        return rows.new_zeros(len(self._plan.counts), rows.shape[1]).index_add(
            0, self._plan.key_of_row, rows
        )

    @cached_property
    def _over_classes(self) -> ExactPrecision:
        values = self._class_sums(self.values) / self._plan.counts[:, None]
        return ExactPrecision(
            None,
            unit_rows(self._class_sums(self.keys)),
            values,
            beta=self.beta,
            noise=self.noise,
            precision_gradient=self.precision_gradient,
        )

    def prior_rows(self, queries: Tensor) -> Tensor:
        """Covariance (m, n) of queries and shots, through the key of each shot's class."""
        return self._over_classes.prior_rows(queries)[:, self._plan.key_of_row]

    @cached_property
    def prior(self) -> Tensor:
        key_of_row = self._plan.key_of_row
        return self._over_classes.prior[key_of_row[:, None], key_of_row]

    def posterior(self, queries: Tensor) -> Posterior:
        return self._over_classes.posterior(queries)

    def mean(self, queries: Tensor) -> Tensor:
        return self._over_classes.mean(queries)

    def weights(self, queries: Tensor) -> Tensor:
        """Weights (m, n): that of a class key, divided equally between its shots."""
        shared = self._over_classes.weights(queries) / self._plan.counts
        return shared[:, self._plan.key_of_row]

    @property
    def weighted_values(self) -> Tensor:
        return self._over_classes.values[self._plan.key_of_row]

    @property
    def solved_values(self) -> Tensor:
        return self._over_classes.solved_values[self._plan.key_of_row]

    def log_marginal_likelihood(self) -> Tensor:
        return self._over_classes.log_marginal_likelihood()

    @torch.no_grad()
    def leave_out(self, sets: Tensor) -> Posterior:
        """Posterior without sets of shots: old keys of their classes are replaced by moved keys.

        Both steps are block updates of P over the p classes. Without the changed classes T,

            k₋T P₋T = kP − (kP)_T (P_TT)⁻¹ P_T,

        and the moved keys are appended by bordering: only products with P, no refit.
        """
        n, c = self.values.shape
        p, d = len(self._plan.counts), self.keys.shape[1]
        mean, variance = self.values.new_empty(n, c), self.values.new_empty(n, 1)
        for rows, present in padded_sets(sets, BATCH_ELEMENTS // (8 * p + 2 * (d + c))):
            moved = self._moved(rows, present)
            queries = torch.cat([self.keys[rows], moved.keys], 1)
            cross = kernel(queries, self._over_classes.keys, self.beta)
            cross = torch.where(moved.touched[:, None, :], 0.0, cross)
            means, forms = self._without(moved, cross)
            s = rows.shape[1]
            # Moved keys and the remaining ones; a key without shots has no effect.
            covariance = kernel(queries, moved.keys, self.beta) - forms[:, :, s:]
            covariance = torch.where(moved.kept[:, None, :], covariance, 0.0)
            corner = torch.where(moved.kept[:, :, None], covariance[:, s:], 0.0)
            corner.diagonal(dim1=-2, dim2=-1).add_(1 + moved.kept.to(corner) * (self.noise - 1))
            factor = cholesky(corner)
            surprise = torch.where(moved.kept[..., None], moved.values - means[:, s:], 0.0)
            inside = rows[present]
            mean[inside] = (means[:, :s] + covariance[:, :s] @ solve(factor, surprise))[present]
            form = forms[:, :s, :s].diagonal(dim1=-2, dim2=-1) + quadratic(
                factor, covariance[:, :s]
            )
            variance[inside] = proper(1 - form)[present][:, None]
        return Posterior(mean, variance)

    def _moved(self, rows: Tensor, present: Tensor) -> _Moved:
        """The class keys that sets of rows (b, s) change, computed without these rows."""
        b, p = len(rows), len(self._plan.counts)
        copy = torch.arange(b, device=rows.device)[:, None].expand_as(rows)[present]
        inside = rows[present]
        gone = torch.zeros(b, p, dtype=torch.long, device=rows.device)
        place = (copy, self._plan.key_of_row[inside])
        gone.index_put_(place, torch.ones_like(inside), accumulate=True)
        touched = gone > 0
        # The changed classes first; sets that change fewer classes are padded.
        classes = touched.long().argsort(dim=1, descending=True, stable=True)
        classes = classes[:, : int(touched.sum(1).max())]
        real = touched.gather(1, classes)
        slot = torch.zeros_like(gone).scatter_(
            1, classes, torch.arange(classes.shape[1], device=rows.device).expand_as(classes)
        )
        place = (copy, slot[place])
        keys = self._class_sums(self.keys)[classes]
        values = self._class_sums(self.values)[classes]
        keys.index_put_(place, -self.keys[inside], accumulate=True)
        values.index_put_(place, -self.values[inside], accumulate=True)
        counts = self._plan.counts[classes] - gone.gather(1, classes)
        kept = real & (counts > 0)
        return _Moved(
            touched, classes, real, kept, unit_rows(keys), values / counts.clamp(min=1)[..., None]
        )

    def _without(self, moved: _Moved, cross: Tensor) -> tuple[Tensor, Tensor]:
        """k P₋T V (b, q, c) and k P₋T kᵀ (b, q, q) for rows k of cross (b, q, p), zero on T."""
        over = self._over_classes
        weights = cross @ over._inverse
        on_touched = weights.gather(2, moved.classes[:, None, :].expand(-1, cross.shape[1], -1))
        on_touched = torch.where(moved.real[:, None, :], on_touched, 0.0)
        block = over._inverse[moved.classes[:, :, None], moved.classes[:, None, :]]
        pair = moved.real[:, :, None] & moved.real[:, None, :]
        eye = torch.eye(block.shape[-1], dtype=block.dtype, device=block.device)
        solved = solve(cholesky(torch.where(pair, block, eye)), on_touched.mT).mT
        means = cross @ over.solved_values - solved @ over.solved_values[moved.classes]
        return means, weights @ cross.mT - solved @ on_touched.mT

    def _own_terms(self, rows: Tensor) -> OwnTerms:
        raise AssertionError("leave_out does not use P here, because its keys move")
