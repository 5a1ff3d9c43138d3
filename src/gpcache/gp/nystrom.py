"""Nyström approximation of the kernel through landmarks, an equal number of shots of every class.

U = K(keys, landmarks) and S = K(landmarks, landmarks) plus jitter. It needs no singular value
decomposition, so any number of landmarks works, also with duplicates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpcache.gp.cholesky import jitter_of
from gpcache.gp.factored import lifted
from gpcache.gp.kernels import gram, kernel
from gpcache.gp.low_rank import Cross, LowRankPrecision, need_low_rank_memory


@dataclass(frozen=True)
class Landmarks:
    """Row numbers (L,) of the landmarks, and the option `cross`."""

    rows: Tensor
    cross: Cross


class NystromPrecision(LowRankPrecision):
    """P through landmarks. With every key a landmark it is exact."""

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


def rank_within(labels: Tensor, order: Tensor) -> Tensor:
    """For each row (n,) how many rows of its class come before it in `order`."""
    sorted_labels = labels[order]
    grouped = torch.argsort(sorted_labels, stable=True)
    counts = torch.bincount(labels)
    starts = (counts.cumsum(0) - counts)[sorted_labels[grouped]]
    rank = torch.empty_like(labels)
    rank[order[grouped]] = torch.arange(len(labels), device=labels.device) - starts
    return rank
