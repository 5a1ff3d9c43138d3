"""Many noises at once: what a posterior of each noise by itself says, on either path."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gpcache.gp import ExactPrecision, sweep
from gpcache.gp.sweep import EIGEN_FROM, Sweep

# In no order, and more than one path would be chosen for.
NOISES = (1.0, 0.05, 30.0, 0.1, 0.3, 3.0, 0.02, 0.2)
BETAS = (0.5, 2.0, 8.0)
PATHS = {
    "factors": dict.fromkeys(EIGEN_FROM, 10**9),
    "eigenvalues": dict.fromkeys(EIGEN_FROM, 1),
}


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    """Takes one of the two paths, whatever the number of noises."""
    monkeypatch.setattr(sweep, "EIGEN_FROM", PATHS[request.param])


def exact(problem, beta, noise):
    return ExactPrecision(None, problem.keys, problem.values, beta=beta, noise=noise)


def check(points, expected, tools, **tolerance):
    """Against one (posterior, precision) for each noise."""
    for point, (posterior, precision) in zip(points, expected, strict=True):
        tools.close(point.mean, posterior.mean, **tolerance)
        assert point.variance.shape == (len(point.mean), 1)
        tools.close(point.variance, posterior.variance, **tolerance)
        assert isinstance(point.log_marginal_likelihood, float)
        evidence = torch.tensor(point.log_marginal_likelihood, dtype=point.mean.dtype)
        tools.close(evidence, precision.log_marginal_likelihood(), **tolerance)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("beta", BETAS)
def test_queries_see_the_exact_posterior_of_every_noise(beta, problem, tools):
    precisions = [exact(problem, beta, noise) for noise in NOISES]
    points = Sweep(problem.keys, problem.queries).at(problem.values, beta, NOISES)
    check(points, [(p.posterior(problem.queries), p) for p in precisions], tools)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("beta", BETAS)
def test_without_queries_every_key_is_left_out(beta, problem, tools):
    precisions = [exact(problem, beta, noise) for noise in NOISES]
    points = Sweep(problem.keys).at(problem.values, beta, NOISES)
    check(points, [(p.leave_one_out(), p) for p in precisions], tools)


@pytest.mark.parametrize("beyond", [None, -1, 0, 3])
@pytest.mark.parametrize("with_queries", [True, False])
def test_the_number_of_noises_chooses_the_path(beyond, with_queries, problem, tools, monkeypatch):
    """One decomposition for many noises, one factor for each of a few; the answer is the same."""
    threshold = EIGEN_FROM[problem.keys.device.type]
    count = 0 if beyond is None else threshold + beyond
    calls = {"cholesky": 0, "eigh": 0}

    def counted(name, function):
        def call(*arguments):
            calls[name] += 1
            return function(*arguments)

        return call

    queries = problem.queries if with_queries else None
    noises = [0.1 * (1 + i) for i in range(count)]
    expected = [exact(problem, 2.0, noise) for noise in noises]
    posteriors = [p.posterior(queries) if with_queries else p.leave_one_out() for p in expected]
    monkeypatch.setattr(sweep, "cholesky", counted("cholesky", sweep.cholesky))
    monkeypatch.setattr(torch.linalg, "eigh", counted("eigh", torch.linalg.eigh))
    points = Sweep(problem.keys, queries).at(problem.values, 2.0, noises)
    many = count >= threshold
    assert calls == {"cholesky": 0 if many else count, "eigh": int(many)}
    check(points, list(zip(posteriors, expected, strict=True)), tools)


@pytest.mark.parametrize("with_queries", [True, False])
def test_the_paths_agree_where_the_kernel_is_singular(with_queries, problem, tools, monkeypatch):
    """Every key three times: a third of the eigenvalues is nought, or below it by rounding."""
    rows = torch.arange(len(problem.keys), device=problem.keys.device).repeat(3)
    problem = problem.rows(rows)
    found = []
    for path in PATHS.values():
        monkeypatch.setattr(sweep, "EIGEN_FROM", path)
        queries = problem.queries if with_queries else None
        found.append(Sweep(problem.keys, queries).at(problem.values, 2.0, NOISES))
    # The condition number is 3 × 28 / 0.02.
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if problem.keys.dtype == torch.float32 else {}
    for by_factor, by_eigenvalues in zip(*found, strict=True):
        tools.close(by_eigenvalues.mean, by_factor.mean, **tolerance)
        tools.close(by_eigenvalues.variance, by_factor.variance, **tolerance)
        assert by_eigenvalues.log_marginal_likelihood == pytest.approx(
            by_factor.log_marginal_likelihood, rel=1e-3 if tolerance else 1e-10
        )


@pytest.mark.usefixtures("path")
def test_a_variance_that_is_not_asked_for_is_not_there(problem):
    both = Sweep(problem.keys, problem.queries)
    with_it = both.at(problem.values, 2.0, NOISES)
    without = both.at(problem.values, 2.0, NOISES, with_variance=False)
    for full, few in zip(with_it, without, strict=True):
        assert few.variance is None
        assert torch.equal(few.mean, full.mean)
        assert few.log_marginal_likelihood == full.log_marginal_likelihood


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("with_queries", [True, False])
def test_one_sweep_serves_many_values(with_queries, problem, tools):
    """Nothing of what was regressed on is left behind for the next."""
    queries = problem.queries if with_queries else None
    shared = Sweep(problem.keys, queries)
    for values in (problem.values, 3 - problem.values**2, problem.values[:, :1], problem.values):
        precisions = [exact(replace(problem, values=values), 2.0, noise) for noise in NOISES]
        expected = [p.posterior(queries) if with_queries else p.leave_one_out() for p in precisions]
        check(shared.at(values, 2.0, NOISES), list(zip(expected, precisions, strict=True)), tools)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("with_queries", [True, False])
def test_one_sweep_serves_many_betas(with_queries, problem):
    """Nothing of one β is left behind for the next, and the input stays what it was."""
    before = [t.clone() for t in (problem.keys, problem.values, problem.queries)]
    queries = problem.queries if with_queries else None
    shared = Sweep(problem.keys, queries)
    for beta in (*BETAS, BETAS[0]):
        alone = Sweep(problem.keys, queries).at(problem.values, beta, NOISES)
        for point, other in zip(shared.at(problem.values, beta, NOISES), alone, strict=True):
            assert torch.equal(point.mean, other.mean)
            assert torch.equal(point.variance, other.variance)
            assert point.log_marginal_likelihood == other.log_marginal_likelihood
    for tensor, copy in zip((problem.keys, problem.values, problem.queries), before, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.usefixtures("path")
def test_points_have_the_dtype_of_the_keys_and_no_gradient(problem):
    keys = problem.keys.clone().requires_grad_()
    for queries in (problem.queries, None):
        for point in Sweep(keys, queries).at(problem.values, 2.0, NOISES):
            for part in (point.mean, point.variance):
                assert part.dtype == problem.keys.dtype
                assert part.device == problem.keys.device
                assert not part.requires_grad


@pytest.mark.usefixtures("path")
@pytest.mark.filterwarnings("ignore::gpcache.gp.cholesky.JitterWarning")
@pytest.mark.parametrize("beta", [0.01, 60.0])
def test_extremes_stay_finite_and_proper(beta, problem):
    """With less noise than rounding takes off the eigenvalues of keys that are there twice."""
    problem = replace(problem, keys=problem.keys.repeat(2, 1), values=problem.values.repeat(2, 1))
    for queries in (problem.queries, None):
        swept = Sweep(problem.keys, queries)
        for point in swept.at(problem.values, beta, (1e-9, 1e-4, 1e2, 1e6)):
            assert point.mean.isfinite().all()
            assert ((point.variance > 0) & (point.variance <= 1)).all()
            assert np.isfinite(point.log_marginal_likelihood)
