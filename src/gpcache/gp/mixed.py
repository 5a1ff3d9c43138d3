"""Large float32 systems on a GPU: products on the tensor cores, without loss of precision.

A float32 number is the sum of three bfloat16 numbers of eight bits each, and six products of such
parts replace one product in float32. Tensor cores compute all six faster than the ordinary cores
compute one. TF32 would also work, but torch can only allow it for the whole process. A blocked
Cholesky factorisation consists mostly of such products. Its result is checked on columns whose
solution is known; if the error is too large, the ordinary factorisation is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, solve

# With fewer rows the ordinary routines are as fast.
LARGE = 6144
BLOCK = 1536
# Columns that the factor is checked on, and the largest error of their solutions.
PROBES = 8
TOLERANCE = 1e-3
# Which parts of left and right are multiplied; the large product comes last, into the small ones.
SMALL = ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0))
# From torch 2.8 on, products of bfloat16 are given in float32.
AVAILABLE = hasattr(torch.ops.aten.mm, "dtype")


def is_large(rows: Tensor) -> bool:
    """Whether a matrix (n, k) is float32, on a GPU, and has enough rows for blocks to be faster."""
    fits = rows.ndim == 2 and len(rows) >= LARGE and rows.dtype == torch.float32
    return fits and rows.is_cuda and AVAILABLE


def product(left: Tensor, right: Tensor, *, count: int = 3) -> Tensor:
    """left rightᵀ (m, n) of float32 rows (m, d) and (n, d), by bfloat16 parts.

    With a `count` of two parts it takes half the time and keeps sixteen bits.
    """
    lefts = parts_of(left, count)
    rights = lefts if right is left else parts_of(right, count)
    # Sum the small terms separately: together with the large ones they would lose bits.
    small = _product(*_paired(lefts, rights, SMALL if count == 3 else SMALL[:2]))
    return small.add_(_product(lefts[0], rights[0]))


def parts_of(x: Tensor, count: int = 3) -> list[Tensor]:
    """`count` bfloat16 tensors that approximate x; three of them sum to the float32 tensor."""
    parts = [x.bfloat16()]
    rest = x
    while len(parts) < count:
        rest = rest - parts[-1]
        parts.append(rest.bfloat16())
    return parts


def _paired(
    lefts: Sequence[Tensor], rights: Sequence[Tensor], pairs: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Rows (m, k·d) and (n, k·d) whose product is the sum over pairs of parts."""
    left = torch.cat([lefts[i] for i, _ in pairs], 1)
    return left, torch.cat([rights[j] for _, j in pairs], 1)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left rightᵀ in float32 of bfloat16 rows."""
    if left.is_cuda:
        return torch.mm(left, right.mT, out_dtype=torch.float32)
    return left.float() @ right.float().mT  # on a CPU the result is in bfloat16


def factorise(matrix: Tensor, block: int = BLOCK) -> Sequence[Tensor]:
    """Factorise a symmetric positive definite G (..., n, n) for `solve_factored`."""
    if is_large(matrix):
        parts = block_factor(matrix, block)
        # G times a unit vector is a column of G: these are solutions that are known exactly.
        probes = torch.arange(PROBES, device=matrix.device) * (len(matrix) // PROBES)
        errors = solve_factored(parts, matrix[:, probes])
        errors[probes, torch.arange(PROBES)] -= 1
        # NaN, from a block that was not positive definite, must count as too large.
        if bool(errors.square().sum(0).max() <= TOLERANCE**2):
            return parts
    return [cholesky(matrix)]


def solve_factored(parts: Sequence[Tensor], right: Tensor) -> Tensor:
    """G⁻¹B for the factors of G that `factorise` returned, and B (..., n, k)."""
    lower, *inverses = parts
    if not inverses:
        return solve(lower, right)
    half, solution = torch.empty_like(right), torch.empty_like(right)
    starts = [0]
    for inverse in inverses:
        starts.append(starts[-1] + len(inverse))
    for inverse, start, stop in zip(inverses, starts, starts[1:], strict=False):
        rest = torch.addmm(right[start:stop], lower[start:stop, :start], half[:start], alpha=-1)
        torch.mm(inverse, rest, out=half[start:stop])
    for inverse, start, stop in zip(inverses[::-1], starts[-2::-1], starts[:0:-1], strict=True):
        rest = torch.addmm(half[start:stop], lower[stop:, start:stop].mT, solution[stop:], alpha=-1)
        torch.mm(inverse.mT, rest, out=solution[start:stop])
    return solution


def block_factor(matrix: Tensor, block: int) -> list[Tensor]:
    """The lower factor (not zero above its diagonal blocks), and the inverses of the blocks."""
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
        parts = parts_of(panel)
        left, right = _paired(parts, parts, (*SMALL, (0, 0)))
        # Block column by block column: the part above the diagonal is not needed.
        for first in range(stop, n, block):
            rows, columns = slice(first - stop, None), slice(first - stop, first - stop + block)
            lower[first:, first : first + block] -= _product(left[rows], right[columns])
    return [lower, *inverses]
