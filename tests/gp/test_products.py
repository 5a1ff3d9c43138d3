"""Products by either library agree with float64, and fall back where oneDNN does not apply."""

import pytest
import torch

from gpcache.gp import products
from gpcache.gp.products import matmul, symmetric_matmul

# Just above and far below the size from which on oneDNN is asked.
SHAPES = [(210, 200, 210), (3, 4, 2), (300, 1, 300), (1, 9000, 1000)]


@pytest.fixture(autouse=True, params=[True, False], ids=["onednn", "mkl"])
def _library(request, monkeypatch):
    """Each library in turn, whatever the processor."""
    monkeypatch.setattr(products, "prefers_onednn", lambda: request.param)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def agree(found, left, right):
    error = 2e-7 * left.shape[-1] ** 0.5
    expected = left.double() @ right.double()
    assert found.dtype == left.dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=error * expected.abs().max())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_agrees_with_float64(shape):
    m, k, n = shape
    left, right = drawn(m, k), drawn(k, n, seed=1)
    agree(matmul(left, right), left, right)
    agree(matmul(right.mT, left.mT), right.mT, left.mT)  # no row of either is contiguous


def test_leading_dimensions_are_separate_problems():
    left, right = drawn(2, 3, 210, 200), drawn(2, 3, 200, 210, seed=1)
    agree(matmul(left, right), left, right)


@pytest.mark.parametrize("columns", [5, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_symmetric_product_agrees_with_float64(columns, dtype, batch):
    matrix, right = drawn(*batch, 400, 400).to(dtype), drawn(*batch, 400, columns, seed=1).to(dtype)
    matrix = matrix + matrix.mT
    found = symmetric_matmul(matrix, right)
    assert found.is_contiguous()
    agree(found, matrix, right)


def test_gradients_flow():
    left = drawn(210, 200).requires_grad_()
    right = drawn(200, 210, seed=1)
    (gradient,) = torch.autograd.grad(matmul(left, right).sum(), left)
    torch.testing.assert_close(gradient, right.sum(1).expand(210, 200))
