"""A fitted method becomes numbers and arrays, and then the same method again."""

import json
import warnings

import numpy as np
import pytest

from gpcache import DataError, GPCacheClassifier, GPCacheFClassifier, TextPrior
from gpcache.methods import State, restore, state_of
from gpcache.methods.registry import registry

CLOSE = {"rtol": 1e-12, "atol": 1e-12}

POSTERIORS = {
    "exact": {},
    "grouped": {"precision": "grouped", "n_groups": 2},
    "nystrom": {"precision": "nystrom", "n_landmarks": 8},
    "fourier": {"precision": "fourier", "n_features": 64},
    "class_mean": {"precision": "class_mean"},
}
NUMBERS = ("alpha_", "beta_", "noise_", "eta_", "gain_", "lam_", "gamma_", "temperature_")
NUMBERS += ("tau_", "shrinkage_", "discriminant_")
CASES = {
    f"{name} {posterior}": (name, POSTERIORS[posterior])
    for name, method in registry().items()
    if not method.beyond_features
    for posterior in (POSTERIORS if name.startswith("gpcache") else ["exact"])
} | {
    f"gpcache gaussian {posterior}": ("gpcache", options | {"likelihood": "gaussian"})
    for posterior, options in POSTERIORS.items()
}


def fitted(name, options, problem, *, text):
    options = options | ({"epochs": 2, "n_folds": 4} if name.endswith("-f") else {})
    prior = problem.prior if text else None
    estimator = registry()[name].constructor.from_options(text_prior=prior, device="cpu", **options)
    return estimator.fit(problem.X, problem.y)


def written(model):
    """The state as a file would give it back: JSON, and arrays of their own."""
    settings, arrays = state_of(model)
    text = json.dumps(settings, allow_nan=False)
    return State(json.loads(text), {name: array.copy() for name, array in arrays.items()})


def assert_same(found, expected, queries, close=CLOSE):
    assert found.classes_.tolist() == expected.classes_.tolist()
    np.testing.assert_allclose(found.logits(queries), expected.logits(queries), **close)
    probabilities = expected.predict_proba(queries)
    np.testing.assert_allclose(found.predict_proba(queries), probabilities, **close)
    if not hasattr(expected, "loo_"):
        return
    np.testing.assert_array_equal(found.loo_.counted, expected.loo_.counted)
    np.testing.assert_allclose(found.loo_.logits, expected.loo_.logits, **close)
    for figure in ("accuracy", "nll", "ece"):
        one, other = getattr(found.loo_, figure), getattr(expected.loo_, figure)
        np.testing.assert_allclose(one, other, **close)
    assert found.loo_.protocol == expected.loo_.protocol
    if hasattr(expected, "held_out_novelty_"):
        np.testing.assert_allclose(found.held_out_novelty_, expected.held_out_novelty_, **close)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (case, text)
        for case, (name, _) in CASES.items()
        for text in (True, False)
        if text or "text" not in registry()[name].needs
    ],
)
def test_a_method_comes_back_and_can_be_updated(case, text, problem):
    name, options = CASES[case]
    original = fitted(name, options, problem, text=text)
    found = restore(written(original), device="cpu")
    assert type(found) is type(original)
    assert_same(found, original, problem.queries)
    if not hasattr(original, "search_"):
        return
    assert list(found.search_) == list(original.search_)
    for column in original.search_:
        np.testing.assert_array_equal(found.search_[column], original.search_[column])
    for number in NUMBERS:
        assert getattr(found, number, None) == getattr(original, number, None)
    if not hasattr(original, "add"):
        return
    steps = (
        lambda model: model.add(problem.queries[:3], ["oak", "elm", "fir"]),
        lambda model: model.relabel([0, 3], ["fir", "oak"]),
        lambda model: model.remove([1, 7]),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the whitening stays: not what is tested here
        for step in steps:
            step(original)
            step(found)
    assert_same(found, original, problem.queries, {"rtol": 1e-8, "atol": 1e-8})


def test_what_is_restored_gives_the_same_state_again(likelihood, problem):
    state = written(fitted("gpcache", {"likelihood": likelihood}, problem, text=True))
    again = written(restore(state, device="cpu"))
    assert again.settings == state.settings
    for name, array in state.arrays.items():
        np.testing.assert_allclose(again.arrays[name], array, **CLOSE)


def test_hyper_parameters_under_their_former_key_are_read(problem):
    original = fitted("gda", {}, problem, text=True)
    settings, arrays = written(original)
    settings["numbers"] = settings.pop("hyper_parameters")
    found = restore(State(settings, arrays), device="cpu")
    assert found.alpha_ == original.alpha_
    assert_same(found, original, problem.queries)


def test_the_space_of_the_fit_is_kept_when_shots_come_and_go(likelihood, problem):
    """One shot a class has no scatter to whiten by; that later ones would is no matter."""
    first = [int(np.flatnonzero(problem.y == name)[0]) for name in np.unique(problem.y)]
    rest = np.setdiff1d(np.arange(len(problem.y)), first)
    original = GPCacheClassifier.from_options(likelihood=likelihood, device="cpu")
    original.fit(problem.X[first], problem.y[first])
    original.add(problem.X[rest], problem.y[rest])
    found = restore(written(original), device="cpu")
    for model in (original, found):
        model.remove([0])
    assert_same(found, original, problem.queries, {"rtol": 1e-8, "atol": 1e-8})


def test_views_are_kept_for_the_folds_after_an_update(problem):
    views = np.random.default_rng(0).normal(problem.X[:, None], 0.3, (14, 3, 12))
    original = GPCacheFClassifier.from_options(
        epochs=3, n_folds=4, kernel_space="raw", device="cpu"
    )
    original.fit(problem.X, problem.y, views=views)
    found = restore(written(original), device="cpu")
    for model in (original, found):
        model.remove([0])
    assert_same(found, original, problem.queries, {"rtol": 1e-8, "atol": 1e-8})


def test_options_come_back_also_numpys(problem):
    options = {"alpha": np.float32(1.5), "random_state": np.int64(3), "n_folds": np.int64(4)}
    found = restore(written(GPCacheClassifier.from_options(**options).fit(problem.X, problem.y)))
    assert (
        found.get_params()
        == GPCacheClassifier.from_options(alpha=1.5, random_state=3, n_folds=4).get_params()
    )


@pytest.mark.parametrize("names", [np.arange(5), [2.0, 1.0, 3.0, 0.0, 4.0], list("edcba")])
def test_class_names_of_every_kind_come_back(names, problem):
    _, numbers = np.unique(problem.y, return_inverse=True)
    prior = TextPrior(names, problem.prior.vectors)
    original = GPCacheClassifier.from_options(text_prior=prior, device="cpu")
    original.fit(problem.X, np.asarray(names)[numbers])
    found = restore(written(original), device="cpu")
    assert found.predict(problem.queries).tolist() == original.predict(problem.queries).tolist()
    assert found.classes_.dtype == original.classes_.dtype


def test_a_projection_that_is_a_matrix_survives(likelihood, problem):
    matrix = np.random.default_rng(0).normal(size=(12, 12))
    options = {"likelihood": likelihood}
    original = fitted("gpcache", options | {"projection": matrix}, problem, text=True)
    found = restore(written(original), device="cpu")
    assert_same(found, original, problem.queries)
    without = fitted("gpcache", options, problem, text=True)
    assert np.abs(found.logits(problem.queries) - without.logits(problem.queries)).max() > 0.01


def test_a_projection_that_is_a_function_cannot_be_saved(problem, tools):
    original = fitted("gpcache", {"projection": lambda rows: rows}, problem, text=True)
    with tools.one_sentence(DataError, "projection that is a function cannot be saved"):
        state_of(original)


def test_a_state_without_its_shots_is_refused(problem, tools):
    settings, arrays = written(fitted("gpcache", {}, problem, text=True))
    del arrays["keys"]
    with tools.one_sentence(DataError, "lacks its shots"):
        restore(State(settings, arrays))
