"""Random Fourier features: κ(x, y) ≈ φ(x)ᵀφ(y) with frequencies drawn from N(0, β).

Each frequency has a cosine and a sine: φ(x)ᵀφ(x) = 1 exactly, so the variance of the approximation
needs no correction, and the error is lower than with random phases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpcache.gp.low_rank import Cross, LowRankPrecision, need_low_rank_memory


@dataclass(frozen=True)
class Frequencies:
    """Standard normal draws (d, D/2), which are scaled by √β when used, and the option `cross`."""

    draws: Tensor
    cross: Cross


class FourierPrecision(LowRankPrecision):
    """P through D random features."""

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
