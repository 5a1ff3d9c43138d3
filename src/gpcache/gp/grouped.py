"""Classes split into random groups; each group has a separate Gaussian process over its shots.

Groups are a batch dimension: unequal groups are padded with keys that have no effect (a kernel row
of zeros and a diagonal of one), so that one batched factorisation is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpcache.gp.cholesky import log_determinant
from gpcache.gp.exact import FactoredPrecision, need_memory
from gpcache.gp.kernels import gram
from gpcache.gp.precision import OwnTerms


@dataclass(frozen=True)
class Groups:
    """The (group, slot) of each row and class, and the padded lists of each group."""

    rows: Tensor  # (g, s) row numbers, padded
    row_present: Tensor  # (g, s)
    row_group: Tensor  # (n,)
    row_slot: Tensor  # (n,)
    classes: Tensor  # (g, t) class numbers, padded
    class_present: Tensor  # (g, t)
    class_group: Tensor  # (c,)
    class_slot: Tensor  # (c,)
    full: bool  # whether no group has padding among its rows


class GroupedPrecision(FactoredPrecision):
    """P block by block: a key depends only on the other keys of its group."""

    _plan: Groups

    @classmethod
    def plan(
        cls,
        labels: Tensor,
        n_classes: int,
        *,
        n_groups: int = 8,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        **_: Any,
    ) -> Groups:
        """A seeded random split of the classes into groups of equal size, up to one class."""
        n_groups = min(n_groups, n_classes)
        shuffled = torch.randperm(n_classes, generator=torch.Generator().manual_seed(seed))
        class_group = torch.empty(n_classes, dtype=torch.long)
        class_group[shuffled] = torch.arange(n_classes) % n_groups
        classes = _padded(class_group.to(labels.device), n_groups)
        rows = _padded(classes.group[labels], n_groups)
        need_memory(rows.numbers.numel(), n_groups, n_classes, labels, dtype)
        return Groups(*rows, *classes, full=bool(rows.present.all()))

    @property
    def class_column(self) -> Tensor:
        return self._plan.class_group

    @property  # not cached: a value from inference has no gradient, which training needs
    def _block_keys(self) -> Tensor:
        # Selecting, not indexing: its gradient is a plain sum, that of indexing sorts first.
        rows = self._plan.rows
        return self.keys.index_select(0, rows.flatten()).view(*rows.shape, -1)

    @cached_property
    def _block_values(self) -> Tensor:
        values = self.values[self._plan.rows[:, :, None], self._plan.classes[:, None, :]]
        real = self._plan.row_present[:, :, None] & self._plan.class_present[:, None, :]
        return torch.where(real, values, 0.0)

    def _covariance(self) -> Tensor:
        covariance, present = super()._covariance(), self._plan.row_present
        if self._plan.full:
            return covariance
        eye = torch.eye(present.shape[1], dtype=covariance.dtype, device=covariance.device)
        return torch.where(present[:, :, None] & present[:, None, :], covariance, eye)

    def _cross(self, queries: Tensor) -> Tensor:
        cross = super()._cross(queries)
        if self._plan.full:
            return cross
        return torch.where(self._plan.row_present[:, None, :], cross, 0.0)

    @cached_property
    def _prior_blocks(self) -> list[tuple[Tensor, Tensor]]:
        """Row numbers (s,) of each group, and the prior's covariance (s, s) of its keys."""
        plan = self._plan
        groups = [rows[real] for rows, real in zip(plan.rows, plan.row_present, strict=True)]
        return [(rows, gram(self.keys[rows].detach(), self.beta)) for rows in groups]

    def prior_product(self, right: Tensor) -> Tensor:
        """The prior's covariance times (..., n, c), group by group."""
        inside = torch.where(self._same_group, right, 0.0)
        products = torch.zeros_like(inside)
        for rows, block in self._prior_blocks:
            products[..., rows, :] = block @ inside[..., rows, :]
        return torch.where(self._same_group, products, 0.0)

    def prior_coefficients(self, coefficients: Tensor) -> Tensor:
        return torch.where(self._same_group, coefficients, 0.0)

    def _join_mean(self, mean: Tensor) -> Tensor:
        places = self._plan.class_group * mean.shape[-1] + self._plan.class_slot
        return mean.transpose(0, 1).flatten(1).index_select(1, places)

    def _join_variance(self, variance: Tensor) -> Tensor:
        return variance.mT

    @property
    def weighted_values(self) -> Tensor:
        return torch.where(self._same_group, self.values, 0.0)

    @property
    def solved_values(self) -> Tensor:
        solved = self._solved[self._plan.row_group, self._plan.row_slot]  # (n, t)
        return torch.where(self._same_group, solved[:, self._plan.class_slot], 0.0)

    @property
    def _same_group(self) -> Tensor:
        return self._plan.row_group[:, None] == self._plan.class_group[None, :]

    def weights(self, queries: Tensor) -> Tensor:
        return super().weights(queries)[self._plan.row_group, :, self._plan.row_slot].mT

    def log_marginal_likelihood(self) -> Tensor:
        classes = self._plan.class_present.sum(-1).to(self.values.dtype)
        rows = self._plan.row_present.sum(-1)
        fit = (self._block_values * self._solved).sum()
        # Padding has a unit diagonal, which does not change the determinant.
        determinant = (classes * log_determinant(self._factor)).sum()
        return -0.5 * (fit + determinant + (rows * classes).sum() * math.log(2 * math.pi))

    def _own_terms(self, rows: Tensor) -> OwnTerms:
        mean, variance = self.posterior(self.keys[rows])
        weight = self.weights(self.keys[rows]).gather(1, rows[:, None])
        group, slot = self._plan.row_group[rows], self._plan.row_slot[rows]
        own = torch.nn.functional.one_hot(group, variance.shape[1])
        diagonal = self._inverse.diagonal(dim1=-2, dim2=-1)[group, slot]
        return OwnTerms(mean, variance, weight, weight * own, diagonal[:, None])


class _Padded(NamedTuple):
    """Members (g, s) of each group in order, which are real (g, s); group and slot (n,) of each."""

    numbers: Tensor
    present: Tensor
    group: Tensor
    slot: Tensor


def _padded(group: Tensor, n_groups: int) -> _Padded:
    """The groups of members whose group (n,) is known."""
    counts = torch.bincount(group, minlength=n_groups)
    order = torch.argsort(group, stable=True)
    starts = counts.cumsum(0) - counts
    slot = torch.empty_like(group)
    slot[order] = torch.arange(len(group), device=group.device) - starts[group[order]]
    widest = max(1, int(counts.max()))
    members = group.new_zeros(n_groups, widest)
    present = torch.zeros(n_groups, widest, dtype=torch.bool, device=group.device)
    members[group, slot] = torch.arange(len(group), device=group.device)
    present[group, slot] = True
    return _Padded(members, present, group, slot)
