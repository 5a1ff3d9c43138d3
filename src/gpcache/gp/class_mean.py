"""One key per class: the normalised mean of its shots, with an exact Gaussian process over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, quadratic, solve
from gpcache.gp.exact import ExactPrecision
from gpcache.gp.factored import need_memory
from gpcache.gp.grouped import masked_covariance
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
    """Which class key (n,) a row belongs to, and how many rows (p,) each class key has."""

    key_of_row: Tensor
    counts: Tensor


class ClassMeanPrecision(Precision):
    """P over the p classes that have shots."""

    _plan: Membership

    @classmethod
    def plan(
        cls, labels: Tensor, n_classes: int, *, dtype: torch.dtype = torch.float64, **_: Any
    ) -> Membership:
        """Which rows make which key; the classes must fit as the keys of an exact posterior do."""
        # One group at most: the remedy of more groups would count shots, not classes.
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

    def posterior(self, queries: Tensor) -> Posterior:
        return self._over_classes.posterior(queries)

    def mean(self, queries: Tensor) -> Tensor:
        return self._over_classes.mean(queries)

    def weights(self, queries: Tensor) -> Tensor:
        """A class key's weight, shared equally by the shots it was made of."""
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
        """Leaving a shot out moves a key instead of removing one: small refits, in batches."""
        n, c = self.values.shape
        p, d = len(self._plan.counts), self.keys.shape[1]
        key_sums, value_sums = self._class_sums(self.keys), self._class_sums(self.values)
        mean, variance = self.values.new_empty(n, c), self.values.new_empty(n, 1)
        for rows, present in padded_sets(sets, max(1, BATCH_ELEMENTS // (p * (p + d + c)))):
            b = len(rows)
            # Take each left-out row away from the sums of its class, in its own set's copy.
            copy = torch.arange(b, device=rows.device)[:, None].expand_as(rows)[present]
            inside = rows[present]
            place = (copy, self._plan.key_of_row[inside])
            keys = key_sums.repeat(b, 1, 1).index_put(place, -self.keys[inside], accumulate=True)
            values = value_sums.repeat(b, 1, 1).index_put(
                place, -self.values[inside], accumulate=True
            )
            ones = torch.ones_like(inside)
            counts = self._plan.counts.repeat(b, 1).index_put(place, -ones, accumulate=True)
            left = counts > 0
            keys = unit_rows(keys)
            factor = cholesky(masked_covariance(keys, left, self.beta, self.noise))
            targets = torch.where(left[..., None], values / counts.clamp(min=1)[..., None], 0.0)
            cross = kernel(self.keys[rows], keys, self.beta)
            cross = torch.where(left[:, None, :], cross, 0.0)
            mean[inside] = (cross @ solve(factor, targets))[present]
            variance[inside] = proper(1 - quadratic(factor, cross))[present][:, None]
        return Posterior(mean, variance)

    def _own_terms(self, rows: Tensor) -> OwnTerms:
        raise AssertionError("leave_out does not go through P here: its keys move")
