"""The method that CONTRIBUTING.md adds: one file, one line, and everything knows it."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from gpcache.methods import find_method, registry, restore, state_of
from gpcache.methods.registry import _METHODS

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
FILE, LINE = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
MODULE = types.ModuleType("gpcache.methods.nearest_mean")
exec(compile(FILE, PAGE.name, "exec"), MODULE.__dict__)
# Where an import of the file would put it, for the checks that pickle.
sys.modules[MODULE.__name__] = MODULE


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    ((name, place),) = eval(f"{{{LINE}}}").items()
    monkeypatch.setitem(_METHODS, name, place)


@parametrize_with_checks([MODULE.NearestMeanClassifier()])
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


def test_the_registry_knows_it():
    method = registry()["nearest-mean"]
    assert method.constructor is MODULE.NearestMeanClassifier
    assert (method.trains, method.needs, method.beyond_features) == (False, ("shots",), ())
    assert find_method("nearest-mean", on_features=True) == method


@pytest.mark.parametrize("text", [True, False])
def test_logits_are_those_of_the_formula(problem, tools, text):
    prior = problem.prior if text else None
    options = {"alpha": 3.0} | tools.float64
    estimator = MODULE.NearestMeanClassifier(text_prior=prior, **options)
    estimator.fit(problem.X, problem.y)
    unit = problem.X / np.linalg.norm(problem.X, axis=1, keepdims=True)
    for query, logits in zip(problem.queries, estimator.logits(problem.queries), strict=True):
        query = query / np.linalg.norm(query)
        for name, logit in zip(estimator.classes_, logits, strict=True):
            if name in problem.y:
                mean = unit[problem.y == name].mean(0)
                expected = 3 * query @ mean / np.linalg.norm(mean)
                if text:
                    expected += prior.logit_scale * query @ prior.aligned(np.array([name]))[0]
                np.testing.assert_allclose(logit, expected, atol=1e-9)


def test_a_saved_model_answers_as_before(problem):
    estimator = find_method("nearest-mean").constructor(text_prior=problem.prior)
    estimator.fit(problem.X, problem.y)
    probabilities = estimator.predict_proba(problem.queries)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    again = restore(state_of(estimator))
    assert type(again) is MODULE.NearestMeanClassifier
    np.testing.assert_allclose(again.predict_proba(problem.queries), probabilities, atol=1e-12)
