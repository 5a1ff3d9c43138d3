"""The exact posterior is scikit-learn's Gaussian process, and its limits are the textbook's."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpcache.gp import ExactPrecision
from gpcache.gp.cholesky import JitterWarning
from gpcache.gp.kernels import unit_rows


def sklearn_process(problem, tools, rows=None):
    module = pytest.importorskip("sklearn.gaussian_process")
    keys, values = tools.numpy64(problem.keys), tools.numpy64(problem.values)
    if rows is not None:
        keys, values = keys[rows], values[rows]
    return module.GaussianProcessRegressor(
        module.kernels.RBF(1 / np.sqrt(problem.beta)), alpha=problem.noise, optimizer=None
    ).fit(keys, values)


@pytest.mark.parametrize(("beta", "noise"), [(2.0, 0.1), (0.5, 3.0), (12.0, 0.01)])
def test_posterior_and_likelihood_are_scikit_learns(beta, noise, device, dtype, tools):
    problem = tools.make_problem(device=device, dtype=dtype, beta=beta, noise=noise)
    reference = sklearn_process(problem, tools)
    mean, deviation = reference.predict(tools.numpy64(problem.queries), return_std=True)
    precision = tools.build("exact", problem)
    posterior = precision.posterior(problem.queries)
    tools.close(posterior.mean, mean)
    # One covariance serves all columns of Y, so scikit-learn repeats the deviation.
    tools.close(posterior.variance, deviation[:, :1] ** 2)
    tools.close(precision.log_marginal_likelihood(), reference.log_marginal_likelihood_value_)


def test_leave_one_out_is_n_refits_of_scikit_learn(problem, tools):
    n = len(problem.keys)
    mean, deviation = [], []
    for row in range(n):
        reference = sklearn_process(problem, tools, np.arange(n) != row)
        point = tools.numpy64(problem.keys[row : row + 1])
        one_mean, one_deviation = reference.predict(point, return_std=True)
        mean.append(one_mean[0])
        deviation.append(one_deviation[0, :1])
    left_out = tools.build("exact", problem).leave_one_out()
    tools.close(left_out.mean, np.array(mean))
    tools.close(left_out.variance, np.array(deviation) ** 2)


def test_leave_one_out_is_the_textbooks_formula(problem, tools):
    """Rasmussen and Williams, 2006, eq. 5.12; the latent variance has no noise in it."""
    keys, values = tools.numpy64(problem.keys), tools.numpy64(problem.values)
    covariance = tools.rbf(keys, keys, problem.beta) + problem.noise * np.eye(len(keys))
    inverse = np.linalg.inv(covariance)
    diagonal = np.diag(inverse)[:, None]
    left_out = tools.build("exact", problem).leave_one_out()
    tools.close(left_out.mean, values - inverse @ values / diagonal)
    tools.close(left_out.variance, 1 / diagonal - problem.noise)


def test_solved_values_are_the_precision_times_the_values(problem, tools):
    keys = tools.numpy64(problem.keys)
    covariance = tools.rbf(keys, keys, problem.beta) + problem.noise * np.eye(len(keys))
    expected = np.linalg.inv(covariance) @ tools.numpy64(problem.values)
    tools.close(tools.build("exact", problem).solved_values, expected)


def test_without_noise_the_process_interpolates(device, tools):
    problem = tools.make_problem(device=device, beta=20.0, noise=1e-10)
    at_keys = tools.build("exact", problem).posterior(problem.keys)
    tools.close(at_keys.mean, problem.values, atol=1e-7)
    assert at_keys.variance.max() < 1e-9
    assert at_keys.variance.min() > 0


@pytest.mark.parametrize("noise", [1e-3, 0.5, 10.0])
def test_a_single_key(noise, device, dtype, tools):
    problem = tools.make_problem(shots=(1, 0), device=device, dtype=dtype, noise=noise)
    precision = tools.build("exact", problem)
    at_key = precision.posterior(problem.keys)
    tools.close(at_key.variance, np.array([[noise / (1 + noise)]]))
    tools.close(at_key.mean, tools.numpy64(problem.values) / (1 + noise))
    alone = precision.leave_one_out()
    tools.close(alone.mean, np.zeros((1, 2)))
    tools.close(alone.variance, np.ones((1, 1)))


def test_the_order_of_rows_changes_nothing(problem, tools):
    order = torch.randperm(len(problem.keys), generator=torch.Generator().manual_seed(1))
    order = order.to(problem.keys.device)
    plain, shuffled = (tools.build("exact", p) for p in (problem, problem.rows(order)))
    for queries in (problem.queries, problem.keys):
        for actual, expected in zip(
            shuffled.posterior(queries), plain.posterior(queries), strict=True
        ):
            tools.close(actual, expected)
    for actual, expected in zip(shuffled.leave_one_out(), plain.leave_one_out(), strict=True):
        tools.close(actual, expected[order])
    tools.close(shuffled.weights(problem.queries), plain.weights(problem.queries)[:, order])
    tools.close(shuffled.log_marginal_likelihood(), plain.log_marginal_likelihood())


def duplicated(problem, copies=40):
    """The first row as often as `copies`, with one and the same value, then the other rows."""
    rows = torch.cat([torch.zeros(copies, dtype=torch.long), torch.arange(1, len(problem.keys))])
    return problem.rows(rows.to(problem.keys.device))


def test_forty_duplicates_work_with_hardly_any_noise(device, tools):
    """They count as one key with a fortieth of the noise."""
    base = tools.make_problem(device=device, beta=8.0, noise=1e-6)
    problem = duplicated(base)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # in float64 no jitter is needed
        precision = tools.build("exact", problem)
        posterior = precision.posterior(problem.queries)
        left_out = precision.leave_one_out()
    keys, values = tools.numpy64(base.keys), tools.numpy64(base.values)
    noise = np.full(len(keys), base.noise)
    noise[0] /= 40
    inverse = np.linalg.inv(tools.rbf(keys, keys, base.beta) + np.diag(noise))
    cross = tools.rbf(tools.numpy64(base.queries), keys, base.beta)
    tools.close(posterior.mean, cross @ inverse @ values, rtol=1e-7, atol=1e-7)
    form = np.einsum("ij,jk,ik->i", cross, inverse, cross)
    tools.close(posterior.variance[:, 0], 1 - form, rtol=1e-7, atol=1e-7)
    # A duplicate that is left out is known from the 39 others.
    tools.close(left_out.mean[:40], values[:1].repeat(40, 0), atol=1e-5)


def test_duplicates_in_float32_are_lifted_rather_than_refused(device, tools):
    """1 + 1e-8 is 1: without a lift the covariance of the copies is singular."""
    base = tools.make_problem(device=device, dtype=torch.float32, beta=8.0, noise=1e-8)
    with pytest.warns(JitterWarning):
        posterior = tools.build("exact", duplicated(base)).posterior(base.keys)
    tools.close(posterior.mean, base.values, atol=0.02)
    assert ((posterior.variance > 0) & (posterior.variance <= 1)).all()


@settings(derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 12),
    beta=st.floats(0.1, 20),
    noise=st.floats(1e-3, 10),
)
def test_variance_never_grows_when_a_row_is_added(seed, n, beta, noise):
    generator = torch.Generator().manual_seed(seed)
    keys, queries = (
        unit_rows(torch.randn(k, 4, generator=generator, dtype=torch.float64)) for k in (n + 1, 9)
    )
    values = torch.zeros(n + 1, 2, dtype=torch.float64)
    fewer, more = (
        ExactPrecision(None, keys[:k], values[:k], beta=beta, noise=noise)
        .posterior(queries)
        .variance
        for k in (n, n + 1)
    )
    assert (more <= fewer + 1e-12).all()
    # The new key itself is known better than before.
    precision = ExactPrecision(None, keys[:n], values[:n], beta=beta, noise=noise)
    before = precision.posterior(keys[n:]).variance
    after = precision.add(keys[n:], values[n:]).posterior(keys[n:]).variance
    assert (after < before).all()
