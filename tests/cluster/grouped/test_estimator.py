"""GroupedCache against the dense estimator, explicit inverses, and fits without a key."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from gpcache import metrics
from gpcache.cluster.grouped import GroupedCache, choosing
from gpcache.cluster.grouped.groups import split

CASES = [
    pytest.param(with_text, space, eta, id=f"{'text' if with_text else 'alone'}-{space}-{eta}")
    for with_text in (False, True)
    for space in ("raw", "centred")
    for eta in (0.0, 0.7)
]


@pytest.mark.parametrize(("with_text", "space", "eta"), CASES)
def test_equals_the_dense_estimator(with_text, space, eta, tools):
    """Same groups, same posterior, same held-out logits; two classes are known by text alone."""
    problem = tools.make_problem(text_only=2)
    options = {"kernel_space": space, "eta": eta}
    options["text_prior"] = problem.prior if with_text else None
    model = tools.grouped_cache(**options).fit(problem.X, problem.y)
    other = tools.dense(**options).fit(problem.X, problem.y)
    close = {"rtol": 0, "atol": 1e-10}
    assert list(model.classes_) == list(other.classes_)
    for mine, theirs in zip(
        model.posterior(problem.queries), other.posterior(problem.queries), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, **close)
    np.testing.assert_allclose(
        model.logits(problem.queries), other.logits(problem.queries), **close
    )
    np.testing.assert_allclose(model.loo_.logits, other.loo_.logits[model.loo_rows_], **close)
    assert sorted(model.loo_rows_) == list(range(len(problem.X)))
    # The calibration is found by iteration from sums in another order.
    np.testing.assert_allclose(
        model.predict_proba(problem.queries), other.predict_proba(problem.queries), atol=1e-6
    )


def test_posterior_by_explicit_inverses(problem, tools):
    """Each class has the posterior of its own group's keys, and zeros and ones for values."""
    model = tools.grouped_cache().fit(problem.X, problem.y)
    means, variances = model.posterior(problem.queries)
    keys, queries = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (problem.X, problem.queries)
    )
    numbers = np.searchsorted(model.classes_, problem.y)
    beta, noise = model.beta_, model.noise_
    for column, group in enumerate(split(numbers, len(model.classes_), 4, 0)):
        own = keys[np.isin(numbers, group.classes)]
        values = numbers[np.isin(numbers, group.classes)][:, None] == group.classes
        inverse = np.linalg.inv(np.exp(-beta * (1 - own @ own.T)) + noise * np.eye(len(own)))
        cross = np.exp(-beta * (1 - queries @ own.T))
        np.testing.assert_allclose(means[:, group.classes], cross @ inverse @ values, atol=1e-10)
        expected = 1 - np.einsum("mi,ij,mj->m", cross, inverse, cross)
        np.testing.assert_allclose(variances[:, column], expected, atol=1e-10)


@pytest.mark.parametrize("eta", [0.0, 0.7])
def test_leaving_out_is_fitting_without(eta, tools):
    problem = tools.make_problem(seed=3)
    options = {"text_prior": problem.prior, "eta": eta}
    model = tools.grouped_cache(**options, loo_rows=6).fit(problem.X, problem.y)
    assert len(set(problem.y[model.loo_rows_])) == 6
    for row, logits in zip(model.loo_rows_, model.loo_.logits, strict=True):
        kept = np.arange(len(problem.X)) != row
        without = tools.grouped_cache(**options).fit(problem.X[kept], problem.y[kept])
        np.testing.assert_allclose(without.logits(problem.X[row : row + 1])[0], logits, atol=1e-9)


def test_auto_numbers_and_figures(problem):
    """What is chosen scores no worse than where the walk starts; figures are of the rows."""
    model = GroupedCache(n_groups=4, dtype="float64", device="cpu").fit(problem.X, problem.y)
    nll = model.search_["nll"]
    start = (model.search_["beta"] == 1.0) & (model.search_["noise"] == 1.0)
    assert nll[0] <= nll[start].min()
    report = model.loo_
    truth = np.searchsorted(model.classes_, problem.y[model.loo_rows_])
    assert list(report.labels) == list(truth)
    assert report.accuracy == metrics.accuracy(report.probabilities, truth)
    assert report.nll == metrics.nll(report.probabilities, truth)
    assert report.accuracy > 0.6
    assert report.protocol.startswith(f"leave-one-out of {len(truth)} of {len(truth)} keys")
    assert "beta and noise chosen on" in report.protocol


def test_a_large_cache_walks_on_some_groups(problem, monkeypatch):
    """β and noise come from the first groups; weights and figures from keys of every class."""
    monkeypatch.setattr(choosing, "SEARCH_KEYS", 30)
    model = GroupedCache(n_groups=5, dtype="float64", device="cpu").fit(problem.X, problem.y)
    numbers = np.searchsorted(model.classes_, problem.y)
    first = []
    for group in split(numbers, len(model.classes_), 5, 0):
        if len(first) < 30:
            first.extend(group.rows)
    assert len(first) < len(problem.X)
    assert model.loo_.protocol.endswith(f"beta and noise chosen on {len(first)} keys")
    assert set(problem.y[model.loo_rows_]) == set(problem.y) > set(problem.y[first])
    at_choice = GroupedCache(
        n_groups=5, dtype="float64", device="cpu", beta=model.beta_, noise=model.noise_
    ).fit(problem.X, problem.y)
    assert at_choice.alpha_ == model.alpha_
    assert at_choice.temperature_ == model.temperature_


def test_top_is_the_head_of_the_probabilities(problem, tools):
    model = tools.grouped_cache(text_prior=problem.prior).fit(problem.X, problem.y)
    probabilities = model.predict_proba(problem.queries)
    order = np.argsort(-probabilities, axis=1)
    found = model.top(problem.queries, k=3)
    assert found.labels.tolist() == model.classes_[order[:, :3]].tolist()
    np.testing.assert_allclose(
        found.probabilities, np.take_along_axis(probabilities, order[:, :3], 1), atol=1e-12
    )
    assert found.labels[:, 0].tolist() == model.predict(problem.queries).tolist()
    assert model.top(problem.queries, k=99).labels.shape == (25, 14)


def test_one_key_a_class_takes_what_is_shipped(tools):
    problem = tools.make_problem(shots=1)
    model = GroupedCache(n_groups=3).fit(problem.X, problem.y)
    assert np.isnan(model.loo_.accuracy)
    assert model.loo_.protocol == "none: no class has two keys"
    assert len(model.search_["beta"]) == 1
    np.testing.assert_allclose(model.predict_proba(problem.queries).sum(1), 1)


def test_rows_that_are_all_alike_are_not_centred_away():
    X = np.tile([[3.0, 4.0]], (4, 1))
    model = GroupedCache(**{"alpha": 1.0, "beta": 1.0, "noise": 1.0}).fit(X, [0, 0, 1, 1])
    np.testing.assert_allclose(model.predict_proba(X), 0.5, atol=1e-6)


def test_groups_of_about_a_thousand_keys():
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(2_500, 4)), np.arange(2_500) % 50
    options = {"alpha": 1.0, "beta": 1.0, "noise": 1.0, "loo_rows": 10}
    assert GroupedCache(**options).fit(X, y).n_groups_ == 3


def test_sklearn_contract(tools):
    """The contract of estimators, at given numbers so that it takes seconds."""
    check_estimator(GroupedCache(**tools.numbers, device="cpu", dtype="float64"))
