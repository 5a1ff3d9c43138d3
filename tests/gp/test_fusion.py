"""How zero-shot logits and the cache become one answer."""

import math

import numpy as np
import pytest
import torch

from gpcache.gp.fusion import MIN_VARIANCE, fuse, scaled_mean


@pytest.fixture
def parts(device, dtype):
    generator = torch.Generator().manual_seed(0)
    zero_shot, mean = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    variance = 0.05 + 0.9 * torch.rand(5, 1, generator=generator, dtype=torch.float64)
    return [part.to(device, dtype) for part in (zero_shot, mean, variance)]


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0, 3.0])
def test_it_is_the_formula(eta, parts, tools):
    zero_shot, mean, variance = parts
    expected = (
        1.5 * tools.numpy64(zero_shot) + 7.0 * tools.numpy64(mean) / tools.numpy64(variance) ** eta
    )
    tools.close(fuse(zero_shot, mean, variance, alpha=7.0, eta=eta, gain=1.5), expected)


def test_every_class_may_have_a_variance_of_its_own(parts, tools):
    _, mean, variance = parts
    columns = variance * torch.linspace(0.2, 1, 4, device=mean.device, dtype=mean.dtype)
    expected = tools.numpy64(mean) / tools.numpy64(columns) ** 2
    tools.close(scaled_mean(mean, columns, 2.0), expected)


def test_eta_zero_ignores_the_variance(parts):
    zero_shot, mean, variance = parts
    assert torch.equal(scaled_mean(mean, variance, 0.0), mean)
    assert torch.equal(scaled_mean(mean, None, 4.0), mean)
    with_it, without = (fuse(zero_shot, mean, v, alpha=2.0, eta=0.0) for v in (variance, None))
    assert torch.equal(with_it, without)


def test_without_text_the_cache_speaks_alone(parts):
    zero_shot, mean, variance = parts
    alone = fuse(None, mean, variance, alpha=3.0, eta=0.5)
    assert torch.equal(alone, 3.0 * scaled_mean(mean, variance, 0.5))
    silent = torch.zeros_like(zero_shot)
    assert torch.equal(fuse(silent, mean, variance, alpha=3.0, eta=0.5), alone)
    assert not torch.equal(fuse(zero_shot, mean, variance, alpha=3.0, eta=0.5), alone)


def test_the_gain_is_on_the_text_and_alpha_on_the_cache(parts, tools):
    zero_shot, mean, variance = parts
    tools.close(fuse(zero_shot, mean, variance, alpha=0.0, gain=2.0), 2 * zero_shot)
    tools.close(fuse(zero_shot, mean, variance, alpha=2.0, gain=0.0), 2 * mean)
    tools.close(fuse(zero_shot, mean, None, alpha=0.0), zero_shot)


def test_parameters_may_be_tensors(parts, tools):
    """A search tries many at once: leading dimensions are broadcast."""
    zero_shot, mean, variance = parts
    alphas, etas = (
        torch.tensor(values, device=mean.device, dtype=mean.dtype)[:, None, None]
        for values in ([1.0, 2.0, 5.0], [0.0, 0.5, 2.0])
    )
    together = fuse(zero_shot, mean, variance, alpha=alphas, eta=etas)
    for index, logits in enumerate(together):
        alone = fuse(zero_shot, mean, variance, alpha=alphas[index].item(), eta=etas[index].item())
        tools.close(logits, alone)


@pytest.fixture
def flushed_denormals():
    """As on hardware that turns numbers below the smallest normal one into zero."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushed_denormals")
def test_the_divisor_does_not_underflow(device):
    """In float32 1e-6^6.4 is below the smallest normal number: the factor is the largest one."""
    mean = torch.tensor([[0.5, -0.25, 0.0]], device=device).repeat(8, 1)
    variance = torch.full((8, 1), 1e-6, device=device)
    scaled = scaled_mean(mean, variance, 6.4)
    expected = np.array([0.5, -0.25, 0.0]) * largest_factor(torch.float32)
    np.testing.assert_allclose(scaled.cpu().double(), expected[None].repeat(8, 0), rtol=1e-3)


def largest_factor(dtype):
    return math.sqrt(torch.finfo(dtype).max)


def test_the_formula_holds_up_to_the_largest_factor_which_is_never_passed(dtype, device):
    """In float32 that is 1e-6 to the power 3.2; the sign and the ratio of means live on."""
    mean = torch.tensor([[0.5, -0.25, 0.0]], device=device, dtype=dtype)
    variance = torch.tensor([[1e-6]], device=device, dtype=dtype)
    limit = math.log(largest_factor(dtype)) / math.log(1e6)
    assert dtype != torch.float32 or 3.2 < limit < 3.3
    for eta in (0.2 * limit, 0.9 * limit, 0.999 * limit, 1.001 * limit, 2 * limit, 1000 * limit):
        expected = np.array([[0.5, -0.25, 0.0]]) * min(1e6 ** min(eta, 50), largest_factor(dtype))
        scaled = scaled_mean(mean, variance, eta)
        # An error of 1e-7 in an exponent of 44, or of 1e-16 in one of 355.
        tolerance = 1e-4 if dtype == torch.float32 else 1e-12
        np.testing.assert_allclose(scaled.cpu().double(), expected, rtol=tolerance)


@pytest.mark.parametrize("eta", [3.0, 8.0, 100.0, 1e30])
def test_the_smallest_variance_and_the_largest_eta_give_no_nan(eta, dtype, device):
    """A class without shots has a mean of exactly zero, and must keep it."""
    mean = torch.tensor([[0.5, -0.25, 0.0]], device=device, dtype=dtype)
    for spread in ([[1e-6]], [[0.0]], [[1.0]], [[1e-6, 1.0, 1e-30]]):
        variance = torch.tensor(spread, device=device, dtype=dtype)
        for exponent in (eta, torch.tensor(eta, device=device, dtype=dtype)):
            scaled = scaled_mean(mean, variance, exponent)
            assert scaled.isfinite().all()
            assert torch.equal(scaled.sign(), mean.sign())
            assert scaled.square().isfinite().all()  # as a root mean square asks for
            assert fuse(mean, mean, variance, alpha=1000.0, eta=exponent).isfinite().all()


def test_a_variance_of_rounding_is_not_divided_by(dtype, device, tools):
    mean = torch.ones(1, 2, dtype=dtype, device=device)
    tiny = torch.tensor([[torch.finfo(dtype).eps ** 2]], dtype=dtype, device=device)
    tools.close(scaled_mean(mean, tiny, 1.0), np.full((1, 2), 1 / MIN_VARIANCE))
