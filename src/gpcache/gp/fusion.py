"""Logits = gain · zero_shot + α · mean / variance^η: how text and cache become one answer."""

from __future__ import annotations

import torch
from torch import Tensor

# A posterior variance below this is rounding: it would turn a division into an explosion.
MIN_VARIANCE = 1e-6


def scaled_mean(mean: Tensor, variance: Tensor | None, eta: float | Tensor) -> Tensor:
    """mean (..., c) / variance^η, with the variance (..., c) or (..., 1) of each entry.

    In log space: variance^η itself underflows in float32 for a small variance and a large η.
    """
    if variance is None:
        return mean
    return mean * torch.exp(-eta * variance.clamp(min=MIN_VARIANCE).log())


def fuse(
    zero_shot: Tensor | None,
    mean: Tensor,
    variance: Tensor | None,
    *,
    alpha: float | Tensor,
    eta: float | Tensor = 0.0,
    gain: float | Tensor = 1.0,
) -> Tensor:
    """Logits (m, c); without text the cache speaks alone."""
    cache = alpha * scaled_mean(mean, variance, eta)
    return cache if zero_shot is None else cache + gain * zero_shot
