"""The registry: every method by its name, and one sentence for any other."""

import pytest

import gpcache
from gpcache import DataError, methods
from gpcache.methods import FeatureClassifier
from gpcache.methods.registry import find_method, name_of, registry


def test_every_public_method_has_a_name():
    public = {
        value
        for value in (getattr(methods, name) for name in methods.__all__)
        if isinstance(value, type) and issubclass(value, FeatureClassifier)
    }
    assert public - {FeatureClassifier} <= {method.constructor for method in registry().values()}


@pytest.mark.parametrize("name", registry())
def test_names_and_constructors_find_each_other(name):
    method = find_method(name)
    assert method.name == name
    assert name_of(method.constructor()) == name
    assert method.paper


@pytest.mark.parametrize("name", [n for n, m in registry().items() if not m.beyond_features])
def test_a_method_needs_what_it_says(name, problem):
    """Without text if it does not need it; and what has epochs trains."""
    method = find_method(name)
    by_epochs = bool({"epochs", "training"} & set(method.constructor().get_params()))
    assert method.trains == (by_epochs or name == "linear-probe")  # which solves instead
    options = {"epochs": 1, "n_folds": 4} if by_epochs else {}
    estimator = method.constructor.from_options(**options)
    if "text" in method.needs:
        with pytest.raises(DataError, match="text"):
            estimator.fit(problem.X, problem.y)
    else:
        assert len(estimator.fit(problem.X, problem.y).predict(problem.queries)) == 9


@pytest.mark.parametrize("name", [n for n, m in registry().items() if m.beyond_features])
def test_what_features_cannot_give_is_said(name, tools):
    with tools.one_sentence(DataError, f"{find_method(name).constructor.__name__} itself"):
        find_method(name, on_features=True)


def test_an_unknown_name_lists_the_known_ones(tools):
    known = "use gpcache, gpcache-paper, gpcache-f, tip-adapter"
    with tools.one_sentence(DataError, f"no method 'gp-cache': {known}"):
        find_method("gp-cache")


def test_a_method_of_somebody_else_has_no_name(tools):
    class Mine(gpcache.GPCacheClassifier):
        pass

    with tools.one_sentence(DataError, "Mine is not among the registered methods"):
        name_of(Mine())
