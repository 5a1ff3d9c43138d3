"""Factors in blocks of split products: against float64, and given up where they are no good."""

import pytest
import torch

from gpcache.gp import mixed
from gpcache.gp.cholesky import inverse_factor
from gpcache.gp.implicit import posterior_terms
from gpcache.gp.kernels import gram, kernel, unit_rows

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
N, WIDTH, BATCH, CLASSES = 300, 32, 20, 40


def draw(*shape, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device)


def covariance(device, noise=0.1, n=N):
    keys = unit_rows(draw(n, WIDTH, device=device))
    return gram(keys, 2.0) + noise * torch.eye(n, device=device)


@pytest.fixture
def large(monkeypatch):
    """Blocks for small matrices, on any device."""
    monkeypatch.setattr(mixed, "LARGE", 64)

    def is_large(rows):
        return rows.ndim == 2 and len(rows) >= 64 and rows.dtype == torch.float32

    for name in ("gpcache.gp.mixed", "gpcache.gp.kernels", "gpcache.gp.implicit"):
        monkeypatch.setattr(f"{name}.is_large", is_large)


def relative(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("device", DEVICES)
def test_a_product_in_parts_keeps_what_float32_has(device):
    left, right = draw(N, WIDTH, device=device), draw(50, WIDTH, device=device, seed=1)
    exact = left.double() @ right.double().T
    # A TF32 product is off by 3e-4.
    assert relative(mixed.product(left, right), exact) < 3e-5


def test_parts_add_up():
    x = draw(N, WIDTH)
    parts = mixed.parts_of(x)
    assert {part.dtype for part in parts} == {torch.bfloat16}
    assert torch.equal(sum(part.double() for part in parts), x.double())


def test_no_setting_of_the_process_is_touched(monkeypatch):
    """Another thread must not see its own products change while a product runs."""
    changed = []
    kind = type(torch.backends.cuda.matmul)
    monkeypatch.setattr(kind, "__setattr__", lambda *given: changed.append(given))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", changed.append)
    mixed.product(draw(N, WIDTH), draw(50, WIDTH))
    mixed.block_factor(covariance("cpu"), 64)
    assert changed == []


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", [64, 77, 300, 512])
def test_solutions_are_those_of_float64(device, block):
    matrix, right = covariance(device), draw(N, BATCH, device=device)
    parts = mixed.factorise(matrix, block)
    assert len(parts) == 1 + -(-N // block)
    expected = torch.linalg.solve(matrix.double(), right.double())
    assert relative(mixed.solve_factored(parts, right), expected) < 3e-4


@pytest.mark.usefixtures("large")
def test_a_factor_that_is_no_good_gives_way_to_the_ordinary_one(monkeypatch):
    matrix = covariance("cpu")
    monkeypatch.setattr(mixed, "product", lambda left, right: 1.01 * left @ right.mT)
    (factor,) = mixed.factorise(matrix, 64)
    torch.testing.assert_close(factor @ factor.mT, matrix)


@pytest.mark.usefixtures("large")
def test_a_block_that_is_not_positive_definite_gives_way_to_jitter():
    keys = unit_rows(draw(100, WIDTH)).repeat(3, 1)
    with pytest.warns(UserWarning, match="not positive definite"):
        assert len(mixed.factorise(gram(keys, 0.01) - 1e-6 * torch.eye(N), 64)) == 1


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [BATCH, CLASSES + 1])  # fewer queries than classes, and more
def test_gradients_are_those_of_float64(device, batch):
    def gradients(dtype):
        keys = unit_rows(draw(N, WIDTH, device=device)).to(dtype).requires_grad_()
        values = draw(N, CLASSES, device=device, seed=1).to(dtype).requires_grad_()
        queries = unit_rows(draw(batch, WIDTH, device=device, seed=2)).to(dtype)
        lift = 0.1 * torch.eye(N, device=device, dtype=dtype)
        matrix = gram(keys, 2.0) + lift
        mean, form = posterior_terms(matrix, kernel(queries, keys, 2.0), values)
        return torch.autograd.grad((mean.square().sum() + form.sum()), [keys, values])

    for found, expected in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        assert relative(found, expected) < 1e-3


def test_the_inverse_of_a_factor_by_halves():
    factor = torch.linalg.cholesky(covariance("cpu", n=1300).double())
    expected = torch.linalg.inv(factor)
    torch.testing.assert_close(inverse_factor(factor), expected, rtol=1e-10, atol=1e-10)
