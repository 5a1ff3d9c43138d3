"""The variance by leading directions: near the exact one where it says so, else not offered."""

import pytest
import torch

from gpcache.gp import ExactPrecision, exact, quick_variance
from gpcache.gp.kernels import gram, kernel, unit_rows

N, WIDTH = 600, 8


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(N + 200, WIDTH, generator=generator, dtype=torch.float64)
    return unit_rows(drawn).split([N, 200])


def of(keys, *, beta=1.0, noise=1.0):
    values = torch.eye(2, dtype=keys.dtype)[torch.arange(len(keys)) % 2]
    return ExactPrecision(None, keys, values, beta=beta, noise=noise)


@pytest.mark.parametrize("noise", [1.0, 0.5])
def test_within_one_percent_at_images_it_was_not_tried_on(rows, noise, monkeypatch):
    monkeypatch.setattr(exact, "LARGE", N)
    keys, queries = rows
    precision = of(keys, noise=noise)
    expected = precision.posterior(queries).variance
    found = precision.variance(queries, quick=True)
    assert precision._quick is not None
    assert precision._quick.basis.shape[1] <= N // 4
    assert 0 < float(((found - expected) / expected).abs().max()) < quick_variance.WITHIN


def test_all_directions_are_exact(rows):
    keys, queries = rows
    matrix = gram(keys, 1.0)
    found = quick_variance._of_rank(matrix, 0.3, N)(kernel(queries, keys, 1.0))
    expected = of(keys, noise=0.3).posterior(queries).variance[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_flat_spectrum_with_little_noise_is_left_to_the_exact_way(rows, monkeypatch):
    monkeypatch.setattr(exact, "LARGE", N)
    keys, queries = rows
    precision = of(keys, beta=8.0, noise=1e-3)
    assert precision._quick is None
    expected = precision.posterior(queries).variance
    torch.testing.assert_close(precision.variance(queries, quick=True), expected, rtol=0, atol=0)


def test_few_keys_are_answered_exactly(rows):
    keys, queries = rows
    precision = of(keys)
    expected = precision.posterior(queries).variance
    torch.testing.assert_close(precision.variance(queries, quick=True), expected, rtol=0, atol=0)


def test_what_it_is_tried_on_has_the_variance_of_a_cache_without_it(rows):
    """The probes' exact variances, against a factor of the other keys."""
    keys, _ = rows
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    probes, others = keys[order[: quick_variance.PROBES]], keys[order[quick_variance.PROBES :]]
    expected = of(others).posterior(probes).variance[:, 0]
    precision = of(keys)
    found = quick_variance.quick_variance(gram(keys, 1.0), precision._factor, 1.0)
    quick = quick_variance._of_rank(gram(others, 1.0), 1.0, found.basis.shape[1])
    error = ((quick(kernel(probes, others, 1.0)) - expected) / expected).abs().max()
    assert float(error) == pytest.approx(found.error, rel=1e-6)
