"""Mean B G⁻¹ C and quadratic form diag(B G⁻¹ Bᵀ) with the gradient written by hand.

With V_C = G⁻¹C and V_B = G⁻¹Bᵀ from the forward pass, and incoming gradients dm and dq,

    dB = dm V_Cᵀ + 2 diag(dq) V_Bᵀ,    dC = V_B dm,    dG = −V_B (dm V_Cᵀ + diag(dq) V_Bᵀ),

so nothing is differentiated through the Cholesky factor, and no inverse is computed. V_C is only
used in dm V_Cᵀ = (G⁻¹ C dmᵀ)ᵀ: if C has more columns than B has rows, the backward pass solves for
this instead. G is symmetric: dG is one representative of the gradient, and the symmetric function
that built G (`kernels.gram`, a product UᵀU) symmetrises it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpcache.gp.cholesky import cholesky
from gpcache.gp.mixed import factorise, is_large, product, solve_factored


class _Posterior(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, matrix: Tensor, rows: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        factor = factorise(matrix)
        c, m = values.shape[-1], rows.shape[-2]
        later = c > m  # whether V_C is left to the backward pass
        if later:
            solved_rows = solve_factored(factor, rows.mT)
            ctx.save_for_backward(values, solved_rows, *factor)
        else:
            both = torch.cat([values.expand(*rows.shape[:-2], -1, -1), rows.mT], -1)
            solved = solve_factored(factor, both)
            solved_values, solved_rows = solved[..., :c], solved[..., c:]
            ctx.save_for_backward(values, solved_rows, solved_values)
        ctx.later = later  # type: ignore[attr-defined]
        return solved_rows.mT @ values, (rows * solved_rows.mT).sum(-1)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        values, solved_rows, *rest = ctx.saved_tensors  # type: ignore[attr-defined]
        d_mean, d_form = grads
        needs_matrix, needs_rows, needs_values = ctx.needs_input_grad  # type: ignore[attr-defined]
        if ctx.later:  # type: ignore[attr-defined]
            through_values = solve_factored(rest, values @ d_mean.mT).mT
        else:
            through_values = d_mean @ rest[0].mT
        through_form = d_form[..., None] * solved_rows.mT
        d_matrix = None
        if needs_matrix:
            through = -(through_values + through_form)
            large = is_large(solved_rows)
            d_matrix = product(solved_rows, through.mT) if large else solved_rows @ through
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
    """G⁻¹ (n, n) with its gradient −G⁻¹ dP G⁻¹, for callers that need entries of the inverse."""
    inverse: Tensor = _Inverse.apply(matrix)  # type: ignore[no-untyped-call]
    return inverse
