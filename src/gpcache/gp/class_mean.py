"""One key per class: the normalised mean of its shots, with an exact Gaussian process over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gpcache.gp.exact import ExactPrecision, need_memory
from gpcache.gp.kernels import kernel, unit_rows
from gpcache.gp.precision import BATCH_ELEMENTS, Posterior, Precision, proper


@dataclass(frozen=True)
class Membership:
    """The class key (n,) of each row, and the number of rows (p,) of each class key."""

    key_of_row: Tensor
    counts: Tensor


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
    def leave_one_out(self) -> Posterior:
        """Posterior without each shot: the old key of its class is replaced by a moved key.

        Both steps are updates of P over the p classes. Without the class t,

            k₋t P₋t = kP − (kP)_t P_t / P_tt,

        and the moved key is appended by bordering: only products with P, no refit.
        """
        n, c = self.values.shape
        p, d = len(self._plan.counts), self.keys.shape[1]
        size = max(1, BATCH_ELEMENTS // (8 * p + 2 * (d + c)))
        numbers = torch.arange(n, device=self.keys.device)
        parts = [self._without(rows) for rows in torch.split(numbers, size)]
        return Posterior(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def _without(self, rows: Tensor) -> Posterior:
        """Mean (b, c) and variance (b, 1) of shots (b,), each without itself."""
        over, own = self._over_classes, self._plan.key_of_row[rows]
        left = self._plan.counts[own] - 1  # shots of the class
        sums = self._class_sums(self.keys)[own], self._class_sums(self.values)[own]
        moved = unit_rows(sums[0] - self.keys[rows])
        target = (sums[1] - self.values[rows]) / left.clamp(min=1)[:, None]
        # The shot and the moved key, without the old key.
        queries = torch.stack([self.keys[rows], moved], 1)
        place = own[:, None, None].expand(-1, 2, 1)
        cross = kernel(queries, over.keys, self.beta).scatter(2, place, 0.0)
        weights = cross @ over._inverse
        on_old = weights.gather(2, place)  # (b, 2, 1)
        share = on_old / over._inverse.diagonal()[own, None, None]
        means = cross @ over.solved_values - share * over.solved_values[own, None]
        forms = weights @ cross.mT - share * on_old.mT  # (b, 2, 2)
        # A key without shots has no effect.
        covariance = kernel(queries, moved[:, None], self.beta)[..., 0] - forms[..., 1]
        gain = torch.where(left > 0, covariance[:, 0] / (covariance[:, 1] + self.noise), 0.0)
        mean = means[:, 0] + gain[:, None] * (target - means[:, 1])
        form = forms[:, 0, 0] + gain * covariance[:, 0]
        return Posterior(mean, proper(1 - form)[:, None])
