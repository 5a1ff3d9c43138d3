"""Figures on held-out shots: `loo_` equals literal refits, and counts only what can be known."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.base import clone

from gpcache import GPCacheClassifier, GPCacheFClassifier, ProtocolError, metrics
from gpcache.methods import TipAdapterClassifier
from gpcache.methods.cache import softmax_search as softmax
from gpcache.methods.cache.search import SearchOptions, shipped
from gpcache.methods.cache.shots import Shots
from gpcache.metrics import fit_calibration, fit_scales


def without(problem, row):
    return problem.rows(np.delete(np.arange(len(problem.X)), row))


def folds_of(problem, n_folds=8, seed=0):
    """Fold of each shot, as documented: spread within its class by content."""
    features = torch.nn.functional.normalize(torch.tensor(problem.X))
    labels = torch.tensor(np.unique(problem.y, return_inverse=True)[1])
    classes = int(labels.max()) + 1
    shots = Shots(features, labels, classes, None)
    return shots.folds(n_folds, seed).numpy()


@pytest.mark.parametrize("with_text", [True, False])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_in_raw_space_loo_is_n_refits(with_text, eta, precision, tools):
    if "nystrom" in precision.values():
        pytest.skip("a left-out landmark stays one: it is no label")
    problem = tools.make_problem(shots=(5, 3, 4, 2, 1))
    options = {"kernel_space": "raw", **precision, "eta": eta}
    options["confidence_scaling"] = precision.get("precision_weighting", True)
    estimator = tools.gp_cache(problem if with_text else None, **options)
    held_out = estimator.fit(problem.X, problem.y).loo_
    assert held_out.protocol == "leave-one-out"
    for row in np.flatnonzero(held_out.counted):
        rest = without(problem, row)
        refit = tools.gp_cache(problem if with_text else None, **options).fit(rest.X, rest.y)
        np.testing.assert_allclose(
            held_out.logits[[row]], refit.logits(problem.X[[row]]), rtol=1e-7, atol=1e-8
        )


def test_loo_of_tip_adapter_is_n_refits(problem, tools):
    held_out = tools.tip_adapter(problem).fit(problem.X, problem.y).loo_
    for row in range(len(problem.X)):
        rest = without(problem, row)
        refit = tools.tip_adapter(problem).fit(rest.X, rest.y)
        np.testing.assert_allclose(held_out.logits[[row]], refit.logits(problem.X[[row]]))


@pytest.mark.parametrize("eta", [0.0, 0.5])
def test_in_whitened_space_loo_refits_every_fold_and_its_map(eta, tools):
    """By the estimator itself and by the equations, from the shots outside of the fold."""
    problem = tools.make_problem(shots=(9, 3, 4, 2, 1))
    options = {"confidence_scaling": True, "eta": eta}
    held_out = tools.gp_cache(problem, **options).fit(problem.X, problem.y).loo_
    assert held_out.protocol == "8-fold cross-validation; everything is refitted in each fold"
    fold = folds_of(problem)
    for number in range(8):
        rest, rows = problem.rows(fold != number), fold == number
        refit = tools.gp_cache(problem, **options).fit(rest.X, rest.y)
        by_hand = tools.gp_logits(rest, problem.X[rows], **tools.numbers, eta=eta)
        np.testing.assert_allclose(held_out.logits[rows], refit.logits(problem.X[rows]), rtol=1e-8)
        np.testing.assert_allclose(held_out.logits[rows], by_hand, rtol=1e-7)


def test_trained_keys_are_trained_anew_in_every_fold(tools):
    problem = tools.make_problem(shots=(3, 3, 4, 2, 0))
    options = {"epochs": 3, "learning_rate": 0.05, "stopping": "last"}
    options |= tools.numbers | tools.float64
    estimator = GPCacheFClassifier.from_options(text_prior=problem.prior, **options).fit(
        problem.X, problem.y
    )
    fold = folds_of(problem)
    for number in np.unique(fold):
        rest, rows = problem.rows(fold != number), fold == number
        refit = GPCacheFClassifier.from_options(text_prior=problem.prior, **options).fit(
            rest.X, rest.y
        )
        np.testing.assert_allclose(
            estimator.loo_.logits[rows], refit.logits(problem.X[rows]), rtol=1e-7
        )


def test_figures_are_those_of_the_held_out_probabilities(likelihood, problem, tools):
    estimator = GPCacheClassifier.from_options(
        text_prior=problem.prior, likelihood=likelihood, **tools.float64
    )
    held_out = estimator.fit(problem.X, problem.y).loo_
    labels = np.searchsorted(estimator.classes_, problem.y)
    assert held_out.counted.all()
    assert held_out.accuracy == np.mean(held_out.probabilities.argmax(1) == labels)
    assert held_out.nll == pytest.approx(tools.nll(np.log(held_out.probabilities), labels))
    assert held_out.ece == pytest.approx(metrics.ece(held_out.probabilities, labels))


@pytest.mark.parametrize("all_given", [True, False])
def test_what_is_reported_of_a_fold_was_chosen_on_the_others(all_given, tools):
    """At given numbers only the calibration is chosen; else α is, too, at the same place."""
    problem = tools.make_problem(shots=(8, 8, 8, 8, 8), spread=1.2)
    numbers = {"beta": 2.0, "noise": 0.5, "gain": 1.0} | ({"alpha": 6.0} if all_given else {})
    options = {"text_prior": problem.prior, "likelihood": "gaussian"} | numbers | tools.float64
    estimator = GPCacheClassifier.from_options(**options)
    report = estimator.fit(problem.X, problem.y).loo_
    labels = np.searchsorted(estimator.classes_, problem.y)
    text = tools.zero_shot(problem.prior, problem.X)
    mean = torch.tensor((report.logits - text) / estimator.alpha_)
    fold = estimator.fitted_.shots.folds(4, 0).numpy()
    for number in range(4):
        mine, others = fold == number, fold != number
        alpha = 6.0
        if not all_given:
            scales, _ = fit_scales(
                mean[others][None, None],
                torch.tensor(labels[others]),
                offset=torch.tensor(text[others]),
            )
            alpha = float(scales)
        logits = torch.tensor(text) + alpha * mean
        calibration = fit_calibration(logits[others], torch.tensor(labels[others]))
        expected = calibration.probabilities(logits[mine])
        np.testing.assert_allclose(report.probabilities[mine], expected, atol=1e-6)


@pytest.mark.parametrize(
    "estimator",
    [
        GPCacheClassifier(),
        GPCacheClassifier.from_options(likelihood="gaussian"),
        TipAdapterClassifier(),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_text", [True, False])
def test_a_class_with_one_shot_is_not_counted(estimator, with_text, tools):
    problem = tools.make_problem(shots=(4, 1, 3, 1, 0))
    text = problem.prior if with_text else None
    estimator.set_params(text_prior=text, **tools.float64).fit(problem.X, problem.y)
    alone = np.isin(problem.y, ["ash", "elm"])
    held_out = estimator.loo_
    np.testing.assert_array_equal(held_out.counted, ~alone)
    assert np.isnan(held_out.logits[alone]).all()
    assert np.isfinite(held_out.logits[~alone]).all()
    labels = np.searchsorted(estimator.classes_, problem.y)
    right = held_out.logits[~alone].argmax(1) == labels[~alone]
    assert held_out.accuracy == pytest.approx(right.mean())


@pytest.mark.parametrize(
    "estimator",
    [
        GPCacheClassifier.from_options(likelihood="gaussian"),
        TipAdapterClassifier(),
        GPCacheFClassifier(),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.parametrize("with_text", [True, False])
def test_one_shot_a_class_takes_what_is_shipped(estimator, with_text, tools):
    problem = tools.make_problem(shots=(1, 1, 1, 1, 0))
    estimator.set_params(text_prior=problem.prior if with_text else None, **tools.float64)
    estimator.fit(problem.X, problem.y)
    expected = shipped(SearchOptions(defaults=estimator._defaults), with_text=with_text)
    assert (estimator.alpha_, estimator.beta_) == (expected.alpha, expected.beta)
    assert (estimator.noise_, estimator.eta_) == (expected.noise, 0.0)
    assert (estimator.gain_, estimator.temperature_) == (1.0, 1.0)
    assert_nothing_was_held_out(estimator, problem)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("with_text", [True, False])
def test_one_shot_a_class_takes_what_is_shipped_with_the_softmax_likelihood(with_text, last, tools):
    problem = tools.make_problem(shots=(1, 1, 1, 1, last))
    prior = problem.prior if with_text else None
    estimator = GPCacheClassifier.from_options(text_prior=prior, **tools.float64).fit(
        problem.X, problem.y
    )
    # With text the cache has a weight of its own, a smaller one beside a class of text alone;
    # without text, twice that of many shots.
    beside_text = softmax.ONE_SHOT_ALPHA if last else softmax.ONE_SHOT_ALPHA_ABSENT
    assert estimator.alpha_ == (beside_text if with_text else 2.0)
    assert (estimator.beta_, estimator.eta_) == (softmax.BETA, 0.0)
    assert estimator.tau_ == softmax.FEW_THETA / softmax.BETA
    assert (estimator.shrinkage_, estimator.discriminant_) == (softmax.ONE_SHOT_SHRINKAGE, 0.0)
    # The gain of the text is fitted on the shots if every class has one.
    assert (estimator.gain_ != 1.0) == bool(with_text and last)
    assert estimator.temperature_ == 1.0
    assert_nothing_was_held_out(estimator, problem)


def assert_nothing_was_held_out(estimator, problem):
    held_out = estimator.loo_
    assert np.isnan([held_out.accuracy, held_out.nll, held_out.ece]).all()
    assert not held_out.counted.any()
    assert np.isnan(held_out.logits).all()
    assert held_out.protocol == "none: no class has two shots"
    assert {len(column) for column in estimator.search_.values()} == {1}
    assert (estimator.predict(problem.X) == problem.y).all()


@pytest.mark.parametrize(("with_text", "space"), [(True, "raw"), (False, "centred")])
def test_at_one_shot_nothing_is_known_of_the_scatter(with_text, space, tools):
    """So there is no whitening; without text, centring sets the scale of the logits."""
    problem = tools.make_problem(shots=(1, 1, 1, 1, 0))
    estimator = tools.gp_cache(problem if with_text else None).fit(problem.X, problem.y)
    expected = tools.gp_logits(
        problem, problem.queries, **tools.numbers, space=space, with_text=with_text
    )
    np.testing.assert_allclose(estimator.logits(problem.queries), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("estimator", "learned"),
    [
        (GPCacheClassifier.from_options(likelihood="gaussian", selection="loo"), "a whitening"),
        (
            TipAdapterClassifier.from_options(selection="loo", kernel_space="whitened"),
            "a whitening",
        ),
    ],
)
def test_a_leave_one_out_that_would_leak_is_refused(estimator, learned, problem):
    with pytest.raises(ProtocolError, match=f"would leak: {learned}.*Use selection='folds'"):
        estimator.fit(problem.X, problem.y)


@pytest.mark.parametrize(
    "estimator",
    [GPCacheClassifier.from_options(likelihood="gaussian"), TipAdapterClassifier()],
    ids=str,
)
def test_where_nothing_leaks_both_protocols_are_offered(estimator, problem):
    protocols = [
        clone(estimator)
        .set_params(kernel_space=space, selection=selection)
        .fit(problem.X, problem.y)
        .loo_.protocol
        for space in ("raw", "centred")
        for selection in ("auto", "loo", "folds")
    ]
    folds = "5-fold cross-validation; everything is refitted in each fold"
    assert protocols == 2 * ["leave-one-out", "leave-one-out", folds]


@pytest.mark.parametrize("criterion", ["nll", "accuracy", "marginal_likelihood"])
@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_the_table_of_the_search_has_every_column_and_the_best_first(criterion, space, tools):
    problem = tools.make_problem(shots=(5, 5, 4, 5, 5), spread=1.2)
    estimator = GPCacheClassifier.from_options(
        text_prior=problem.prior,
        likelihood="gaussian",
        kernel_space=space,
        criterion=criterion,
        gain="auto",
    )
    table = estimator.fit(problem.X, problem.y).search_
    numbers = ["beta", "noise", "alpha", "eta", "gain"]
    assert list(table) == [*numbers, "nll", "accuracy", "score"]
    assert all(table[name][0] == getattr(estimator, f"{name}_") for name in numbers)
    assert len({len(column) for column in table.values()}) == 1
    assert all(np.isfinite(column).all() for column in table.values())
    # In folds, the first row is the best of the others once more, on more folds.
    score = table["score"][1 if space == "whitened" else 0 :]
    assert len(score) > 4
    assert (np.diff(score) >= 0).all()
    if space == "whitened":
        assert table["beta"][0] == table["beta"][1]
        assert table["noise"][0] == table["noise"][1]
        assert table["gain"][0] == table["gain"][1]


def test_where_the_gain_is_a_mere_weight_it_minimises_the_smoothed_nll(tools):
    """With labels as values; the residual's gain is walked to."""
    problem = tools.make_problem(shots=(5, 5, 4, 5, 5), spread=1.2)
    estimator = tools.gp_cache(problem, kernel_space="raw", prior="zero_shot", gain="auto")
    estimator.fit(problem.X, problem.y)
    labels = np.searchsorted(estimator.classes_, problem.y)
    text = tools.zero_shot(problem.prior, problem.X)
    cache = estimator.loo_.logits - estimator.gain_ * text

    def loss(gain):
        return tools.smoothed_nll(cache + gain * text, labels)

    assert estimator.gain_ != 1.0
    around = estimator.gain_ * np.geomspace(0.5, 2, 101)
    assert loss(estimator.gain_) <= min(loss(gain) for gain in around) + 1e-9


@pytest.mark.parametrize("prior", ["zero_shot", "residual"])
def test_the_marginal_likelihood_is_that_of_independent_gaussian_columns(prior, problem, tools):
    estimator = tools.gp_cache(
        problem, prior=prior, kernel_space="raw", alpha="auto", criterion="marginal_likelihood"
    ).fit(problem.X, problem.y)
    values = tools.one_hot(problem.y, estimator.classes_)
    if prior == "residual":
        text = 0.8 * tools.zero_shot(problem.prior, problem.X)
        values = tools.residual(problem.y, estimator.classes_, text)
    keys = tools.unit(problem.X)
    covariance = tools.kernel(keys, keys, 2.5) + 0.2 * np.eye(14)
    density = multivariate_normal(np.zeros(14), covariance)
    expected = -sum(density.logpdf(column) for column in values.T) / values.size
    assert estimator.search_["score"][0] == pytest.approx(expected, rel=1e-9)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.integers(2, 9),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_folds_spread_every_class_and_never_take_all_of_it(labels, n_folds, seed, random):
    labels = torch.tensor(labels)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(labels), 4, generator=generator, dtype=torch.float64)
    shots = Shots(features, labels, 6, None)
    fold = shots.folds(n_folds, seed)
    for name in torch.unique(labels):
        own = fold[labels == name]
        if len(own) == 1:
            assert own.tolist() == [-1]
            continue
        counts = torch.bincount(own)
        assert int(own.min()) == 0  # every row is in a fold
        assert int(counts.max()) < len(own)
        assert int(counts.max() - counts[counts > 0].min()) <= 1
    order = list(range(len(labels)))
    random.shuffle(order)
    shuffled = Shots(features[order], labels[order], 6, None)
    assert torch.equal(shuffled.folds(n_folds, seed), fold[order])
