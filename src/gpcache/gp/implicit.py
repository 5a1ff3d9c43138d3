"""Mean B G⁻¹ C and quadratic form diag(B G⁻¹ Bᵀ) with the gradient written by hand.

With V_C = G⁻¹C and V_B = G⁻¹Bᵀ from the forward pass, and incoming gradients dm and dq,

    dB = dm V_Cᵀ + 2 diag(dq) V_Bᵀ,    dC = V_B dm,    dG = −V_B (dm V_Cᵀ + diag(dq) V_Bᵀ),

so the backward pass is products alone: no inverse, no further solve, and nothing is differentiated
through the Cholesky factor. G is symmetric: dG is one representative of the gradient, and whatever
built G symmetrically (`kernels.gram`, a product UᵀU) symmetrises it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky, solve


class _Posterior(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, matrix: Tensor, rows: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        factor = cholesky(matrix)
        c = values.shape[-1]
        solved = solve(factor, torch.cat([values.expand(*rows.shape[:-2], -1, -1), rows.mT], -1))
        solved_values, solved_rows = solved[..., :c], solved[..., c:]
        mean = rows @ solved_values
        form = (rows * solved_rows.mT).sum(-1)
        ctx.save_for_backward(solved_values, solved_rows)
        return mean, form

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        solved_values, solved_rows = ctx.saved_tensors  # type: ignore[attr-defined]
        d_mean, d_form = grads
        needs_matrix, needs_rows, needs_values = ctx.needs_input_grad  # type: ignore[attr-defined]
        through_values = d_mean @ solved_values.mT
        through_form = d_form[..., None] * solved_rows.mT
        d_matrix = -(solved_rows @ (through_values + through_form)) if needs_matrix else None
        d_rows = through_values + 2 * through_form if needs_rows else None
        d_values = solved_rows @ d_mean if needs_values else None
        return d_matrix, d_rows, d_values


def posterior_terms(matrix: Tensor, rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (..., m, c) and form (..., m) of G (..., n, n), B (..., m, n) and C (..., n, c)."""
    mean, form = _Posterior.apply(matrix, rows, values)  # type: ignore[no-untyped-call]
    return mean, form


class _Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, matrix: Tensor) -> Tensor:
        inverse = torch.cholesky_inverse(cholesky(matrix))
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors  # type: ignore[attr-defined]
        gradient: Tensor = -inverse @ grads[0] @ inverse
        return gradient


def symmetric_inverse(matrix: Tensor) -> Tensor:
    """G⁻¹ (n, n) with its gradient −G⁻¹ dP G⁻¹, where entries of the inverse itself are needed."""
    inverse: Tensor = _Inverse.apply(matrix)  # type: ignore[no-untyped-call]
    return inverse
