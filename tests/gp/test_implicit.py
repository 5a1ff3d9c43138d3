"""The hand-written backward of mean and quadratic form, against autograd and numeric gradients."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck

from gpcache.gp.implicit import posterior_terms


def inputs(*batch, n=5, m=3, c=2, device="cpu", dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(*batch, n, n), (*batch, m, n), (*batch, n, c)]
    return [
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)
        for shape in shapes
    ]


def covariance(root):
    return root @ root.mT + torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)


def implicit(root, rows, values):
    return posterior_terms(covariance(root), rows, values)


def explicit(root, rows, values):
    """The same by differentiating through an inverse."""
    inverse = torch.linalg.inv(covariance(root))
    return rows @ inverse @ values, ((rows @ inverse) * rows).sum(-1)


def gradients(function, tensors, use):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    return torch.autograd.grad(use(*function(*leaves)), leaves, allow_unused=True)


USES = {
    "both": lambda mean, form: mean.sin().sum() + (form * form).sum(),
    "mean alone": lambda mean, _: mean.sin().sum(),
    "form alone": lambda _, form: (form * form).sum(),
}


@pytest.mark.parametrize(("m", "c"), [(3, 2), (2, 4), (1, 1)], ids=["rows", "values", "single"])
@pytest.mark.parametrize("batch", [(), (4,)], ids=["one", "batch"])
def test_forward_and_gradient_equal_autograd_through_an_inverse(batch, m, c, device, dtype, tools):
    tensors = inputs(*batch, m=m, c=c, device=device, dtype=dtype)
    for actual, expected in zip(implicit(*tensors), explicit(*tensors), strict=True):
        tools.close(actual, expected)
    for use in USES.values():
        for actual, expected in zip(
            gradients(implicit, tensors, use), gradients(explicit, tensors, use), strict=True
        ):
            # A tensor that a use does not touch gets zeros by hand, and nothing from autograd.
            tools.close(actual, torch.zeros_like(actual) if expected is None else expected)


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize(
    "needed", [n for n in itertools.product([True, False], repeat=3) if any(n)]
)
def test_numeric_gradients_for_every_choice_of_inputs(batch, needed, device):
    tensors = inputs(*batch, n=3, m=2, device=device)
    for tensor, need in zip(tensors, needed, strict=True):
        tensor.requires_grad_(need)
    assert gradcheck(implicit, tensors)


def test_shared_values_are_broadcast_over_a_batch(device):
    root, rows, values = inputs(2, n=3, m=2, device=device)
    shared = values[0].clone().requires_grad_()
    mean, form = implicit(root, rows, shared)
    for block in range(2):
        alone = implicit(root[block], rows[block], shared)
        torch.testing.assert_close(mean[block], alone[0])
        torch.testing.assert_close(form[block], alone[1])
    assert gradcheck(lambda v: implicit(root, rows, v), (shared,))
