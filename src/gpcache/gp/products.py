"""Products of matrices, by the fastest library that torch brings for them.

On a CPU torch multiplies with MKL, which uses AVX-512 on Intel's processors only. oneDNN, which is
part of torch as well, uses it on all: on AMD's, large products in float32 take half the time.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

# Columns up to which a batch of float32 matrices is multiplied from the right: see below.
NARROW = 64
# Multiplications from which on oneDNN is faster, although it arranges its matrices first.
LARGE = 2**23


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Left (..., m, k) times right (..., k, n), with the same leading dimensions."""
    return _by_onednn(left, right) if _takes_onednn(left, right) else left @ right


def symmetric_matmul(matrix: Tensor, right: Tensor) -> Tensor:
    """A symmetric matrix (..., n, n) times (..., n, c).

    On a CPU the transposed product takes a third less time in float64, and for narrow batches; for
    a single matrix in float32, and for wide batches, it takes a third more.
    """
    if _takes_onednn(matrix, right):
        return _by_onednn(matrix, right)
    is_narrow = matrix.dim() > 2 and right.shape[-1] <= NARROW
    if matrix.device.type != "cpu" or not (is_narrow or matrix.dtype == torch.float64):
        return matrix @ right
    return (right.mT @ matrix).mT.contiguous()


@cache
def prefers_onednn() -> bool:
    """Whether oneDNN multiplies float32 faster here: on AMD's processors with AVX-512."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and _is_amd()


def _is_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "AuthenticAMD" in platform.processor()


def _takes_onednn(left: Tensor, right: Tensor) -> bool:
    if not (left.device.type == "cpu" and left.dtype == right.dtype == torch.float32):
        return False
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad):
        return False
    few = min(left.dim(), right.dim()) < 2 or left.shape[:-2] != right.shape[:-2]
    is_large = not few and left.shape[-2] * right.shape[-2] * right.shape[-1] >= LARGE
    return is_large and prefers_onednn()


def _by_onednn(left: Tensor, right: Tensor) -> Tensor:
    """Left (..., m, k) times right (..., k, n), in float32 on a CPU."""
    if left.dim() > 2:
        return torch.stack([_by_onednn(*pair) for pair in zip(left, right, strict=True)])
    # As a convolution of single pixels, whose channels are the columns, without a copy. `conv2d`
    # gives it to oneDNN only where it has two threads or more.
    m, k = left.shape
    pixels = left.contiguous().view(1, 1, m, k).permute(0, 3, 1, 2)
    weights, one = right.mT.contiguous()[:, :, None, None], (1, 1)
    found: Tensor = torch.mkldnn_convolution(pixels, weights, None, (0, 0), one, one, 1)
    return found.permute(0, 2, 3, 1).reshape(m, -1)
