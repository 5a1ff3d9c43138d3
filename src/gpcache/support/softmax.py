"""Softmax of short rows, several times as fast as torch's on a CPU.

On a CPU torch fills a vector of the processor from one row. Rows with fewer numbers than that, few
classes, are computed one number at a time; so are most rows in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rows with fewer numbers are short; measured with AVX-512.
SHORT = {torch.float32: 16, torch.float64: 48}


def softmax(logits: Tensor) -> Tensor:
    """Probabilities (..., c) of logits (..., c)."""
    if not _are_short(logits):
        return logits.softmax(-1)
    powers = (logits - logits.amax(-1, keepdim=True)).exp_()
    return powers.div_(powers.sum(-1, keepdim=True))


def log_softmax(logits: Tensor) -> Tensor:
    """Their logarithms (..., c)."""
    if not _are_short(logits):
        return logits.log_softmax(-1)
    shifted = logits - logits.amax(-1, keepdim=True)
    return shifted.sub_(shifted.exp().sum(-1, keepdim=True).log_())


def _are_short(logits: Tensor) -> bool:
    if not logits.is_cpu or (logits.requires_grad and torch.is_grad_enabled()):
        return False
    return 0 < logits.shape[-1] < SHORT.get(logits.dtype, 0)
