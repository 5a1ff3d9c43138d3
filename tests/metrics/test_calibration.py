"""Scales of logits and temperature, against scipy's optimiser, loops and what a minimum must be."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from gpcache.gp.fusion import scaled_mean
from gpcache.metrics import (
    Calibration,
    fit_calibration,
    fit_scales,
    fit_temperature,
    mean_nll,
    smoothed_nll,
)

N_CLASSES = 5


def make(k, e=1, *, n=80, seed=0, signal=1.0):
    """Directions (k, e, n, c) that know something of the labels (n,), and an offset (n, c)."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(N_CLASSES, size=n)
    known = np.eye(N_CLASSES)[labels]
    directions = generator.normal(size=(k, e, n, N_CLASSES)) + signal * known
    # Of unlike size, as cache means and text logits are.
    directions *= 10.0 ** generator.uniform(-2, 2, size=(k, 1, 1, 1))
    offset = 0.5 * generator.normal(size=(n, N_CLASSES)) + 0.5 * known
    return torch.from_numpy(directions), torch.from_numpy(labels), torch.from_numpy(offset)


def smoothed(labels, c):
    """Targets (n, c): 1 − ε at the label and ε/(c − 1) at every other, with ε = 1/(n + 2)."""
    doubt = 1 / (len(labels) + 2)
    hot = np.eye(c)[labels]
    return (1 - doubt) * hot + doubt / (c - 1) * (1 - hot)


def gradient_of(directions, labels, scales, offset):
    """Of the smoothed NLL, and the NLL itself: directions (k, n, c) and scales (k,) in numpy."""
    logits = np.tensordot(scales, directions, 1) + offset
    targets = smoothed(labels, logits.shape[-1])
    loss = -(targets * log_softmax(logits, -1)).sum(-1).mean()
    return loss, (directions * (softmax(logits, -1) - targets)).sum(-1).mean(-1)


def scipy_scales(directions, labels, offset):
    """Without any ridge; in units where every direction has unit size."""
    size = np.sqrt(np.square(directions).mean((1, 2)))
    unit = directions / size[:, None, None]
    result = minimize(
        lambda scales: gradient_of(unit, labels, scales, offset),
        np.ones(len(unit)),
        jac=True,
        bounds=[(0, None)] * len(unit),
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 1000},
    )
    return result.x / size, result.fun


def assert_minimum(directions, labels, scales, offset=0.0, tolerance=1e-5):
    """The conditions of Karush, Kuhn and Tucker, in units where every direction has unit size."""
    size = np.sqrt(np.square(directions).mean((1, 2)))
    slope = gradient_of(directions, labels, scales, offset)[1] / size
    assert (scales >= 0).all()
    assert (slope > -tolerance).all()
    assert (np.abs(slope[scales > 0]) < tolerance).all()


@pytest.mark.parametrize("with_offset", ["none", "shared", "each"])
@pytest.mark.parametrize("k", [1, 2])
def test_scales_are_scipys(k, with_offset):
    """Several problems at once, each compared by itself; the ridge is invisible."""
    e = 6
    for seed in range(3):
        directions, labels, offset = make(k, e, seed=seed)
        if with_offset == "none":
            offset = None
        elif with_offset == "each":
            offset = offset * torch.linspace(0, 3, e, dtype=torch.float64)[:, None, None]
        scales, losses = fit_scales(directions, labels, offset=offset)
        assert scales.shape == (e, k)
        assert losses.shape == (e,)
        base = torch.zeros_like(directions[0]) if offset is None else offset.expand(e, -1, -1)
        for i in range(e):
            problem = directions[:, i].numpy(), labels.numpy()
            expected, loss = scipy_scales(*problem, base[i].numpy())
            np.testing.assert_allclose(scales[i].numpy(), expected, rtol=1e-3, atol=1e-12)
            assert losses[i].item() == pytest.approx(loss, abs=1e-8)
            assert_minimum(*problem, scales[i].numpy(), base[i].numpy())


def test_many_problems_are_one_problem_many_times():
    """Though some need more steps than others."""
    directions, labels, offset = make(2, 9, signal=0.5)
    directions[:, 4] = 40 * torch.nn.functional.one_hot(labels, N_CLASSES)  # separable
    directions[:, 5] *= -1  # the bound is active
    scales, losses = fit_scales(directions, labels, offset=offset)
    for i in range(9):
        alone, loss = fit_scales(directions[:, i : i + 1], labels, offset=offset)
        torch.testing.assert_close(scales[i], alone[0], rtol=1e-4, atol=1e-9)
        torch.testing.assert_close(losses[i], loss[0], rtol=0, atol=1e-8)


def test_the_bound_holds_a_direction_that_misleads():
    directions, labels, offset = make(2)
    directions[1] = -directions[1]
    for base in (None, offset):
        scales, loss = fit_scales(directions, labels, offset=base)
        good, loss_without = fit_scales(directions[:1], labels, offset=base)
        assert scales[0, 1] == 0
        torch.testing.assert_close(scales[0, :1], good[0], rtol=1e-6, atol=0)
        torch.testing.assert_close(loss, loss_without)
    neither, loss = fit_scales(directions[1:], labels, offset=offset)
    assert neither.item() == 0
    expected = -(smoothed(labels, N_CLASSES) * log_softmax(offset.numpy(), -1)).sum(-1).mean()
    assert loss.item() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_separable_rows_have_finite_scales(size, dtype):
    """All rows are right, and the next one is still not certain."""
    _, labels, _ = make(1)
    certain = size * torch.nn.functional.one_hot(labels, N_CLASSES).to(dtype)
    scales, losses = fit_scales(torch.stack([certain, certain.roll(1, 0)])[:, None], labels)
    assert scales.isfinite().all()
    assert scales[0, 0] > 0
    # No loss is below the entropy of the targets.
    targets = smoothed(labels, N_CLASSES)
    lowest = -(targets * np.log(targets)).sum(1).mean()
    assert -1e-6 <= losses.item() - lowest < 1e-4
    temperature = fit_temperature(certain, labels)
    assert 0 < temperature < math.inf
    probability = (certain / temperature).softmax(-1)[torch.arange(80), labels]
    torch.testing.assert_close(
        probability, torch.full_like(probability, 81 / 82), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("c", [2, 5, 100])
@pytest.mark.parametrize("n", [2, 8, 300])
def test_n_right_rows_give_the_confidence_of_laplace(n, c):
    """(n + 1)/(n + 2), however far the classes are apart."""
    labels = torch.arange(n) % c
    for size in (0.1, 30.0):
        logits = size * torch.nn.functional.one_hot(labels, c).double()
        temperature = fit_temperature(logits, labels)
        assert 0 < temperature < math.inf
        probability = (logits / temperature).softmax(-1).max(-1).values
        torch.testing.assert_close(
            probability, torch.full_like(probability, (n + 1) / (n + 2)), rtol=0, atol=1e-3
        )


def test_rows_that_are_right_by_unlike_margins_give_about_that_confidence():
    """A scale cannot make all of them equally sure; their mean is near it."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(N_CLASSES, (60,), generator=generator)
    margins = 1 + torch.rand(60, 1, generator=generator, dtype=torch.float64)
    logits = margins * torch.nn.functional.one_hot(labels, N_CLASSES)
    probability = (logits / fit_temperature(logits, labels)).softmax(-1).max(-1).values
    assert probability.mean().item() == pytest.approx(61 / 62, abs=0.01)
    assert probability.max() < 1 - 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("factor", [1e-12, 1e-3, 1e3, 1e12])
def test_the_size_of_a_direction_is_no_matter(factor, dtype):
    directions, labels, offset = make(2, 3)
    directions, offset = directions.to(dtype), offset.to(dtype)
    factors = torch.tensor([factor, 1.0], dtype=dtype)
    scales, losses = fit_scales(directions, labels, offset=offset)
    other, other_losses = fit_scales(
        directions * factors[:, None, None, None], labels, offset=offset
    )
    # What rounding leaves undecided: the loss is flat to the square of a scale's error.
    tolerance = 1e-6 if dtype == torch.float64 else 1e-2
    torch.testing.assert_close(other * factors, scales, rtol=tolerance, atol=0)
    torch.testing.assert_close(other_losses, losses, rtol=0, atol=tolerance**2 + 1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_direction_of_zeros_is_silent(dtype):
    """As the cache is at a vanishing β, or with no shots."""
    directions, labels, offset = make(2)
    directions, offset = directions.to(dtype), offset.to(dtype)
    directions[1] = 0
    scales, loss = fit_scales(directions, labels, offset=offset)
    alone, expected = fit_scales(directions[:1], labels, offset=offset)
    assert scales.isfinite().all()
    torch.testing.assert_close(scales[0, :1], alone[0])
    torch.testing.assert_close(loss, expected)


def test_the_largest_scaled_mean_has_a_scale():
    """In float32 `scaled_mean` reaches 1.8e19, whose square is the largest number there is."""
    directions, labels, _ = make(1)
    mean = (directions[0, 0] / directions.abs().max()).float()
    largest = scaled_mean(mean, torch.full((len(mean), 1), 1e-6), 8.0)
    _, expected = fit_scales(mean[None, None], labels)
    _, loss = fit_scales(largest[None, None], labels)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("difference", [0.03, 0.01])
def test_directions_that_are_nearly_alike_have_a_minimum(difference):
    for seed in range(20):
        directions, labels, _ = make(2, seed=seed, signal=0.5)
        unit = directions / directions.square().mean((-2, -1), keepdim=True).sqrt()
        alike = torch.stack([unit[0], unit[0] + difference * unit[1]])
        scales, loss = fit_scales(alike, labels)
        problem = alike[:, 0].numpy(), labels.numpy()
        assert_minimum(*problem, scales[0].numpy(), tolerance=1e-4)
        assert loss.item() == pytest.approx(scipy_scales(*problem, 0.0)[1], abs=1e-6)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_temperature_is_recovered(temperature):
    """Within 5 %: three standard errors of 10,000 rows are less than 4 %."""
    generator = np.random.default_rng(3)
    logits = 2 * temperature * generator.normal(size=(10_000, N_CLASSES))
    drawn = logits / temperature + generator.gumbel(size=logits.shape)
    logits, labels = torch.from_numpy(logits), torch.from_numpy(drawn.argmax(1))
    found = fit_temperature(logits, labels)
    assert isinstance(found, float)
    assert found == pytest.approx(temperature, rel=0.05)
    assert fit_temperature(10 * logits, labels) == pytest.approx(10 * found, rel=1e-6)
    assert fit_temperature(logits.float(), labels) == pytest.approx(found, rel=1e-2)
    at_best = mean_nll(logits / found, labels)
    for other in (0.9 * found, 1.1 * found):
        assert mean_nll(logits / other, labels) > at_best


@pytest.mark.parametrize("start", [Calibration(0.5, 1.0), Calibration(4.0, -0.5)])
def test_the_calibration_does_not_depend_on_where_it_starts(start):
    directions, labels, _ = make(1, n=300, signal=2.0)
    logits = 3 * directions[0, 0] / directions.std()
    expected = fit_calibration(logits, labels)
    assert fit_calibration(logits, labels, start=start) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("pull", [0.0, 3.0, 1e9])
def test_the_calibration_minimises_its_definition(pull):
    """Smoothed NLL, with slope and log temperature pulled to zero: by scipy."""
    directions, labels, _ = make(1, n=30, signal=2.0)
    logits = 3 * directions[0, 0] / directions.std()
    rows, targets = logits.numpy(), smoothed(labels.numpy(), N_CLASSES)

    def objective(values):
        plain = rows * math.exp(-values[0])
        logs = log_softmax(plain, -1)
        entropy = -(np.exp(logs) * logs).sum(-1, keepdims=True) / math.log(N_CLASSES)
        scaled = log_softmax(plain * np.exp(values[1] * entropy), -1)
        pulled = pull * values[0] ** 2 + 2 * values[1] ** 2
        return (pulled - (targets * scaled).sum()) / len(rows)

    expected = minimize(objective, np.zeros(2), method="Nelder-Mead", tol=1e-12).x
    found = fit_calibration(logits, labels, pull=pull)
    assert math.log(found.temperature) == pytest.approx(expected[0], abs=1e-5)
    assert found.slope == pytest.approx(expected[1], abs=1e-5)


def test_logits_that_mislead_become_uniform():
    directions, labels, _ = make(1, signal=-3.0)
    logits = directions[0, 0] / directions.abs().max()
    temperature = fit_temperature(logits, labels)
    assert 1e3 < temperature < math.inf
    uniform = torch.full_like(logits, 1 / N_CLASSES)
    torch.testing.assert_close((logits / temperature).softmax(-1), uniform, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_mean_nll_is_a_loop(dtype):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(2, 3, 11, N_CLASSES)) * 3
    labels = generator.integers(N_CLASSES, size=11)
    expected = np.empty((2, 3))
    for i, j in np.ndindex(2, 3):
        losses = []
        for row, label in zip(logits[i, j], labels, strict=True):
            losses.append(-math.log(math.exp(row[label]) / sum(math.exp(z) for z in row)))
        expected[i, j] = sum(losses) / len(losses)
    actual = mean_nll(torch.from_numpy(logits).to(dtype), torch.from_numpy(labels))
    assert actual.dtype == dtype
    np.testing.assert_allclose(
        actual.numpy(), expected, rtol=1e-5 if dtype.itemsize == 4 else 1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("n", "c"), [(1, 2), (11, 5), (40, 3)])
def test_smoothed_nll_is_a_loop(n, c, dtype):
    """−Σ target · log p, row by row and class by class."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(2, 3, n, c)) * 3
    labels = generator.integers(c, size=n)
    expected = np.zeros((2, 3))
    for i, j in np.ndindex(2, 3):
        for row, label in zip(logits[i, j], labels, strict=True):
            total = sum(math.exp(z) for z in row)
            for k, z in enumerate(row):
                target = 1 - 1 / (n + 2) if k == label else 1 / (n + 2) / (c - 1)
                expected[i, j] -= target * math.log(math.exp(z) / total) / n
    actual = smoothed_nll(torch.from_numpy(logits).to(dtype), torch.from_numpy(labels))
    assert actual.dtype == dtype
    np.testing.assert_allclose(
        actual.numpy(), expected, rtol=1e-5 if dtype.itemsize == 4 else 1e-12
    )


def test_of_one_class_there_is_no_doubt():
    logits, labels = torch.randn(7, 1), torch.zeros(7, dtype=torch.long)
    assert smoothed_nll(logits, labels).item() == 0
    scales, losses = fit_scales(logits[None, None], labels)
    assert scales.isfinite().all()
    assert losses.item() == 0


def test_mean_nll_neither_overflows_nor_underflows():
    logits, labels = torch.tensor([[1e4, 0.0, -1e4]]).double(), torch.tensor([2])
    assert mean_nll(logits, labels).item() == pytest.approx(2e4)
    assert mean_nll(logits, torch.tensor([0])).item() == 0
    assert mean_nll(torch.zeros(4, 7), torch.arange(4)).item() == pytest.approx(math.log(7))


def test_the_default_dtype_of_torch_does_not_matter():
    logits, labels, _ = (part.float() if part.is_floating_point() else part for part in make(2))
    expected, _ = fit_scales(logits, labels)
    torch.set_default_dtype(torch.float64)
    try:
        scales, losses = fit_scales(logits, labels)
    finally:
        torch.set_default_dtype(torch.float32)
    assert scales.dtype == losses.dtype == torch.float32
    assert torch.equal(scales, expected)
