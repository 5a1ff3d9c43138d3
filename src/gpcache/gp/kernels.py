"""The kernel κ(x, y) = exp(−β(1 − xᵀy)), and the unit rows that it is defined on."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_rows(features: Tensor) -> Tensor:
    """Scale every row (..., d) to length one."""
    return torch.nn.functional.normalize(features, dim=-1)


def kernel_of(similarity: Tensor, beta: float) -> Tensor:
    """exp(−β(1 − s)) of cosines (...), element by element, in one new tensor."""
    return similarity.mul(beta).sub_(beta).exp_()


class _Kernel(torch.autograd.Function):
    """κ(x, y) with a backward that keeps one matrix: dx = β (dκ∘κ) y, dy = β (dκ∘κ)ᵀ x."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: Tensor, y: Tensor, beta: float
    ) -> Tensor:
        value = kernel_of(x @ y.mT, beta)
        ctx.save_for_backward(x, y, value)
        ctx.beta = beta  # type: ignore[attr-defined]
        return value

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, y, value = ctx.saved_tensors  # type: ignore[attr-defined]
        slope = (grads[0] * value).mul_(ctx.beta)  # type: ignore[attr-defined]
        needs_x, needs_y, _ = ctx.needs_input_grad  # type: ignore[attr-defined]
        return (slope @ y if needs_x else None), (slope.mT @ x if needs_y else None), None


class _Gram(torch.autograd.Function):
    """κ(x, x): both arguments move together, so one product with a symmetric slope is enough."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, beta: float) -> Tensor:
        value = kernel_of(x @ x.mT, beta)
        ctx.save_for_backward(x, value)
        ctx.beta = beta  # type: ignore[attr-defined]
        return value

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, value = ctx.saved_tensors  # type: ignore[attr-defined]
        slope = (grads[0] + grads[0].mT).mul_(value).mul_(ctx.beta)  # type: ignore[attr-defined]
        return slope @ x, None


def kernel(x: Tensor, y: Tensor, beta: float) -> Tensor:
    """κ between rows of x (..., m, d) and rows of y (..., n, d): (..., m, n). Differentiable."""
    result: Tensor = _Kernel.apply(x, y, beta)  # type: ignore[no-untyped-call]
    return result


def gram(x: Tensor, beta: float) -> Tensor:
    """κ among the rows of x (..., n, d): (..., n, n). Differentiable.

    The diagonal is what xᵀx makes of it: 1 for unit rows, more for stretched ones.
    """
    result: Tensor = _Gram.apply(x, beta)  # type: ignore[no-untyped-call]
    return result
