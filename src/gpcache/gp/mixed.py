"""Large float32 systems on a GPU: products on the tensor cores, in parts that keep the digits.

A TF32 product is seven times as fast as a float32 one and reads eleven bits of each number. Written
as a coarse part plus the rest, a number keeps all but its last bits, and three TF32 products stand
for one: x y ≈ x_c y_c + x_c y_f + x_f y_c. A Cholesky factor in blocks is little else than such
products. It is not taken on trust: what it makes of columns whose solution is known is looked at,
and where that is too far off, the ordinary factor takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, solve

# Below so many rows the ordinary routines are as fast.
LARGE = 6144
BLOCK = 1536
# Columns that the factor is tried on, and what their solutions may be off.
PROBES = 8
TOLERANCE = 1e-3
# The bits of a float32 that TF32 does not read, and half of the last one that it does.
UNREAD, HALF = 0x1FFF, 0x1000


def is_large(rows: Tensor) -> bool:
    """Whether a matrix (n, k) has so many rows, in a precision and place where blocks pay."""
    return rows.ndim == 2 and len(rows) >= LARGE and rows.is_cuda and rows.dtype == torch.float32


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Products of float32 matrices in TF32, on devices that know it."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def product(left: Tensor, right: Tensor) -> Tensor:
    """left rightᵀ (m, n) of float32 rows (m, d) and (n, d), in TF32."""
    coarse, fine = _parts(left)
    other_coarse, other_fine = (coarse, fine) if right is left else _parts(right)
    with tensor_cores():
        # The small terms apart: in one sum with the large ones they would lose bits.
        small = torch.cat([coarse, fine], 1) @ torch.cat([other_fine, other_coarse], 1).mT
        return small.addmm_(coarse, other_coarse.mT)


def rounded_(x: Tensor) -> Tensor:
    """Round to TF32 in place: the hardware cuts off, which is twice as far away and one-sided."""
    x.view(torch.int32).add_(HALF).bitwise_and_(~UNREAD)
    return x


def factorise(matrix: Tensor, block: int = BLOCK) -> Sequence[Tensor]:
    """What `solve_factored` needs of a symmetric positive definite G (..., n, n)."""
    if is_large(matrix):
        parts = block_factor(matrix, block)
        # G times a unit vector is a column of G, and no other solution is known as well.
        probes = torch.arange(PROBES, device=matrix.device) * (len(matrix) // PROBES)
        found = solve_factored(parts, matrix[:, probes])
        found[probes, torch.arange(PROBES)] -= 1
        # NaN, from a block that was not positive definite, counts as too much.
        if bool(found.square().sum(0).max() <= TOLERANCE**2):
            return parts
    return [cholesky(matrix)]


def solve_factored(parts: Sequence[Tensor], right: Tensor) -> Tensor:
    """G⁻¹B for what `factorise` made of G, and B (..., n, k)."""
    lower, *inverses = parts
    if not inverses:
        return solve(lower, right)
    half, whole = torch.empty_like(right), torch.empty_like(right)
    starts = [0]
    for inverse in inverses:
        starts.append(starts[-1] + len(inverse))
    for inverse, start, stop in zip(inverses, starts, starts[1:], strict=False):
        rest = torch.addmm(right[start:stop], lower[start:stop, :start], half[:start], alpha=-1)
        torch.mm(inverse, rest, out=half[start:stop])
    for inverse, start, stop in zip(inverses[::-1], starts[-2::-1], starts[:0:-1], strict=True):
        rest = torch.addmm(half[start:stop], lower[stop:, start:stop].mT, whole[stop:], alpha=-1)
        torch.mm(inverse.mT, rest, out=whole[start:stop])
    return whole


def block_factor(matrix: Tensor, block: int) -> list[Tensor]:
    """The lower factor (above its diagonal blocks is no zero), and their inverses."""
    lower, n = matrix.clone(), len(matrix)
    inverses: list[Tensor] = []
    for start in range(0, n, block):
        stop = min(start + block, n)
        diagonal, _ = torch.linalg.cholesky_ex(lower[start:stop, start:stop])
        eye = torch.eye(stop - start, dtype=matrix.dtype, device=matrix.device)
        inverses.append(torch.linalg.solve_triangular(diagonal, eye, upper=False))
        if stop == n:
            break
        panel = product(lower[stop:, start:stop], inverses[-1])
        lower[stop:, start:stop] = panel
        coarse, fine = _parts(panel)
        left = torch.cat([coarse, coarse, fine], 1)
        right = torch.cat([coarse, fine, coarse], 1)
        with tensor_cores():
            # Block column by block column: what is above the diagonal is not needed.
            for first in range(stop, n, block):
                rows, columns = slice(first - stop, None), slice(first - stop, first - stop + block)
                lower[first:, first : first + block].addmm_(left[rows], right[columns].mT, alpha=-1)
    return [lower, *inverses]


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    coarse = rounded_(x.clone(memory_format=torch.contiguous_format))
    return coarse, x - coarse
