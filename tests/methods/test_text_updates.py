"""set_text: as if the model had been fitted with that text, numbers and map fixed."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from gpcache import DataError, GPCacheClassifier, TextPrior

CLOSE = {"rtol": 1e-8, "atol": 1e-8}


def prior_of(problem, names, *, seed=5, scale=9.0):
    """Text for these classes: what it was for known ones, turned a little, and new for others."""
    generator = np.random.default_rng(seed)
    known = dict(zip(problem.prior.class_names, problem.prior.vectors, strict=True))
    rows = [known.get(name, 0) + 0.3 * generator.normal(size=12) for name in names]
    return TextPrior(names, np.array(rows), scale)


CHANGES = {
    "other vectors": ("oak", "ash", "fir", "elm", "yew"),
    "a class more": ("yew", "oak", "beech", "ash", "fir", "elm"),
    "a class less": ("elm", "fir", "ash", "oak"),
    "one for another": ("zelkova", "alder", "elm", "fir", "ash", "oak"),
}


def assert_same(found, expected, queries):
    assert found.classes_.tolist() == expected.classes_.tolist()
    np.testing.assert_allclose(found.logits(queries), expected.logits(queries), **CLOSE)
    for one, other in zip(found.posterior(queries), expected.posterior(queries), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)
    np.testing.assert_allclose(found.loo_.logits, expected.loo_.logits, **CLOSE)
    np.testing.assert_allclose(found.held_out_novelty_, expected.held_out_novelty_, **CLOSE)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("target", ["residual", "zero_shot"])
def test_other_text_is_a_rebuild(change, target, precision, problem, tools):
    options = {"kernel_space": "raw", "prior": target, **precision}
    text = prior_of(problem, CHANGES[change])
    updated = tools.gp_cache(problem, **options).fit(problem.X, problem.y)
    before = updated.logits(problem.queries)
    _ = updated.loo_, updated.held_out_novelty_  # what was computed before must not stay
    assert updated.set_text(text) is updated
    rebuilt = tools.gp_cache(text_prior=text, **options).fit(problem.X, problem.y)
    assert_same(updated, rebuilt, problem.queries)
    shape = before.shape
    assert updated.logits(problem.queries).shape != shape or change == "other vectors"


def test_tip_adapter_takes_other_text_too(problem, tools):
    text = prior_of(problem, CHANGES["a class more"])
    updated = tools.tip_adapter(problem).fit(problem.X, problem.y).set_text(text)
    assert_same(updated, tools.tip_adapter(text_prior=text).fit(problem.X, problem.y), problem.X)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_with_the_softmax_likelihood_it_is_a_solve_from_scratch(
    change, space, softmax_precision, problem, tools
):
    text = prior_of(problem, CHANGES[change])
    options = {"kernel_space": space, **softmax_precision}
    updated = tools.softmax_cache(problem, **options).fit(problem.X, problem.y)
    _ = updated.loo_, updated.held_out_novelty_  # what was computed before must not stay
    updated.set_text(text)
    fresh = tools.solved_anew(updated, problem.X, problem.y, text_prior=text)
    assert_solved(updated, fresh, problem.queries)


def assert_solved(found, fresh, queries):
    """To what the solver's tolerance leaves of probabilities."""
    assert found.classes_.tolist() == fresh.classes_.tolist()
    np.testing.assert_allclose(
        found.predict_proba(queries), fresh.predict_proba(queries), rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(found.novelty(queries), fresh.novelty(queries), **CLOSE)
    np.testing.assert_allclose(found.loo_.logits, fresh.loo_.logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("likelihood_close", [("gaussian", 1e-8), ("softmax", 1e-6)])
def test_there_and_back_changes_nothing(likelihood_close, problem):
    likelihood, close = likelihood_close
    estimator = GPCacheClassifier.from_options(
        text_prior=problem.prior, likelihood=likelihood, device="cpu"
    )
    before = estimator.fit(problem.X, problem.y).logits(problem.queries)
    estimator.set_text(prior_of(problem, CHANGES["a class more"])).set_text(problem.prior)
    np.testing.assert_allclose(estimator.logits(problem.queries), before, rtol=close, atol=close)


def test_a_class_that_came_by_text_can_get_shots(problem, tools):
    text = prior_of(problem, CHANGES["a class more"])
    updated = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y).set_text(text)
    updated.add(problem.queries[:2], ["beech", "yew"])
    X = np.concatenate([problem.X, problem.queries[:2]])
    rebuilt = tools.gp_cache(text_prior=text, kernel_space="raw")
    rebuilt.fit(X, np.append(problem.y, ["beech", "yew"]))
    assert_same(updated, rebuilt, problem.queries)
    softmax = tools.softmax_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    softmax.set_text(text).add(problem.queries[:2], ["beech", "yew"], refit=False)
    fresh = tools.solved_anew(softmax, X, np.append(problem.y, ["beech", "yew"]))
    assert_solved(softmax, fresh, problem.queries)


BAD = {
    "a class with shots is missing": (("oak", "ash", "fir", "yew"), "no class 'elm'"),
    "names of another kind": ((1, 2, 3, 4, 5), "no class 'ash'"),
    "another width": (None, "7 columns, the shots 12"),
}


@pytest.mark.parametrize("name", ["exact", "grouped"])
@pytest.mark.parametrize("bad", BAD)
def test_bad_text_is_refused_and_changes_nothing(bad, name, problem, tools):
    names, phrase = BAD[bad]
    estimator = tools.gp_cache(problem, kernel_space="raw", precision=name)
    before = estimator.fit(problem.X, problem.y).logits(problem.queries)
    text = TextPrior(list("abc"), np.eye(3, 7)) if names is None else prior_of(problem, names)
    with tools.one_sentence(DataError, phrase):
        estimator.set_text(text)
    assert estimator.text_prior is problem.prior
    assert estimator.classes_.tolist() == sorted(problem.prior.class_names)
    np.testing.assert_array_equal(estimator.logits(problem.queries), before)
    rebuilt = tools.gp_cache(problem, kernel_space="raw", precision=name)
    assert_same(estimator, rebuilt.fit(problem.X, problem.y), problem.queries)


def test_a_model_without_text_cannot_be_given_one(problem, tools):
    estimator = tools.gp_cache(kernel_space="raw").fit(problem.X, problem.y)
    with tools.one_sentence(DataError, "without text cannot be given one"):
        estimator.set_text(problem.prior)


def test_a_model_that_is_not_fitted_says_so(problem, tools):
    with pytest.raises(NotFittedError):
        tools.gp_cache(problem).set_text(problem.prior)
