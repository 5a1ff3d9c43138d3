"""The kernel κ(x, y) = exp(−β(1 − xᵀy)), and the unit rows that it is defined on."""

from __future__ import annotations

import torch
from torch import Tensor

from gpcache.gp.mixed import is_large, product
from gpcache.gp.products import matmul


def unit_rows(features: Tensor) -> Tensor:
    """Scale every row (..., d) to length one; a row of zeros stays zero.

    Rows are divided by their largest entry first, because its square could overflow or underflow.
    """
    largest = features.detach().abs().amax(-1, keepdim=True)
    scale = torch.where(largest > 0, largest, 1.0)
    return torch.nn.functional.normalize(features / scale, dim=-1)


def kernel_of(similarity: Tensor, beta: float) -> Tensor:
    """exp(−β(1 − s)) of cosines (...), element by element, in one new tensor."""
    shift = torch.tensor(-beta, dtype=similarity.dtype, device=similarity.device)
    return torch.add(shift, similarity, alpha=beta).exp_()


class _Kernel(torch.autograd.Function):
    """κ(x, y), or κ(x, x) without y, with a backward that keeps one matrix.

    With slope = β dκ∘κ: dx = slope y and dy = slopeᵀ x. In κ(x, x) both arguments move together, so
    one product with the symmetric slope + slopeᵀ is enough.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: Tensor, y: Tensor | None, beta: float
    ) -> Tensor:
        trained = ctx.needs_input_grad[0]  # type: ignore[attr-defined]
        if y is None and trained and is_large(x):
            similarity = product(x, x)
        else:
            similarity = matmul(x, (x if y is None else y).mT)
        value = kernel_of(similarity, beta)
        ctx.save_for_backward(x, y, value)  # type: ignore[arg-type]
        ctx.beta = beta  # type: ignore[attr-defined]
        return value

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, y, value = ctx.saved_tensors  # type: ignore[attr-defined]
        beta = ctx.beta  # type: ignore[attr-defined]
        if y is None:
            slope = (grads[0] + grads[0].mT).mul_(value)
            scaled = beta * x
            gradient = product(slope, scaled.mT, count=2) if is_large(x) else slope @ scaled
            return gradient, None, None
        slope = (grads[0] * value).mul_(beta)
        needs_x, needs_y, _ = ctx.needs_input_grad  # type: ignore[attr-defined]
        return (slope @ y if needs_x else None), (slope.mT @ x if needs_y else None), None


def kernel(x: Tensor, y: Tensor, beta: float) -> Tensor:
    """κ between rows of x (..., m, d) and rows of y (..., n, d): (..., m, n). Differentiable."""
    if not (x.requires_grad or y.requires_grad):
        return kernel_of(matmul(x, y.mT), beta)
    result: Tensor = _Kernel.apply(x, y, beta)  # type: ignore[no-untyped-call]
    return result


def gram(x: Tensor, beta: float) -> Tensor:
    """κ among the rows of x (..., n, d): (..., n, n). Differentiable.

    The diagonal is exp(−β(1 − xᵀx)): 1 for unit rows, more for longer ones.
    """
    result: Tensor = _Kernel.apply(x, None, beta)  # type: ignore[no-untyped-call]
    return result
