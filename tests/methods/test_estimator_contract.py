"""scikit-learn's contract: its own checks, options that are all listed, a fit that forgets."""

import inspect

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from gpcache import GPCacheClassifier, GPCacheFClassifier, TextPrior
from gpcache.methods import (
    Grouped,
    Regression,
    Selection,
    TipAdapterClassifier,
    TipAdapterFClassifier,
    Weights,
    ZeroShotClassifier,
    registry,
)

ALL = [
    ZeroShotClassifier,
    TipAdapterClassifier,
    TipAdapterFClassifier,
    GPCacheClassifier,
    GPCacheFClassifier,
]


class GivesText:
    """Gives an estimator text when its fit has checked X and y, and takes it away after the fit.

    scikit-learn's checks fit on classes and widths of their own, for which no text can be given
    beforehand. Everything else is the method's own: constructor, parameters, fit, answers.
    """

    def fit(self, X, y):
        given = self.text_prior
        try:
            super().fit(X, y)
            assert self.text_prior is self._made  # a fit leaves its parameters alone
        finally:
            self.text_prior = given
        return self

    def _validated(self, X, *y, **options):
        found = super()._validated(X, *y, **options)
        if y:
            rows, labels = np.asarray(found[0], dtype=float), np.ravel(found[1])
            names = np.unique(labels)
            means = np.array([np.nan_to_num(rows[labels == name]).mean(0) for name in names])
            means[~means.any(1)] = 1.0
            self._made = self.text_prior = TextPrior(names.tolist(), means)
        return found


def ready_for_checks(method):
    """The estimator of a method, trained briefly, and given text if it needs that."""
    kind = method.constructor
    if "text" in method.needs:
        name = f"{kind.__name__}WithText"
        # Where pickle finds it.
        kind = globals()[name] = type(kind)(name, (GivesText, kind), {"__module__": __name__})
    return kind.from_options(**({"epochs": 2} if "epochs" in kind.option_types() else {}))


# Beyond features: CALIP reads places of an image (X of three dimensions), CoOp the text encoder,
# TIMO a vector for each prompt. scikit-learn's checks have none of these.
ON_FEATURES = {name: one for name, one in registry().items() if not one.beyond_features}


def test_only_what_checks_cannot_give_is_left_out():
    assert set(registry()) - set(ON_FEATURES) == {"calip", "coop", "timo"}


WEIGHTED = (
    "check_sample_weights_pandas_series",
    "check_sample_weights_not_an_array",
    "check_sample_weights_list",
    "check_sample_weights_shape",
    "check_sample_weights_not_overwritten",
    "check_sample_weight_equivalence_on_dense_data",
    "check_classifiers_one_label_sample_weights",
)


def expected_failures(estimator):
    if type(estimator) is not GPCacheClassifier:
        return {}
    if estimator.likelihood != "softmax":
        return dict.fromkeys(WEIGHTED, "regression takes no weights, and says so")
    # tests/methods/test_sample_weight.py: at equal hyper-parameters both models are the same.
    reason = "copies of a shot fall into several folds, so they choose other hyper-parameters"
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@parametrize_with_checks(
    [
        *map(ready_for_checks, ON_FEATURES.values()),
        GPCacheClassifier.from_options(likelihood="gaussian"),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


@pytest.mark.parametrize("name", [n for n, m in ON_FEATURES.items() if "text" in m.needs])
def test_answers_are_those_of_the_text_at_fit(name, problem):
    """Parameters that are set after the fit wait for the next one."""
    kind = registry()[name].constructor
    options = {"epochs": 1} if "epochs" in kind.option_types() else {}
    estimator = kind.from_options(text_prior=problem.prior, **options).fit(problem.X, problem.y)
    before = estimator.logits(problem.queries)
    estimator.set_params(text_prior=TextPrior(problem.prior.class_names, -problem.prior.vectors, 5))
    np.testing.assert_array_equal(estimator.logits(problem.queries), before)


COMMON = {"text_prior", "kernel_space", "projection", "selection", "beta"}
COMMON |= {"device", "dtype", "random_state"}
PLAIN = COMMON | {"alpha", "gain"}
GP = COMMON | {"likelihood", "approximation", "weights"}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ZeroShotClassifier, {"text_prior", "device", "dtype"}),
        (TipAdapterClassifier, PLAIN),
        (TipAdapterFClassifier, PLAIN | {"training"}),
        (GPCacheClassifier, GP | {"tau"}),
        (GPCacheFClassifier, GP | {"training"}),
    ],
)
def test_the_constructor_lists_all_options_by_keyword(kind, options):
    parameters = inspect.signature(kind).parameters
    assert set(parameters) == options == set(kind().get_params())
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert kind().get_params() == {name: p.default for name, p in parameters.items()}
    assert len(parameters) <= 12
    with pytest.raises(TypeError):
        kind(None)


@pytest.mark.parametrize("kind", ALL)
def test_the_constructor_only_stores(kind):
    """Nonsense is kept as it is, the same object; only fit looks at it."""
    nonsense = {name: object() for name in kind().get_params()}
    estimator = kind(**nonsense)
    for name, value in nonsense.items():
        assert getattr(estimator, name) is value
    assert set(vars(estimator)) == set(nonsense)


@pytest.mark.parametrize("kind", ALL)
def test_an_option_that_does_not_exist_is_named(kind):
    with pytest.raises(TypeError, match="'nois'"):
        kind.from_options(nois=1)


@pytest.mark.parametrize(
    ("option", "place"),
    [
        ({"noise": 0.1}, r"likelihood=Regression\(noise=…\)"),
        ({"alpha": 1.0}, r"weights=Weights\(cache=…\)"),
        ({"precision": "nystrom"}, "approximation=…"),
        ({"n_folds": 4}, r"selection=Selection\(n_folds=…\)"),
        ({"shrinkage": 1.0}, r"kernel_space=Whitened\(shrinkage=…\)"),
        ({"epochs": 3}, r"training=Training\(epochs=…\)"),
    ],
    ids=str,
)
def test_an_option_that_moved_into_a_group_is_found(option, place):
    with pytest.raises(TypeError, match=f"GPCacheFClassifier takes .* as {place}"):
        GPCacheFClassifier(**option)


def test_a_trained_variant_is_cloned_with_all_it_was_given(problem):
    options = {
        "text_prior": problem.prior,
        "noise": 0.3,
        "kernel_space": "raw",
        "precision": "grouped",
        "n_groups": 3,
        "epochs": 4,
        "learning_rate": 0.02,
        "precision_gradient": False,
    }
    copy = clone(GPCacheFClassifier.from_options(**options))
    given = copy.get_params() | {"text_prior": problem.prior}
    assert given == GPCacheFClassifier.from_options(**options).get_params()
    np.testing.assert_array_equal(copy.text_prior.vectors, problem.prior.vectors)
    copy.set_params(likelihood=Regression(noise=0.7), approximation=Grouped(2))
    assert (copy._options().noise, copy._options().n_groups) == (0.7, 2)
    with pytest.raises(ValueError, match="Invalid parameter 'nois'"):
        copy.set_params(nois=1)


def test_a_grid_search_of_scikit_learn_moves_every_kind_of_option(problem):
    """Whole numbers as numpy makes them are whole numbers."""
    grid = {"approximation": [Grouped(groups) for groups in np.arange(1, 3)], "beta": [2]}
    grid |= {"likelihood": [Regression(noise=noise) for noise in np.array([0.1, 1.0])]}
    grid |= {"random_state": np.arange(2), "selection": [Selection(n_folds=np.array([4])[0])]}
    estimator = GPCacheClassifier(weights=Weights(cache=3.0), kernel_space="raw")
    rows = problem.y != "elm"
    search = GridSearchCV(estimator, grid, cv=2, error_score="raise")
    search.fit(problem.X[rows], problem.y[rows])
    assert set(search.best_params_) == set(grid)


@pytest.mark.parametrize("kind", [GPCacheClassifier, TipAdapterClassifier])
def test_fit_forgets_earlier_fits(kind, problem, tools):
    other = tools.make_problem(shots=(2, 3), names=("a", "b"), width=7, seed=4)
    twice = kind.from_options(**tools.float64).fit(problem.X, problem.y).fit(other.X, other.y)
    once = kind.from_options(**tools.float64).fit(other.X, other.y)
    np.testing.assert_array_equal(
        twice.predict_proba(other.queries), once.predict_proba(other.queries)
    )
    np.testing.assert_array_equal(twice.loo_.logits, once.loo_.logits)
    assert twice.classes_.tolist() == ["a", "b"]


def test_with_two_classes_the_decision_is_the_difference_of_the_logits(tools):
    problem = tools.make_problem(shots=(3, 4), names=("a", "b"))
    estimator = GPCacheClassifier().fit(problem.X, problem.y)
    logits = estimator.logits(problem.queries)
    decision = estimator.decision_function(problem.queries)
    assert logits.shape == (9, 2)
    np.testing.assert_array_equal(decision, logits[:, 1] - logits[:, 0])
    np.testing.assert_array_equal(estimator.predict(problem.queries) == "b", decision > 0)


def test_with_more_classes_the_decision_is_the_logits(problem):
    estimator = GPCacheClassifier().fit(problem.X, problem.y)
    np.testing.assert_array_equal(
        estimator.decision_function(problem.queries), estimator.logits(problem.queries)
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda estimator, X: estimator.predict(X),
        lambda estimator, X: estimator.predict_proba(X),
        lambda estimator, X: estimator.logits(X),
        lambda estimator, X: estimator.posterior(X),
        lambda estimator, X: estimator.explain(X),
        lambda estimator, _: estimator.loo_,
        lambda estimator, X: estimator.add(X[:1], ["oak"]),
        lambda estimator, _: estimator.remove([0]),
        lambda estimator, _: estimator.relabel([0], ["oak"]),
    ],
    ids=[
        "predict",
        "predict_proba",
        "logits",
        "posterior",
        "explain",
        "loo_",
        "add",
        "remove",
        "relabel",
    ],
)
@pytest.mark.parametrize("kind", [GPCacheClassifier, TipAdapterFClassifier])
def test_before_fit_every_question_is_answered_the_same_way(ask, kind, problem):
    with pytest.raises(NotFittedError, match=r"is not fitted yet\. Call 'fit'"):
        ask(kind(), problem.X)


def test_data_and_options_are_not_written_to(problem):
    X, y = problem.X.copy(), problem.y.copy()
    vectors = problem.prior.vectors.copy()
    estimator = GPCacheFClassifier.from_options(text_prior=problem.prior, epochs=1)
    before = estimator.get_params()
    with pytest.warns(UserWarning, match="keeps the learned feature scaling"):
        estimator.fit(X, y).add(X[:2], y[:2]).remove([0]).predict(X)
    np.testing.assert_array_equal(X, problem.X)
    np.testing.assert_array_equal(y, problem.y)
    np.testing.assert_array_equal(problem.prior.vectors, vectors)
    assert estimator.get_params() == before


def test_text_is_an_option_like_any_other(problem):
    """A prior that is another one by value is another one after set_params."""
    estimator = GPCacheClassifier.from_options(text_prior=problem.prior).fit(problem.X, problem.y)
    flipped = TextPrior(problem.prior.class_names, -problem.prior.vectors, 12.0)
    before = estimator.logits(problem.queries)
    estimator.set_params(text_prior=flipped).fit(problem.X, problem.y)
    assert np.abs(estimator.logits(problem.queries) - before).max() > 1
