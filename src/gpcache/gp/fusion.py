"""The fusion of text and cache: logits = gain · zero_shot + α · mean / variance^η."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# A posterior variance below this is rounding error, and must not be divided by.
MIN_VARIANCE = 1e-6


def scaled_mean(mean: Tensor, variance: Tensor | None, eta: float | Tensor) -> Tensor:
    """mean (..., c) / variance^η, with the variance (..., c) or (..., 1) of each entry.

    It is computed in log space and bounded below overflow: 1e-6 to the power 8 is out of the range
    of float32, and a class without shots, whose mean is exactly zero, must not become 0 · ∞.
    """
    if variance is None:
        return mean
    exponent = -eta * variance.clamp(min=MIN_VARIANCE).log()
    return mean * exponent.clamp(max=0.5 * math.log(torch.finfo(mean.dtype).max)).exp()


def fuse(
    zero_shot: Tensor | None,
    mean: Tensor,
    variance: Tensor | None,
    *,
    alpha: float | Tensor,
    eta: float | Tensor = 0.0,
    gain: float | Tensor = 1.0,
) -> Tensor:
    """Logits (m, c) of text and cache, or of the cache if there is no text."""
    cache = alpha * scaled_mean(mean, variance, eta)
    return cache if zero_shot is None else cache + gain * zero_shot
