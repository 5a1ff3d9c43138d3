"""Small problems for grouped caches, and the estimators that must agree on them."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from gpcache import GPCacheClassifier, TextPrior
from gpcache.cluster.grouped import GroupedCache

N_CLASSES, WIDTH = 14, 12
NUMBERS = {"alpha": 6.0, "beta": 2.5, "noise": 0.2}
FLOAT64 = {"device": "cpu", "dtype": "float64"}


@dataclass(frozen=True)
class Problem:
    """Keys X (n, d) of any length with string labels y (n,), queries (m, d), and text."""

    X: np.ndarray
    y: np.ndarray
    queries: np.ndarray
    prior: TextPrior


def make_problem(*, seed=0, shots=None, text_only=0):
    """Classes of unequal numbers of keys in random order; `text_only` of them have none."""
    generator = np.random.default_rng(seed)
    names = np.array([f"class {i}" for i in generator.permutation(N_CLASSES + text_only)])
    centres = 1 + generator.normal(size=(len(names), WIDTH))
    if shots is None:
        shots = generator.integers(2, 13, size=N_CLASSES)
    labels = generator.permutation(np.repeat(np.arange(N_CLASSES), shots))

    def near(which):
        return centres[which] + 0.7 * generator.normal(size=(len(which), WIDTH))

    text = centres + 0.5 * generator.normal(size=centres.shape)
    queries = near(generator.integers(len(names), size=25))
    return Problem(near(labels), names[labels], queries, TextPrior(names, text, logit_scale=8.0))


def grouped_cache(**options):
    """At given numbers, in float64 and raw space, in four groups."""
    settings = {"n_groups": 4, "kernel_space": "raw"} | NUMBERS | FLOAT64
    return GroupedCache(**settings | options)


def dense(**options):
    """The same model as the paper's, with all keys and classes in one matrix."""
    settings = {"n_groups": 4, "kernel_space": "raw", "precision": "grouped", "gain": 1.0}
    settings["likelihood"] = "gaussian"
    settings |= {"prior": "zero_shot", "confidence_scaling": True, "eta": 0.0} | NUMBERS | FLOAT64
    return GPCacheClassifier.from_options(**settings | options)


@pytest.fixture
def problem():
    return make_problem()


@pytest.fixture(scope="session")
def tools():
    """The helpers of this file: test files cannot import a conftest."""
    return SimpleNamespace(
        make_problem=make_problem, grouped_cache=grouped_cache, dense=dense, numbers=NUMBERS
    )
