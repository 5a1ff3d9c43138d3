"""Nyström and random Fourier features: what they become in the limit, and how they are planned."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gpcache.gp import FourierPrecision, NystromPrecision
from gpcache.gp.precision import rank_within

READINGS = ["exact", "consistent"]
LOW_RANK = [f"{kind}-{reading}" for kind in ("nystrom", "fourier") for reading in READINGS]


def approximate_gram(precision, tools):
    """U S⁻¹ Uᵀ, from the features of the keys and the core."""
    u = tools.numpy64(precision._features(precision.keys))
    return u @ np.linalg.inv(tools.numpy64(precision._core())) @ u.T


@pytest.mark.parametrize("reading", READINGS)
def test_nystrom_with_every_key_a_landmark_is_exact(reading, problem, tools):
    nystrom = tools.build(f"nystrom-{reading}", problem, n_landmarks=1000)
    exact = tools.build("exact", problem)
    assert len(nystrom._plan.rows) == len(problem.keys)
    # The jitter on the core acts as a change of the noise by 1.5e-8.
    tolerance = {"rtol": 2e-6, "atol": 2e-6} if problem.keys.dtype == torch.float64 else {}
    for pair in (
        *zip(nystrom.posterior(problem.queries), exact.posterior(problem.queries), strict=True),
        *zip(nystrom.posterior(problem.keys), exact.posterior(problem.keys), strict=True),
        *zip(nystrom.leave_one_out(), exact.leave_one_out(), strict=True),
        (nystrom.weights(problem.queries), exact.weights(problem.queries)),
        (nystrom.solved_values, exact.solved_values),
        (nystrom.log_marginal_likelihood(), exact.log_marginal_likelihood()),
    ):
        tools.close(*pair, **tolerance)


@pytest.mark.parametrize("name", LOW_RANK)
def test_likelihood_and_solved_values_are_those_of_the_dense_covariance(name, problem, tools):
    precision = tools.build(name, problem)
    n, c = problem.values.shape
    covariance = approximate_gram(precision, tools) + problem.noise * np.eye(n)
    values = tools.numpy64(problem.values)
    solved = np.linalg.solve(covariance, values)
    tools.close(precision.solved_values, solved)
    determinant = np.linalg.slogdet(covariance)[1]
    expected = -0.5 * ((values * solved).sum() + c * determinant + n * c * np.log(2 * np.pi))
    likelihood = precision.log_marginal_likelihood()
    assert likelihood.dtype == problem.values.dtype
    tools.close(likelihood, expected)


def test_nystrom_never_explains_more_than_the_kernel(problem64, tools):
    keys = tools.numpy64(problem64.keys)
    missing = tools.rbf(keys, keys, problem64.beta) - approximate_gram(
        tools.build("nystrom-exact", problem64), tools
    )
    assert np.linalg.eigvalsh(missing).min() > -1e-7
    assert np.linalg.eigvalsh(missing).max() > 0.1  # it is an approximation here


def test_the_variance_stays_proper_where_the_naive_one_is_negative(device, tools):
    """1 − k P kᵀ with an exact k falls below zero; the training conditional does not."""
    problem = tools.make_problem(device=device, noise=0.01, beta=5.0)
    precision = tools.build("nystrom-exact", problem, n_landmarks=7)
    cross = tools.rbf(tools.numpy64(problem.keys), tools.numpy64(problem.keys), problem.beta)
    naive = 1 - (tools.numpy64(precision.weights(problem.keys)) * cross).sum(1)
    assert naive.min() < -1
    variance = precision.posterior(problem.keys).variance
    assert ((variance > 1e-6) & (variance <= 1)).all()


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("n_landmarks", [7, 14, 21, 70])
def test_nystrom_is_stable_at_any_rank_with_duplicate_landmarks(
    n_landmarks, reading, device, dtype, tools
):
    """Where an SVD of the landmarks' kernel would meet a null space."""
    base = tools.make_problem(device=device, dtype=dtype)
    problem = base.rows(torch.arange(len(base.keys), device=device).repeat(3))
    precision = tools.build(f"nystrom-{reading}", problem, n_landmarks=n_landmarks)
    everything = torch.ones(len(problem.keys), dtype=torch.bool)
    mean, variance = tools.dense(
        f"nystrom-{reading}", problem, precision._plan, everything, problem.queries
    )
    posterior = precision.posterior(problem.queries)
    # Half of float64's digits: the core's condition number is one over its jitter.
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float64 else {}
    tools.close(posterior.mean, mean, **tolerance)
    tools.close(posterior.variance, variance, **tolerance)
    trained = tools.build(
        f"nystrom-{reading}", problem, plan=precision._plan, keys=problem.keys.requires_grad_()
    )
    gradient = torch.autograd.grad(trained.posterior(problem.queries).mean.sum(), problem.keys)[0]
    assert gradient.isfinite().all()


@pytest.mark.parametrize("reading", READINGS)
def test_the_core_is_computed_in_float64_for_float32_keys(reading, device, tools):
    """Ill-conditioned on purpose: only the last rounding is float32."""
    problem = tools.make_problem(device=device, dtype=torch.float32, beta=0.5, noise=1e-4)
    name = f"nystrom-{reading}"
    precision = tools.build(name, problem, n_landmarks=70)
    everything = torch.ones(len(problem.keys), dtype=torch.bool)
    mean, variance = tools.dense(name, problem, precision._plan, everything, problem.queries)
    posterior = precision.posterior(problem.queries)
    tools.close(posterior.mean, mean, rtol=1e-6, atol=1e-6)
    tools.close(posterior.variance, variance, rtol=1e-6, atol=1e-6)


def test_landmarks_are_an_equal_number_of_every_class(problem64):
    shots = torch.bincount(problem64.labels, minlength=problem64.n_classes)
    for n_landmarks, per_class in ((7, 1), (13, 1), (14, 2), (21, 3), (1, 1), (None, 1), (999, 99)):
        plan = NystromPrecision.plan(problem64.labels, 7, n_landmarks=n_landmarks)
        taken = torch.bincount(problem64.labels[plan.rows], minlength=problem64.n_classes)
        assert torch.equal(taken, shots.clamp(max=per_class))
        assert len(plan.rows.unique()) == len(plan.rows)


def test_landmarks_come_first_in_the_given_order(problem64):
    labels, n = problem64.labels.tolist(), len(problem64.labels)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(4))
    expected, seen = set(), dict.fromkeys(range(7), 0)
    for row in order.tolist():
        if seen[labels[row]] < 2:
            expected.add(row)
        seen[labels[row]] += 1
    plan = NystromPrecision.plan(problem64.labels, 7, n_landmarks=14, order=order)
    assert set(plan.rows.tolist()) == expected
    rank = rank_within(problem64.labels, order.to(problem64.labels.device)).tolist()
    for place, row in enumerate(order.tolist()):
        assert rank[row] == sum(labels[other] == labels[row] for other in order[:place].tolist())


def test_plans_follow_the_seed(problem64):
    def landmarks(seed):
        return tuple(NystromPrecision.plan(problem64.labels, 7, seed=seed).rows.tolist())

    def frequencies(seed):
        return FourierPrecision.plan(problem64.labels, 7, width=6, seed=seed).draws

    assert landmarks(0) == landmarks(0)
    assert len({landmarks(seed) for seed in range(8)}) > 4
    assert torch.equal(frequencies(0), frequencies(0))
    assert not torch.equal(frequencies(0), frequencies(1))


def test_the_readings_share_the_variance_and_differ_in_the_mean(problem, tools):
    for kind in ("nystrom", "fourier"):
        exact, consistent = (
            tools.build(f"{kind}-{reading}", problem).posterior(problem.queries)
            for reading in READINGS
        )
        assert torch.equal(exact.variance, consistent.variance)
        assert (exact.mean - consistent.mean).abs().max() > 0.01


@pytest.mark.parametrize(("asked", "given"), [(2, 2), (9, 10), (64, 64)])
def test_fourier_features_come_in_pairs_of_unit_length(asked, given, problem64, tools):
    precision = tools.build("fourier-exact", problem64, n_features=asked)
    features = precision._features(problem64.queries)
    assert features.shape == (len(problem64.queries), given)
    tools.close(features.square().sum(1), np.ones(len(features)))


@pytest.mark.parametrize("beta", [1.0, 6.0])
def test_the_error_of_fourier_features_falls_with_the_root_of_their_number(beta, device, tools):
    problem = replace(tools.make_problem(device=device), beta=beta)
    truth = tools.rbf(*2 * (tools.numpy64(problem.keys),), beta)
    counts, errors = [64, 128, 256, 512, 1024, 2048, 4096], []
    for count in counts:
        squares = [
            np.square(approximate_features_gram(problem, count, seed, tools) - truth).mean()
            for seed in range(12)
        ]
        errors.append(np.sqrt(np.mean(squares)))
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.03)
    assert errors[-1] < 0.02


def approximate_features_gram(problem, count, seed, tools):
    precision = tools.build("fourier-consistent", problem, n_features=count, seed=seed)
    features = tools.numpy64(precision._features(problem.keys))
    return features @ features.T


def test_many_fourier_features_come_near_the_exact_posterior(problem64, tools):
    exact = tools.build("exact", problem64).posterior(problem64.queries)
    for reading in READINGS:
        errors = []
        for count in (32, 1024):
            posterior = tools.build(f"fourier-{reading}", problem64, n_features=count).posterior(
                problem64.queries
            )
            errors.append((posterior.mean - exact.mean).abs().max().item())
        assert errors[1] < errors[0] / 3
        assert (posterior.variance - exact.variance).abs().max() < 0.05
