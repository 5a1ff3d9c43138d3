"""TextPrior: classes are matched by name, vectors are scaled to length one."""

import dataclasses

import numpy as np
import pytest
import torch

from gpcache import DataError, GPCacheClassifier, TextPrior
from gpcache.methods import TipAdapterClassifier, ZeroShotClassifier
from gpcache.methods.text_prior import joined_text, same_text


@pytest.fixture
def vectors():
    return np.random.default_rng(0).normal(size=(3, 4))


def test_vectors_are_scaled_to_length_one_and_the_input_stays(vectors):
    before = vectors.copy()
    prior = TextPrior(["b", "c", "a"], vectors)
    expected = before / np.sqrt((before**2).sum(1))[:, None]
    np.testing.assert_allclose(prior.vectors, expected, rtol=1e-14)
    np.testing.assert_array_equal(vectors, before)
    assert prior.logit_scale == 100.0


def test_it_cannot_be_changed(vectors):
    prior = TextPrior(["b", "c", "a"], vectors)
    with pytest.raises(dataclasses.FrozenInstanceError):
        prior.logit_scale = 1.0


@pytest.mark.parametrize(
    "names", [["b", "c", "a"], [20, 30, 10], np.array(["b", "c", "a"]), np.array([20, 30, 10])]
)
def test_classes_are_sorted_and_vectors_follow_their_names(names, vectors):
    prior = TextPrior(names, vectors)
    np.testing.assert_array_equal(prior.classes, np.sort(np.array(names)))
    np.testing.assert_array_equal(prior.aligned(prior.classes), prior.vectors[[2, 0, 1]])
    np.testing.assert_array_equal(prior.aligned(np.array(names)[[1]]), prior.vectors[[1]])


def test_a_class_without_text_is_named(vectors):
    with pytest.raises(DataError, match=r"no class 'd' \(it has 'b', 'c', 'a', …\)"):
        TextPrior(["b", "c", "a"], vectors).aligned(np.array(["a", "d"]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_vectors_may_be_a_tensor_of_any_float(dtype, vectors):
    tensor = torch.tensor(vectors).to(dtype).requires_grad_()
    prior = TextPrior(["b", "c", "a"], tensor)
    expected = TextPrior(["b", "c", "a"], tensor.detach().double().numpy())
    np.testing.assert_allclose(prior.vectors, expected.vectors, rtol=1e-12)


@pytest.mark.parametrize("kind", [ZeroShotClassifier, TipAdapterClassifier, GPCacheClassifier])
def test_the_order_of_the_names_does_not_matter_but_the_names_do(kind, problem, tools):
    names, vectors = problem.prior.class_names, problem.prior.vectors
    order = np.array([3, 0, 4, 1, 2])
    shuffled = TextPrior([names[i] for i in order], vectors[order], logit_scale=12.0)
    misnamed = TextPrior([names[i] for i in order], vectors, logit_scale=12.0)

    def logits(prior):
        estimator = kind.from_options(text_prior=prior, **tools.float64)
        return estimator.fit(problem.X, problem.y).logits(problem.queries)

    np.testing.assert_allclose(logits(shuffled), logits(problem.prior), rtol=1e-12, atol=1e-12)
    assert np.abs(logits(misnamed) - logits(problem.prior)).max() > 1


def test_texts_are_compared_by_name_and_joined():
    one = TextPrior(["dog", "cat"], np.eye(2))
    turned = TextPrior(["cat", "dog"], np.eye(2)[::-1] + 1e-9)
    other = TextPrior(["cat", "cow"], np.eye(2))
    assert same_text(one, turned)
    assert same_text(None, None)
    assert not same_text(one, other)
    assert not same_text(one, None)
    assert not same_text(one, TextPrior(["dog", "cat"], np.eye(2)[::-1]))
    both = joined_text(one, other)
    assert both.class_names == ("dog", "cat", "cow")
    assert both.vectors.tolist() == [[1, 0], [1, 0], [0, 1]]  # the second has another cat
