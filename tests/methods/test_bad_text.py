"""Text that cannot be used gets one sentence, when it is made or when it meets the shots."""

import numpy as np
import pytest
import torch

from gpcache import DataError, GPCacheClassifier, TextPrior
from gpcache.methods import TipAdapterClassifier, ZeroShotClassifier


def spoilt(vectors, row, value):
    vectors = vectors.copy()
    vectors[row] = value
    return vectors


@pytest.mark.parametrize("kind", [ZeroShotClassifier, TipAdapterClassifier, GPCacheClassifier])
def test_text_that_does_not_fit_the_shots(kind, problem, tools):
    with tools.one_sentence(DataError, r"no class 'beech' \(it has 'oak', 'ash', 'fir', …\)"):
        kind.from_options(text_prior=problem.prior).fit(problem.X, ["beech"] * 14)
    with tools.one_sentence(DataError, "X has 7 features but the text vectors have 12"):
        kind.from_options(text_prior=problem.prior).fit(problem.X[:, :7], problem.y)


TEXT = {
    "a name twice": (lambda v: (["a", "b", "a"], v), "class name 'a' more than once"),
    "too few names": (lambda v: (["a", "b"], v), r"2 names and vectors of shape \(3, 4\)"),
    "one vector without brackets": (
        lambda v: (["a"], v[0]),
        r"1 names and vectors of shape \(4,\)",
    ),
    "no names": (lambda v: ([], v[:0]), "at least one class name"),
    "a zero vector": (lambda v: (["a", "b", "c"], spoilt(v, 1, 0)), "class 'b' is all zeros"),
    "NaN": (lambda v: (["a", "b", "c"], spoilt(v, 2, np.nan)), "class 'c' holds NaN or inf"),
    "inf": (lambda v: (["a", "b", "c"], spoilt(v, (0, 0), np.inf)), "class 'a' holds NaN or inf"),
    "scale zero": (
        lambda v: (["a", "b", "c"], v, 0),
        "logit_scale of TextPrior must be a number above zero, got 0",
    ),
    "scale below zero": (lambda v: (["a", "b", "c"], v, -2.0), "logit_scale .*got -2.0"),
    "scale NaN": (lambda v: (["a", "b", "c"], v, np.nan), "logit_scale .*got nan"),
    "scale in words": (lambda v: (["a", "b", "c"], v, "100"), "logit_scale .*got '100'"),
    "a scale that is trained": (
        lambda v: (["a", "b", "c"], v, torch.nn.Parameter(torch.tensor(-1.0))),
        "logit_scale",
    ),
    "no scale": (lambda v: (["a", "b", "c"], v, None), "logit_scale .*got None"),
}


@pytest.mark.parametrize("name", TEXT)
def test_text_that_cannot_be_meant(name, tools):
    make, phrase = TEXT[name]
    with tools.one_sentence(DataError, phrase):
        TextPrior(*make(np.random.default_rng(0).normal(size=(3, 4))))


@pytest.mark.parametrize("odd", [1, None, ("oak", "tree")], ids=["number", "None", "tuple"])
def test_class_names_of_two_kinds(odd, problem, tools):
    """1 and "ash" have no order; numpy would make a word of the 1."""
    names = [odd, *problem.prior.class_names[1:]]
    labels = np.where(problem.y == "oak", "ash", problem.y)
    with tools.one_sentence(DataError, "must be of one kind that can be sorted"):
        GPCacheClassifier.from_options(text_prior=TextPrior(names, problem.prior.vectors)).fit(
            problem.X, labels
        )


def test_class_names_that_cannot_be_sorted(problem, tools):
    names = [0, 1, 2, 3, None]
    with tools.one_sentence(DataError, "must be of one kind that can be sorted"):
        GPCacheClassifier.from_options(text_prior=TextPrior(names, problem.prior.vectors)).fit(
            problem.X, np.arange(14) % 4
        )
