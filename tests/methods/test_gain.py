"""The gain: what the text is worth shapes the targets, values = Y − softmax(gain · s f W)."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gpcache import GPCacheClassifier, GPCacheFClassifier, TextPrior
from gpcache.methods import TipAdapterClassifier
from gpcache.methods.cache import search

CLOSE = {"rtol": 1e-8, "atol": 1e-8}


def with_useless_text(problem, seed=0):
    """The same images with text that points anywhere."""
    names, vectors = problem.prior.class_names, problem.prior.vectors
    drawn = np.random.default_rng(100 + seed).normal(size=np.shape(vectors))
    return replace(problem, prior=TextPrior(names, drawn, logit_scale=12.0))


@pytest.fixture
def useless(tools):
    return with_useless_text(tools.make_problem(shots=(4, 3, 5, 4, 4), spread=0.8))


def automatic(problem, tools, kind=GPCacheClassifier, **options):
    """Regression: the softmax likelihood has no values to shape."""
    fixed = {"text_prior": problem.prior, "likelihood": "gaussian"} | tools.float64
    return kind.from_options(**fixed | options)


def at_the_numbers_of(estimator):
    """The same estimator with nothing left to choose."""
    names = ("alpha", "beta", "noise", "gain", "eta")
    numbers = {name: getattr(estimator, f"{name}_") for name in names}
    return type(estimator).from_options(**estimator.get_params() | numbers)


def held_out_nll(estimator, problem):
    labels = np.searchsorted(estimator.classes_, problem.y)
    probability = estimator.predict_proba(problem.X)
    return -np.log(probability[np.arange(len(labels)), labels]).mean()


def assert_same(found, expected, queries):
    np.testing.assert_allclose(found.logits(queries), expected.logits(queries), **CLOSE)
    for one, other in zip(found.posterior(queries), expected.posterior(queries), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)
    np.testing.assert_array_equal(found.loo_.counted, expected.loo_.counted)
    np.testing.assert_allclose(found.loo_.logits, expected.loo_.logits, **CLOSE)


def test_it_is_chosen_by_default_where_the_text_is_a_prior():
    assert {kind()._options().gain for kind in (GPCacheClassifier, GPCacheFClassifier)} == {"auto"}
    assert TipAdapterClassifier().gain == GPCacheClassifier.paper()._options().gain == 1.0


@pytest.mark.parametrize("gain", [0.0, 0.3, 1.0, 1.7])
@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_logits_are_the_formula_at_any_gain(gain, space, problem, tools):
    """At gain 0 the text is unheard, and the values are what a uniform guess leaves unsaid."""
    estimator = tools.gp_cache(problem, kernel_space=space, gain=gain).fit(problem.X, problem.y)
    numbers = tools.numbers | {"gain": gain}
    expected = tools.gp_logits(problem, problem.queries, **numbers, space=space)
    np.testing.assert_allclose(estimator.logits(problem.queries), expected, **CLOSE)
    assert estimator.gain_ == gain


@pytest.mark.parametrize("space", ["raw", "whitened"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_useless_text_is_hardly_heard(seed, space, tools):
    shots, fresh = (
        with_useless_text(tools.make_problem(shots=(count,) * 5, spread=0.8, seed=seed), seed)
        for count in (8, 100)
    )
    chosen = automatic(shots, tools, kernel_space=space).fit(shots.X, shots.y)
    fixed = automatic(shots, tools, kernel_space=space, gain=1.0).fit(shots.X, shots.y)
    assert 0 < chosen.gain_ < 0.3
    assert held_out_nll(chosen, fresh) < 0.8 * held_out_nll(fixed, fresh)


@pytest.mark.parametrize("space", ["raw", "whitened"])
@pytest.mark.parametrize("shots", [4, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_good_text_is_taken_at_its_word(seed, shots, space, tools):
    """Within one step of the walk, where the images alone would do worse."""
    problem = tools.make_problem(shots=(shots,) * 5, spread=1.3, seed=seed)
    chosen = automatic(problem, tools, kernel_space=space).fit(problem.X, problem.y)
    assert abs(math.log2(chosen.gain_)) < 0.51


@pytest.mark.parametrize("strategy", ["adaptive", "grid"])
def test_it_is_the_best_of_its_lattice_by_refits(strategy, useless, tools):
    """Every score is that of n refits by the equations, and the walk misses nothing lower."""
    estimator = tools.gp_cache(useless, kernel_space="raw", gain="auto", strategy=strategy)
    estimator.fit(useless.X, useless.y)
    labels = np.searchsorted(estimator.classes_, useless.y)

    def score(gain):
        numbers = tools.numbers | {"gain": gain, "space": "raw"}
        logits = [
            tools.gp_logits(useless.rows(np.arange(20) != row), useless.X[[row]], **numbers)
            for row in range(20)
        ]
        # Four shots a class.
        pull = search.PULL / 4 * math.log(gain) ** 2 if strategy == "adaptive" else 0.0
        return tools.smoothed_nll(np.concatenate(logits), labels) + pull

    table = estimator.search_
    np.testing.assert_allclose(table["score"], [score(gain) for gain in table["gain"]], rtol=1e-9)
    lattice = [2 ** (i / 2) for i in range(-10, 3)] if strategy == "adaptive" else search.GAINS
    assert estimator.gain_ == pytest.approx(min(lattice, key=score))
    if strategy == "grid":
        assert sorted(table["gain"]) == sorted(search.GAINS)
        assert {len(np.unique(table[name])) for name in ("alpha", "beta", "noise")} == {1}


@pytest.mark.parametrize("space", ["raw", "whitened"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_useless_text_is_hardly_heard_by_the_softmax_likelihood(seed, space, tools):
    """Its gain is a weight that may be zero, and its cache alone must do as well."""
    shots, fresh = (
        with_useless_text(tools.make_problem(shots=(count,) * 5, spread=0.8, seed=seed), seed)
        for count in (8, 100)
    )
    options = {"likelihood": "softmax", "kernel_space": space}
    chosen = automatic(shots, tools, **options).fit(shots.X, shots.y)
    alone = automatic(shots, tools, text_prior=None, **options).fit(shots.X, shots.y)
    assert 0 <= chosen.gain_ < 0.3
    assert held_out_nll(chosen, fresh) < 1.1 * held_out_nll(alone, fresh)


@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_the_softmax_likelihood_does_not_judge_the_text_of_absent_classes(space, tools):
    problem = with_useless_text(tools.make_problem(shots=(5, 5, 4, 5, 0), spread=0.8))
    options = {"kernel_space": space, "likelihood": "softmax"}
    estimator = automatic(problem, tools, **options).fit(problem.X, problem.y)
    assert estimator.gain_ == 1.0
    assert len(estimator.search_["beta"]) > 4  # the rest was chosen
    fixed = automatic(problem, tools, gain=1.0, **options).fit(problem.X, problem.y)
    assert_same(estimator, fixed, problem.queries)


@pytest.mark.parametrize("space", ["raw", "whitened"])
@pytest.mark.parametrize("strategy", ["adaptive", "grid"])
def test_where_a_class_has_no_shots_the_text_cannot_be_judged(space, strategy, tools):
    """Nothing but its text would find that class, whatever the shots say of the others."""
    problem = with_useless_text(tools.make_problem(shots=(5, 5, 4, 5, 0), spread=0.8))
    options = {"kernel_space": space, "strategy": strategy}
    estimator = automatic(problem, tools, **options).fit(problem.X, problem.y)
    assert estimator.gain_ == 1.0
    assert set(estimator.search_["gain"]) == {1.0}
    assert len(estimator.search_["gain"]) > 4  # the rest was chosen
    fixed = automatic(problem, tools, gain=1.0, **options).fit(problem.X, problem.y)
    assert_same(estimator, fixed, problem.queries)


def test_one_shot_a_class_cannot_judge_the_text(tools):
    problem = with_useless_text(tools.make_problem(shots=(1, 1, 1, 1, 1)))
    assert automatic(problem, tools).fit(problem.X, problem.y).gain_ == 1.0


def test_a_validation_set_judges_the_text_of_one_shot_a_class(likelihood, tools):
    problem = with_useless_text(tools.make_problem(shots=(1, 1, 1, 1, 1), spread=0.8))
    more = tools.make_problem(shots=(12, 12, 12, 12, 12), spread=0.8)
    estimator = automatic(problem, tools, likelihood=likelihood)
    estimator.fit(problem.X, problem.y, validation=(more.X, more.y))
    assert estimator.gain_ < 0.5


def test_a_fit_at_the_chosen_numbers_is_the_same(precision, useless, tools):
    """Folds and shots alike carry the values of the chosen gain."""
    for space in ("raw", "whitened"):
        options = {"kernel_space": space, **precision}
        estimator = automatic(useless, tools, **options).fit(useless.X, useless.y)
        assert estimator.gain_ < 1
        given = at_the_numbers_of(estimator).fit(useless.X, useless.y)
        assert_same(estimator, given, useless.queries)
        assert estimator.temperature_ == pytest.approx(given.temperature_)


def test_updates_at_a_chosen_gain_are_a_rebuild(precision, useless, tools):
    options = {"kernel_space": "raw", **precision}
    estimator = automatic(useless, tools, **options).fit(useless.X, useless.y)
    assert estimator.gain_ < 1
    X, y = useless.X, useless.y

    estimator.add(useless.queries[:3], ["oak", "yew", "ash"])
    X, y = np.concatenate([X, useless.queries[:3]]), np.append(y, ["oak", "yew", "ash"])
    assert_same(estimator, at_the_numbers_of(estimator).fit(X, y), useless.queries)

    estimator.remove([0, 7, 21])
    X, y = np.delete(X, [0, 7, 21], axis=0), np.delete(y, [0, 7, 21])
    assert_same(estimator, at_the_numbers_of(estimator).fit(X, y), useless.queries)

    y[[2, 5]] = ["fir", "elm"]
    estimator.relabel([2, 5], ["fir", "elm"])
    assert_same(estimator, at_the_numbers_of(estimator).fit(X, y), useless.queries)


def test_updates_in_a_kept_whitening_have_the_values_of_the_chosen_gain(useless, tools):
    estimator = automatic(useless, tools).fit(useless.X, useless.y)
    gain = estimator.gain_
    assert gain < 1
    estimator.add(useless.queries[:2], ["oak", "yew"], refit=False)
    estimator.relabel([3], ["fir"], refit=False).remove([1], refit=False)
    X = np.delete(np.concatenate([useless.X, useless.queries[:2]]), 1, axis=0)
    y = np.append(useless.y, ["oak", "yew"])
    y[3] = "fir"
    text = gain * tools.zero_shot(useless.prior, X)
    values = tools.residual(np.delete(y, 1), estimator.classes_, text)
    phi = tools.feature_map("whitened", useless.X, useless.y)
    place = {"beta": estimator.beta_, "noise": estimator.noise_}
    mean, _ = tools.posterior(phi(X), values, phi(useless.queries), **place)
    expected = gain * tools.zero_shot(useless.prior, useless.queries) + estimator.alpha_ * mean
    np.testing.assert_allclose(estimator.logits(useless.queries), expected, **CLOSE)


@pytest.mark.parametrize("with_validation", [False, True])
def test_trained_keys_hold_the_values_of_the_last_choice(with_validation, useless, tools):
    """With a validation set the gain is chosen once more when the keys have moved."""
    more = tools.make_problem(shots=(12, 12, 12, 12, 12), spread=0.8)
    options = {"kernel_space": "raw", "epochs": 4, "learning_rate": 0.1, "stopping": "last"}
    estimator = automatic(useless, tools, GPCacheFClassifier, **options)
    validation = (more.X, more.y) if with_validation else None
    estimator.fit(useless.X, useless.y, validation=validation)
    gain = estimator.gain_
    assert gain < 1
    before = automatic(useless, tools, kernel_space="raw")
    before.fit(useless.X, useless.y, validation=validation)
    assert (gain != before.gain_) == with_validation
    text = gain * tools.zero_shot(useless.prior, useless.X)
    values = tools.residual(useless.y, estimator.classes_, text)
    keys = estimator.fitted_.model.precision.keys.numpy()
    place = {"beta": estimator.beta_, "noise": estimator.noise_}
    mean, _ = tools.posterior(keys, values, tools.unit(useless.queries), **place)
    expected = gain * tools.zero_shot(useless.prior, useless.queries) + estimator.alpha_ * mean
    np.testing.assert_allclose(estimator.logits(useless.queries), expected, **CLOSE)
