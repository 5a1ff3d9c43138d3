"""The kernel is a radial basis function on unit rows, and its hand-written gradients are right."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from gpcache.gp.kernels import gram, kernel, kernel_of, unit_rows


def random(*shape, seed=0, device="cpu"):
    draws = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return draws.to(device)


def test_the_kernel_is_the_rbf_of_scikit_learn(problem, tools):
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    reference = kernels.RBF(1 / np.sqrt(problem.beta))
    keys, queries = tools.numpy64(problem.keys), tools.numpy64(problem.queries)
    tools.close(kernel(problem.queries, problem.keys, problem.beta), reference(queries, keys))
    tools.close(gram(problem.keys, problem.beta), reference(keys))


def test_the_kernel_is_the_rbf_of_a_literal_loop(problem, tools):
    def loop(x, y):
        return np.array([[np.exp(-problem.beta / 2 * np.sum((a - b) ** 2)) for b in y] for a in x])

    keys, queries = tools.numpy64(problem.keys), tools.numpy64(problem.queries)
    tools.close(kernel(problem.queries, problem.keys, problem.beta), loop(queries, keys))
    tools.close(gram(problem.keys, problem.beta), loop(keys, keys))
    np.testing.assert_allclose(tools.rbf(queries, keys, problem.beta), loop(queries, keys))


def test_batches_broadcast(problem, tools):
    blocks = torch.stack([problem.keys[:5], problem.keys[5:10], problem.keys[10:15]])
    crosses, grams = kernel(problem.queries, blocks, 3.0), gram(blocks, 3.0)
    assert crosses.shape == (3, len(problem.queries), 5)
    for block, cross, own in zip(blocks, crosses, grams, strict=True):
        tools.close(cross, kernel(problem.queries, block, 3.0))
        tools.close(own, gram(block, 3.0))


def test_stretched_rows_lift_the_diagonal(problem, tools):
    stretched = gram(1.1 * problem.keys, 2.0).diagonal()
    tools.close(stretched, np.full(len(problem.keys), np.exp(2.0 * (1.21 - 1))))


def test_kernel_of_leaves_the_similarities_as_they_were(dtype, device, tools):
    similarity = torch.linspace(-1, 1, 7, dtype=dtype, device=device)
    tools.close(kernel_of(similarity, 3.0), np.exp(-3.0 * (1 - np.linspace(-1, 1, 7))))
    assert torch.equal(similarity, torch.linspace(-1, 1, 7, dtype=dtype, device=device))


def test_unit_rows_keep_the_direction(dtype, device, tools):
    rows = random(2, 5, 3, device=device).to(dtype) * 40
    unit = unit_rows(rows)
    tools.close(unit.norm(dim=-1), np.ones((2, 5)))
    tools.close(unit * rows.norm(dim=-1, keepdim=True), rows)


@pytest.mark.parametrize("beta", [0.5, 6.0])
def test_gradients(device, beta):
    x, y = random(3, 4, device=device) / 2, random(5, 4, seed=1, device=device) / 2
    blocks = random(2, 3, 4, seed=2, device=device) / 2
    for tensor in (x, y, blocks):
        tensor.requires_grad_()
    assert gradcheck(lambda a, b: kernel(a, b, beta), (x, y))
    assert gradcheck(lambda a: kernel(a, y.detach(), beta), (x,))
    assert gradcheck(lambda b: kernel(x.detach(), b, beta), (y,))
    assert gradcheck(lambda a, b: kernel(a, b, beta), (x, blocks))
    assert gradcheck(lambda a: gram(a, beta), (x,))
    assert gradcheck(lambda a: gram(a, beta), (blocks,))
    assert gradcheck(lambda a: gram(unit_rows(a), beta), (x,))


def test_the_gradient_of_gram_is_that_of_kernel_with_itself(problem, tools):
    slope = random(len(problem.keys), len(problem.keys), device=problem.keys.device)
    slope = slope.to(problem.keys.dtype)
    gradients = []
    for function in (lambda x: gram(x, 2.0), lambda x: kernel(x, x, 2.0)):
        keys = problem.keys.clone().requires_grad_()
        (function(keys) * slope).sum().backward()
        gradients.append(keys.grad)
    tools.close(gradients[0], gradients[1])


@settings(derandomize=True)
@given(seed=st.integers(0, 10**6), beta=st.floats(0.05, 50), n=st.integers(1, 12))
def test_gram_is_a_covariance(seed, beta, n):
    matrix = gram(unit_rows(random(n, 3, seed=seed)), beta)
    torch.testing.assert_close(matrix, matrix.mT, rtol=1e-13, atol=0.0)
    assert (matrix > 0).all()
    assert matrix.max() <= 1 + 1e-13 * beta
    assert torch.linalg.eigvalsh(matrix).min() > -1e-12
