"""The posterior variance in less than O(n²) per query, if the kernel's spectrum allows it.

The directions Q (n, r) of K with the largest eigenvalues are kept; the others are assumed to share
one eigenvalue, their mean. A query with kernel row k then needs only its length and its r
coordinates in Q:

    k P kᵀ ≈ Σ_j (k q_j)² / (λ_j + noise) + (|k|² − Σ_j (k q_j)²) / (λ_rest + noise).

The error is measured on some keys T that are left out: their exact variance without T is
diag(P_TT⁻¹) − noise (see `precision`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# The allowed relative error, and the number of keys from which on it saves time.
WITHIN = 0.01
LARGE = 4096
# Beyond a quarter of all directions the exact way is as fast.
SHARES = (16, 8, 4)
ROUNDS = 2
PROBES = 128


@dataclass(frozen=True)
class QuickVariance:
    """Variance (m,) for kernel rows (m, n); `error` is the largest relative one of the probes."""

    basis: Tensor  # (n, r)
    inverse: Tensor  # (r,) 1 / (λ_j + noise)
    rest: float  # 1 / (λ_rest + noise)
    error: float = math.nan

    def __call__(self, cross: Tensor) -> Tensor:
        """1 − k P kᵀ (m,) of kernel rows (m, n)."""
        inside = (cross @ self.basis).square_()
        outside = (cross.square().sum(1) - inside.sum(1)).clamp_(min=0)
        return 1 - inside @ self.inverse - outside * self.rest


def quick_variance(matrix: Tensor, factor: Tensor, noise: float) -> QuickVariance | None:
    """For a kernel (n, n) and the factor of matrix + noise·I; None if none is good enough.

    It has the smallest basis whose error at every probe is within half of `WITHIN`; other images
    may have a slightly larger error.
    """
    n = len(matrix)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(matrix.device)
    probes, others = order[:PROBES], order[PROBES:]
    half = torch.linalg.solve_triangular(
        factor, torch.nn.functional.one_hot(probes, n).to(matrix).mT, upper=False
    )
    exact = torch.linalg.inv(half.mT @ half).diagonal() - noise
    rows, rest = matrix[probes][:, others], matrix[others][:, others]
    for share in SHARES:
        estimated = _of_rank(rest, noise, max(1, n // share))(rows)
        error = float(((estimated - exact) / exact).abs().max())
        if error <= WITHIN / 2:
            return replace(_of_rank(matrix, noise, max(1, n // share)), error=error)
    return None


def _of_rank(matrix: Tensor, noise: float, rank: int) -> QuickVariance:
    basis, values = _leading(matrix, rank)
    remaining = float(matrix.diagonal().sum() - values.sum())
    rest_eigenvalue = max(0.0, remaining) / max(1, len(matrix) - rank)
    return QuickVariance(basis, 1 / (values + noise), 1 / (rest_eigenvalue + noise))


def _leading(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Orthonormal directions (n, r) and eigenvalues (r,), by subspace iteration from columns."""
    n = len(matrix)
    columns = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:rank]
    basis = matrix[:, columns.to(matrix.device)]
    for _ in range(ROUNDS):
        basis = matrix @ torch.linalg.qr(basis).Q
    basis = torch.linalg.qr(basis).Q
    values, vectors = torch.linalg.eigh(basis.mT @ (matrix @ basis))
    return basis @ vectors, values.clamp(min=0)
