"""add, remove and relabel: as if the model had been fitted that way, numbers and map fixed."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from gpcache import GPCacheClassifier, GPCacheFClassifier
from gpcache.methods import TipAdapterClassifier, restore, state_of

CLOSE = {"rtol": 1e-8, "atol": 1e-8}
KINDS = [
    GPCacheClassifier.from_options(kernel_space="raw"),
    GPCacheClassifier.from_options(kernel_space="raw", likelihood="gaussian"),
    TipAdapterClassifier.from_options(kernel_space="raw"),
]


def assert_same(found, expected, queries):
    assert found.classes_.tolist() == expected.classes_.tolist()
    np.testing.assert_allclose(found.logits(queries), expected.logits(queries), **CLOSE)
    for one, other in zip(found.posterior(queries), expected.posterior(queries), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)
    np.testing.assert_array_equal(found.loo_.counted, expected.loo_.counted)
    np.testing.assert_allclose(found.loo_.logits, expected.loo_.logits, **CLOSE)


@pytest.fixture(params=["with text", "without text"])
def text(request, problem):
    """The problem whose text is used, or none."""
    return problem if request.param == "with text" else None


@pytest.fixture
def options(precision):
    """Raw space, where a rebuild is a fit; every posterior, η on where there is a variance."""
    scaled = precision.get("precision_weighting", True)
    return {"kernel_space": "raw", "confidence_scaling": scaled, "eta": 0.5, **precision}


def test_add_is_a_rebuild(text, options, problem, tools):
    updated = tools.gp_cache(text, **options).fit(problem.X[:9], problem.y[:9])
    updated.add(problem.X[9:12], problem.y[9:12]).add(problem.X[12:], problem.y[12:].tolist())
    rebuilt = tools.gp_cache(text, **options).fit(problem.X, problem.y)
    assert_same(updated, rebuilt, problem.queries)


def test_remove_is_a_rebuild(text, options, problem, tools):
    updated = tools.gp_cache(text, **options).fit(problem.X, problem.y)
    updated.remove([0, 13, 5]).remove(2)
    kept = np.delete(np.delete(np.arange(14), [0, 13, 5]), 2)
    rebuilt = tools.gp_cache(text, **options).fit(problem.X[kept], problem.y[kept])
    assert_same(updated, rebuilt, problem.queries)


def test_relabel_is_a_rebuild(text, options, problem, tools):
    updated = tools.gp_cache(text, **options).fit(problem.X, problem.y)
    labels = problem.y.copy()
    labels[[3, 8]] = ["elm", "ash"]
    updated.relabel([3, 8], ["elm", "ash"])
    rebuilt = tools.gp_cache(text, **options).fit(problem.X, labels)
    assert_same(updated, rebuilt, problem.queries)


def test_add_then_remove_changes_nothing(text, options, problem, tools):
    estimator = tools.gp_cache(text, **options).fit(problem.X, problem.y)
    before = estimator.logits(problem.queries)
    estimator.add(problem.queries[:3], ["oak", "elm", "oak"]).remove([14, 15, 16])
    np.testing.assert_allclose(estimator.logits(problem.queries), before, **CLOSE)


@pytest.mark.parametrize("space", ["raw", "centred"])
def test_tip_adapter_is_updated_too(space, text, problem, tools):
    updated = tools.tip_adapter(text, kernel_space=space).fit(problem.X, problem.y)
    before = updated.logits(problem.queries)
    updated.add(problem.queries[:2], ["ash", "fir"]).relabel([0], ["fir"]).remove([3])
    if space == "raw":
        X = np.delete(np.concatenate([problem.X, problem.queries[:2]]), 3, axis=0)
        y = np.delete(np.concatenate([["fir"], problem.y[1:], ["ash", "fir"]]), 3)
        assert_same(updated, tools.tip_adapter(text).fit(X, y), problem.queries)
    assert np.abs(updated.logits(problem.queries) - before).max() > 0.1


STEPS = st.lists(
    st.tuples(st.sampled_from("arl"), st.integers(0, 99), st.integers(0, 4)), max_size=8
)


@settings(max_examples=25)
@given(steps=STEPS, with_text=st.booleans())
def test_any_sequence_of_updates_is_a_rebuild(steps, with_text, tools):
    """The exact posterior carries its inverse along; no drift may show."""
    problem = tools.make_problem()
    text = problem if with_text else None
    options = {"kernel_space": "raw", "confidence_scaling": True, "eta": 1.0}
    updated = tools.gp_cache(text, **options).fit(problem.X, problem.y)
    X, y = taken(steps, updated, problem)
    rebuilt = tools.gp_cache(text, **options).fit(X, y)
    assert_same(updated, rebuilt, problem.queries)


def taken(steps, updated, problem):
    """Rows and labels after these steps, each of which the model takes, too."""
    names = np.array(problem.prior.class_names)
    X, y = problem.X, problem.y
    for kind, number, which in steps:
        row, name = number % len(y), names[which]
        if kind == "a":
            new = problem.queries[[number % 9]]
            updated.add(new, [name])
            X, y = np.concatenate([X, new]), np.append(y, name)
        elif kind == "r" and len(y) > 1:
            updated.remove([row])
            X, y = np.delete(X, row, axis=0), np.delete(y, row)
        elif kind == "l" and name in y and (y == y[row]).sum() > 1:
            updated.relabel([row], [name])
            y = np.where(np.arange(len(y)) == row, name, y)
    return X, y


# With the softmax likelihood: the optimum is unique, whatever the solver starts from.


@pytest.fixture(params=["raw", "whitened"])
def softmax_options(request, softmax_precision):
    return {"kernel_space": request.param, **softmax_precision}


def assert_solved(updated, X, y, queries, tools):
    """A solve from scratch gives the same, to what the solver's tolerance leaves of it."""
    fresh = tools.solved_anew(updated, X, y)
    # Where nothing was updated, the report is still that of the search.
    updated._keep(replace(updated.fitted_, known_report=None))
    assert updated.classes_.tolist() == fresh.classes_.tolist()
    np.testing.assert_allclose(
        updated.predict_proba(queries), fresh.predict_proba(queries), rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(updated.novelty(queries), fresh.novelty(queries), **CLOSE)
    np.testing.assert_array_equal(updated.loo_.counted, fresh.loo_.counted)
    np.testing.assert_allclose(updated.loo_.logits, fresh.loo_.logits, rtol=0, atol=1e-5)


def test_an_update_is_a_solve_from_scratch(text, softmax_options, problem, tools):
    X, y = np.concatenate([problem.X, problem.queries[:3]]), problem.y
    updated = tools.softmax_cache(text, **softmax_options).fit(problem.X, problem.y)
    before = updated.predict_proba(problem.queries)

    updated.add(X[14:], ["fir", "oak", "fir"])
    y = np.append(y, ["fir", "oak", "fir"])
    assert_solved(updated, X, y, problem.queries, tools)
    assert np.abs(updated.predict_proba(problem.queries) - before).max() > 1e-3

    updated.relabel([3, 8], ["elm", "ash"])
    y[[3, 8]] = ["elm", "ash"]
    assert_solved(updated, X, y, problem.queries, tools)

    updated.remove([0, 13, 5])
    X, y = np.delete(X, [0, 13, 5], axis=0), np.delete(y, [0, 13, 5])
    assert_solved(updated, X, y, problem.queries, tools)


def test_add_then_remove_changes_nothing_with_the_softmax_likelihood(
    text, softmax_precision, problem, tools
):
    options = {"kernel_space": "raw", **softmax_precision}
    estimator = tools.softmax_cache(text, **options).fit(problem.X, problem.y)
    before = estimator.predict_proba(problem.queries)
    estimator.add(problem.queries[:3], ["oak", "elm", "oak"]).remove([14, 15, 16])
    after = estimator.predict_proba(problem.queries)
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)


@settings(max_examples=10)
@given(steps=STEPS, with_text=st.booleans())
def test_any_sequence_of_updates_is_a_solve_from_scratch(steps, with_text, tools):
    """Each starts from the solution before it; no drift may show."""
    problem = tools.make_problem()
    text = problem if with_text else None
    updated = tools.softmax_cache(text, kernel_space="raw").fit(problem.X, problem.y)
    X, y = taken(steps, updated, problem)
    assert_solved(updated, X, y, problem.queries, tools)


def test_classes_come_and_go_with_the_softmax_likelihood(text, softmax_precision, problem, tools):
    """Without text a class comes with its first shot; with its last one it goes."""
    options = {"kernel_space": "raw", **softmax_precision}
    known = np.isin(problem.y, ["oak", "ash", "fir"])
    updated = tools.softmax_cache(text, **options).fit(problem.X[known], problem.y[known])
    updated.add(problem.X[~known], problem.y[~known])
    order = np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)])
    X, y = problem.X[order], problem.y[order]
    assert "elm" in updated.classes_
    assert_solved(updated, X, y, problem.queries, tools)

    updated.relabel(np.flatnonzero(y == "elm"), ["oak"] * 2)
    y = np.where(y == "elm", "oak", y)
    assert ("elm" in updated.classes_) == (text is not None)
    assert_solved(updated, X, y, problem.queries, tools)

    updated.remove(np.flatnonzero(y == "ash"))
    X, y = X[y != "ash"], y[y != "ash"]
    assert ("ash" in updated.classes_) == (text is not None)
    assert_solved(updated, X, y, problem.queries, tools)


@pytest.mark.parametrize("with_text", [True, False])
def test_a_label_that_is_given_anew_is_believed(with_text, tools):
    """What was doubted was the old one, which is doubted again when it comes back."""
    problem = tools.make_problem(shots=(6,) * 5)
    labels = problem.y.copy()
    labels[0] = next(name for name in problem.prior.class_names if name != problem.y[0])
    prior = problem.prior if with_text else None
    model = GPCacheClassifier.from_options(text_prior=prior, **tools.float64).fit(problem.X, labels)
    before, doubts = model.predict_proba(problem.queries), model.fitted_.shots.weights
    assert doubts[0] < 0.99
    model.add(problem.X[1:3], ["oak", "yew" if with_text else "larch"], refit=False)
    assert model.fitted_.shots.weights.tolist() == [*doubts.tolist(), 1.0, 1.0]
    model.relabel([0], problem.y[:1], refit=False)
    assert model.fitted_.shots.weights.tolist() == [1.0, *doubts[1:].tolist(), 1.0, 1.0]
    restored = restore(state_of(model), device="cpu")
    for one in (model, restored):
        one.relabel([0], labels[:1], refit=False).remove([30, 31], refit=False)
        assert one.fitted_.shots.weights.tolist() == doubts.tolist()
        after = one.predict_proba(problem.queries)
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)


def test_a_new_class_is_welcome_where_there_is_no_text(options, problem, tools):
    known = np.isin(problem.y, ["oak", "ash"])
    estimator = tools.gp_cache(**options).fit(problem.X[known], problem.y[known])
    estimator.add(problem.X[~known], problem.y[~known])
    assert estimator.classes_.tolist() == ["ash", "elm", "fir", "oak"]
    order = np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)])
    rebuilt = tools.gp_cache(**options).fit(problem.X[order], problem.y[order])
    assert_same(estimator, rebuilt, problem.queries)


@pytest.mark.parametrize("estimator", KINDS, ids=str)
def test_a_model_of_one_class_can_grow(estimator, problem):
    """One class says nothing of α: a choice of zero would silence all that come later."""
    first = problem.y == "oak"
    estimator.fit(problem.X[first], problem.y[first])
    estimator.add(problem.X[~first], problem.y[~first])
    assert (estimator.predict(problem.X) == problem.y).mean() > 0.9
    assert estimator.predict_proba(problem.X).max(1).mean() > 0.5


def test_the_last_shot_of_a_class_takes_it_along_unless_there_is_text(
    text, options, problem, tools
):
    estimator = tools.gp_cache(text, **options).fit(problem.X, problem.y)
    gone = np.flatnonzero(problem.y == "elm")
    estimator.remove(gone[:1])
    assert "elm" in estimator.classes_
    estimator.remove(gone[1:] - 1)
    assert ("elm" in estimator.classes_) == (text is not None)
    rest = problem.rows(problem.y != "elm")
    rebuilt = tools.gp_cache(text, **options).fit(rest.X, rest.y)
    assert_same(estimator, rebuilt, problem.queries)


def test_relabelling_the_last_shot_of_a_class_takes_it_along_too(problem, tools):
    """A class without text and without shots has nothing to say: a refit would not know it."""
    rows = np.flatnonzero(problem.y == "elm")
    labels = np.where(problem.y == "elm", "oak", problem.y)
    updated = tools.gp_cache(kernel_space="raw").fit(problem.X, problem.y)
    updated.relabel(rows, ["oak", "oak"])
    rebuilt = tools.gp_cache(kernel_space="raw").fit(problem.X, labels)
    assert_same(updated, rebuilt, problem.queries)


def test_a_whitening_is_kept_where_no_refit_is_wanted(problem, tools):
    """The map is the one of the first nine shots, whatever comes later."""
    estimator = tools.gp_cache(problem).fit(problem.X[:9], problem.y[:9])
    estimator.add(problem.X[9:], problem.y[9:], refit=False)
    estimator.remove([2], refit=False)
    kept = problem.rows(np.delete(np.arange(14), 2))
    phi = tools.feature_map("whitened", problem.X[:9], problem.y[:9])
    text = 0.8 * tools.zero_shot(problem.prior, kept.X)
    values = tools.residual(kept.y, estimator.classes_, text)
    mean, _ = tools.posterior(phi(kept.X), values, phi(problem.queries), beta=2.5, noise=0.2)
    expected = 0.8 * tools.zero_shot(problem.prior, problem.queries) + 3.0 * mean
    np.testing.assert_allclose(estimator.logits(problem.queries), expected, **CLOSE)


def test_where_a_refit_is_impossible_the_user_is_told(problem, tools):
    """What was chosen on a validation set cannot be chosen again on the shots alone."""
    estimator = tools.gp_cache(problem)
    estimator.fit(problem.X, problem.y, validation=(problem.X, problem.y))
    with pytest.warns(UserWarning, match="keeps the learned feature scaling: fit on all shots"):
        estimator.relabel([0], ["fir"])


@pytest.mark.parametrize("with_text", [True, False])
def test_shots_that_come_one_by_one_end_in_the_fit_of_all(with_text, tools):
    """Where shots are few, the hyper-parameters are chosen again at every change."""
    problem = tools.make_problem(shots=(5,) * 5)
    prior = problem.prior if with_text else None
    model = GPCacheClassifier.from_options(text_prior=prior, **tools.float64)
    first = np.flatnonzero(np.arange(25) % 5 < 2)
    rest = np.setdiff1d(np.arange(25), first)
    model.fit(problem.X[first], problem.y[first])
    for row in rest:
        model.add(problem.X[[row]], problem.y[[row]])
    order = np.concatenate([first, rest])
    fresh = GPCacheClassifier.from_options(text_prior=prior, **tools.float64)
    fresh.fit(problem.X[order], problem.y[order])
    assert model.temperature_ == fresh.temperature_
    assert model.loo_.accuracy == fresh.loo_.accuracy
    np.testing.assert_allclose(
        model.predict_proba(problem.queries),
        fresh.predict_proba(problem.queries),
        rtol=0,
        atol=1e-9,
    )


def test_many_shots_are_chosen_on_again_when_a_twentieth_has_changed(tools):
    problem = tools.make_problem(shots=(44,) * 5)
    model = tools.softmax_cache(problem).fit(problem.X[:210], problem.y[:210])
    model.add(problem.X[210:219], problem.y[210:219])
    assert model.fitted_.changed == 9
    before = model.fitted_.model.feature_map.matrix
    model.relabel([0], problem.y[:1])
    assert model.fitted_.changed == 10
    assert model.fitted_.model.feature_map.matrix is before
    model.remove([0])
    assert model.fitted_.changed == 0
    assert model.fitted_.model.feature_map.matrix is not before


def test_how_much_has_changed_is_saved(problem, tools):
    model = tools.softmax_cache(problem).fit(problem.X, problem.y)
    model.add(problem.X[:1], problem.y[:1], refit=False)
    assert restore(state_of(model), device="cpu").fitted_.changed == 1


def test_loo_after_an_update_learns_the_whitening_anew(problem, tools):
    """Held-out figures are those of a fit, not of the kept map."""
    estimator = tools.gp_cache(problem).fit(problem.X[:12], problem.y[:12])
    stale = estimator.loo_.accuracy, estimator.loo_.logits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.add(problem.X[12:], problem.y[12:])
    fresh = tools.gp_cache(problem).fit(problem.X, problem.y).loo_
    assert estimator.loo_.logits.shape != stale[1].shape
    np.testing.assert_allclose(estimator.loo_.logits, fresh.logits, **CLOSE)


@pytest.mark.parametrize("estimator", KINDS, ids=str)
def test_numbers_and_temperature_stay(estimator, problem):
    estimator = clone(estimator).set_params(text_prior=problem.prior).fit(problem.X, problem.y)
    names = ["alpha_", "beta_", "noise_", "eta_", "gain_", "temperature_"]
    if getattr(estimator, "likelihood", "") == "softmax":
        names += ["tau_", "shrinkage_", "discriminant_"]
    before = [getattr(estimator, name) for name in names]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is kept that was learned from labels
        estimator.add(problem.queries, ["oak"] * 9, refit=False)
        estimator.relabel([0, 1], ["fir", "fir"], refit=False).remove([3], refit=False)
    assert [getattr(estimator, name) for name in names] == before


def test_trained_keys_stay_where_training_left_them(precision, problem, tools):
    options = {"epochs": 3, "learning_rate": 0.1, "kernel_space": "raw", **precision}
    estimator = GPCacheFClassifier.from_options(**options, **tools.numbers, **tools.float64)
    before = estimator.fit(problem.X, problem.y).logits(problem.queries)
    estimator.add(problem.queries[:2], ["oak", "zelkova"])
    assert estimator.classes_.tolist() == ["ash", "elm", "fir", "oak", "zelkova"]
    assert np.abs(estimator.logits(problem.queries)[:, :4] - before).max() > 0.01
    estimator.remove([14, 15])
    np.testing.assert_allclose(estimator.logits(problem.queries), before, **CLOSE)
