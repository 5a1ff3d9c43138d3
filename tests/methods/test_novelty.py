"""Novelty: the posterior's variance by brute force, held out, and the promise made with it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gpcache import GPCacheClassifier
from gpcache.methods import TipAdapterClassifier
from gpcache.methods.cache.regression import held_out_variance


def brute_novelty(keys, queries, tools, noise=None):
    noise = tools.numbers["noise"] if noise is None else noise
    values = np.zeros((len(keys), 1))
    return tools.posterior(keys, values, queries, beta=tools.numbers["beta"], noise=noise)[1]


@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
@pytest.mark.parametrize("space", ["raw", "centred", "whitened"])
def test_novelty_is_the_variance(space, text, problem, tools):
    estimator = tools.gp_cache(problem if text else None, kernel_space=space)
    estimator.fit(problem.X, problem.y)
    phi = tools.feature_map(space, problem.X, problem.y)
    expected = brute_novelty(phi(problem.X), phi(problem.queries), tools)
    np.testing.assert_allclose(estimator.novelty(problem.queries), expected, atol=1e-10)


@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
@pytest.mark.parametrize("space", ["raw", "centred", "whitened"])
def test_the_likelihood_has_no_say(space, text, problem, tools):
    """At the same β, and in the same space, novelty is that of regression at a noise of one."""
    options = {"kernel_space": space, "shrinkage": 0.3, "beta": 2.5}
    one = tools.softmax_cache(problem if text else None, **options).fit(problem.X, problem.y)
    found = one.novelty(problem.queries)
    keys, queries = (
        one.fitted_.model.feature_map(torch.tensor(tools.unit(rows))).numpy()
        for rows in (problem.X, problem.queries)
    )
    expected = brute_novelty(keys, queries, tools, noise=1.0)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    assert not np.isnan(one.held_out_novelty_).any()
    assert (one.held_out_novelty_ > one.novelty(problem.X)).all()


def test_of_groups_the_nearest_speaks(problem, tools):
    """Whatever a group knows well is not new."""
    estimator = tools.gp_cache(problem, kernel_space="raw", precision="grouped", n_groups=2)
    _, variance = estimator.fit(problem.X, problem.y).posterior(problem.queries)
    assert variance.shape == (9, 2)
    found = estimator.novelty(problem.queries)
    np.testing.assert_array_equal(found, np.minimum(variance[:, 0], variance[:, 1]))
    assert (variance.max(1) > found).any()


def test_held_out_is_a_refit_without_the_row(problem, tools):
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    for row in range(len(problem.X)):
        rest = problem.rows(np.delete(np.arange(14), row))
        without = tools.gp_cache(problem, kernel_space="raw").fit(rest.X, rest.y)
        expected = without.novelty(problem.X[[row]])[0]
        assert estimator.held_out_novelty_[row] == pytest.approx(expected, abs=1e-10)


def test_held_out_rows_of_a_whitening_are_new_to_it(problem, tools):
    """Each fold whitens anew, so a held-out row is more novel than the same row once seen."""
    estimator = tools.gp_cache(problem).fit(problem.X, problem.y)
    assert (estimator.held_out_novelty_ > estimator.novelty(problem.X)).all()


def test_rows_without_company_are_not_counted(tools):
    problem = tools.make_problem(shots=(1, 3, 1, 2, 0))
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    alone = np.isin(problem.y, ["oak", "fir"])
    np.testing.assert_array_equal(np.isnan(estimator.held_out_novelty_), alone)


@pytest.mark.parametrize("shots", [(1, 1, 1, 1, 0), (6, 0, 0, 0, 0)], ids=["one each", "one class"])
def test_where_nothing_can_be_held_out_nothing_is_known(shots, tools):
    problem = tools.make_problem(shots=shots)
    estimator = tools.gp_cache(kernel_space="raw").fit(problem.X, problem.y)
    assert np.isnan(estimator.held_out_novelty_).all()


def test_a_plain_sum_has_no_variance(problem):
    estimator = TipAdapterClassifier().fit(problem.X, problem.y)
    assert np.isnan(estimator.held_out_novelty_).all()
    np.testing.assert_array_equal(estimator.novelty(problem.queries), np.ones(9))


def test_updates_are_seen(likelihood, problem, tools):
    make = tools.softmax_cache if likelihood == "softmax" else tools.gp_cache
    estimator = make(problem, kernel_space="raw").fit(problem.X, problem.y)
    before = estimator.held_out_novelty_.copy()
    estimator.add(problem.X[:1], problem.y[:1])
    assert estimator.held_out_novelty_.shape == (15,)
    assert estimator.held_out_novelty_[0] < before[0] - 0.01


@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_no_more_good_rows_are_rejected_than_promised(space, tools):
    """Shots and queries of one distribution: p ≤ ε for at most a share ε of the queries.

    p is the share of held-out shots that are at least as novel, the query itself among them.
    """
    rates = (0.05, 0.1, 0.3)
    shares = []
    for draw in range(60):
        generator = np.random.default_rng(draw)
        labels = np.arange(50) % 4
        centres = np.random.default_rng(99).normal(1, 1, (4, 10))
        X = generator.normal(centres[generator.permutation(labels)], 0.6)
        y = np.argmax(X @ centres.T - (centres**2).sum(1) / 2, axis=1)
        estimator = tools.gp_cache(kernel_space=space).fit(X[:40], y[:40])
        held_out = estimator.held_out_novelty_
        held_out = held_out[~np.isnan(held_out)]
        novelty = estimator.novelty(X[40:])
        p = (1 + (held_out >= novelty[:, None]).sum(1)) / (1 + len(held_out))
        shares.append([(p <= rate).mean() for rate in rates])
    mean, error = np.mean(shares, 0), np.std(shares, 0) / np.sqrt(len(shares))
    assert (mean <= np.array(rates) + 2 * error).all(), mean
    assert (mean > np.array(rates) / 4).all(), mean  # nor is the promise kept by silence


@pytest.mark.parametrize("likelihood", ["softmax", "gaussian"])
def test_novelty_after_changes_of_few_of_many_shots_is_that_of_a_new_computation(likelihood):
    generator = np.random.default_rng(0)
    y = np.arange(260) % 5
    X = generator.normal(size=(5, 12))[y] + generator.normal(size=(260, 12))
    model = GPCacheClassifier(likelihood=likelihood, kernel_space="whitened")
    model.fit(X[:250], y[:250])
    before = model.held_out_novelty_.copy()
    model.add(X[250:], y[250:], refit=False)
    model.remove([3, 7], refit=False)
    model.relabel([0], [1], refit=False)
    fitted = model.fitted_
    carried = model.held_out_novelty_
    again = held_out_variance(fitted.recipe, fitted.shots, fitted.choice)
    # Other shots have other folds, in which each has a slightly different novelty.
    assert np.abs(carried - again).mean() < 0.05 * again.mean()
    assert np.abs(carried.mean() / again.mean() - 1) < 0.01
    assert np.abs(np.quantile(carried, 0.95) / np.quantile(again, 0.95) - 1) < 0.05

    # What was computed before the changes is not asked for again, and a copy is no news.
    loaded = replace(fitted, before=replace(fitted.before, known=before))
    np.testing.assert_allclose(loaded.novelty, carried, rtol=1e-6)
    model.add(X[:1], y[:1], refit=False)
    assert model.held_out_novelty_[0] < 0.95 * carried[0]


def test_a_shot_that_is_alone_in_its_class_has_no_novelty():
    generator = np.random.default_rng(0)
    y = np.append(np.arange(240) % 4, [4, 4])
    X = generator.normal(size=(5, 8))[y] + generator.normal(size=(242, 8))
    model = GPCacheClassifier().fit(X, y)
    assert np.isfinite(model.held_out_novelty_).all()
    model.remove([241], refit=False)
    assert np.isnan(model.held_out_novelty_).nonzero()[0].tolist() == [240]
    model.add(X[241:], y[241:], refit=False)
    assert np.isfinite(model.held_out_novelty_).all()
