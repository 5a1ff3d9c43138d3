"""TIMO against a slow reading of its equations, its limits, and prompts that are missing."""

import math

import numpy as np
import pytest
import torch

from gpcache import DataError, TextPrior
from gpcache.methods.gda import GDAClassifier
from gpcache.methods.timo import TIMOClassifier

SCALE = 20.0
HERE = {"device": "cpu"}
NAMES = ["oak", "ash", "fir", "elm"]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


class Problem:
    """Unequal shots of four classes, each with its own number of prompts, 12 columns."""

    def __init__(self, shots=(4, 3, 2, 3), prompts=(5, 2, 3, 1)):
        generator = np.random.default_rng(0)
        centres = unit(generator.normal(size=(4, 12)))
        self.labels = np.repeat(np.arange(4), shots)
        self.y = np.array(NAMES)[self.labels]
        self.X = unit(4 * centres[self.labels] + 1.5 * generator.normal(size=(sum(shots), 12)))
        self.prompts = [
            unit(4 * centres[k] + 2 * generator.normal(size=(count, 12)))
            for k, count in enumerate(prompts)
        ]
        text = unit(np.stack([rows.mean(0) for rows in self.prompts]))
        self.prior = TextPrior(NAMES, text, SCALE)
        # Not of length one: only the direction of a prompt counts.
        self.vectors = {name: 3 * rows for name, rows in zip(NAMES, self.prompts, strict=True)}
        truth = generator.integers(0, 4, 30)
        self.Q = unit(4 * centres[truth] + 1.5 * generator.normal(size=(30, 12)))
        self.truth = np.array(NAMES)[truth]
        self.order = np.argsort(NAMES)  # columns are in sorted order of the names


@pytest.fixture
def problem():
    return Problem()


def fitted(problem, **options):
    options = {"alpha": 0.7, "prompt_vectors": problem.vectors} | HERE | options
    return TIMOClassifier(text_prior=problem.prior, **options).fit(problem.X, problem.y)


def weighed(problem, label, gamma):
    """The matches m_p of a class's prompts, and its text."""
    mean = unit(problem.X[problem.labels == label].mean(0))
    match = np.array([mean @ prompt for prompt in problem.prompts[label]])
    odds = np.exp(gamma * match / math.sqrt(sum(match**2)))
    text = sum(w * p for w, p in zip(odds / odds.sum(), problem.prompts[label], strict=True))
    return match, text / np.linalg.norm(text)


def discriminant(samples, labels, queries):
    n, d = samples.shape
    means = np.stack([samples[labels == label].mean(0) for label in range(4)])
    sigma = np.zeros((d, d))
    for row, label in zip(samples, labels, strict=True):
        sigma += np.outer(row - means[label], row - means[label]) / (n - 1)
    precision = d * np.linalg.inv((n - 1) * sigma + np.trace(sigma) * np.eye(d))
    offset = [-0.5 * mean @ precision @ mean - math.log(4) for mean in means]
    return queries @ precision @ means.T + offset


@pytest.mark.parametrize("gamma", [0.0, 5.0, 50.0])
def test_it_is_its_equation(gamma, problem):
    found = [weighed(problem, label, gamma) for label in range(4)]
    text = np.stack([one for _, one in found])
    extra = np.vstack([found[label][0][:, None] * problem.prompts[label] for label in range(4)])
    owners = np.repeat(np.arange(4), [len(rows) for rows in problem.prompts])
    samples, labels = np.vstack([problem.X, extra]), np.concatenate([problem.labels, owners])
    votes = discriminant(samples, labels, problem.Q)
    expected = SCALE * problem.Q @ text.T + 0.7 * votes
    np.testing.assert_allclose(
        fitted(problem, strength=gamma).logits(problem.Q), expected[:, problem.order], atol=1e-9
    )


def test_with_one_prompt_a_class_it_is_gda_with_the_prompts_among_the_samples():
    """The prompt is the text whatever γ, and a sample as long as it matches the shots."""
    problem = Problem(prompts=(1, 1, 1, 1))
    samples = problem.X
    for label in range(4):
        match, text = weighed(problem, label, 50.0)
        np.testing.assert_allclose(text, problem.prompts[label][0])
        samples = np.vstack([samples, match[0] * problem.prompts[label]])
    votes = discriminant(samples, np.concatenate([problem.labels, np.arange(4)]), problem.Q)
    text = np.vstack(problem.prompts)
    expected = SCALE * problem.Q @ text.T + 0.7 * votes
    found = fitted(problem).logits(problem.Q)
    np.testing.assert_allclose(found, expected[:, problem.order], atol=1e-9)
    other = fitted(problem, strength=5.0).logits(problem.Q)
    np.testing.assert_allclose(found, other, atol=1e-9)


def test_without_the_discriminant_and_preference_it_is_the_mean_of_the_prompts(problem):
    expected = GDAClassifier(text_prior=problem.prior, alpha=0.0, **HERE)
    expected.fit(problem.X, problem.y)
    found = fitted(problem, alpha=0.0, strength=0.0)
    np.testing.assert_allclose(found.logits(problem.Q), expected.logits(problem.Q), atol=1e-9)


def test_a_large_strength_takes_the_best_prompt_and_stays_finite(problem):
    best = [problem.prompts[label][weighed(problem, label, 1.0)[0].argmax()] for label in range(4)]
    for dtype, tolerance in (("float32", 1e-4), ("float64", 1e-9)):
        found = fitted(problem, alpha=0.0, strength=1e5, dtype=dtype).logits(problem.Q)
        expected = SCALE * problem.Q @ np.stack(best).T
        np.testing.assert_allclose(found, expected[:, problem.order], atol=tolerance)


def test_a_class_without_shots_has_the_mean_of_its_prompts_alone():
    problem = Problem((4, 3, 3, 0))
    model, column = fitted(problem), list(problem.order).index(3)
    said, votes = model._learned.scores(torch.tensor(problem.Q), model._chosen).numpy()
    text = unit(problem.prompts[3].mean(0))
    np.testing.assert_allclose(said[:, column], SCALE * problem.Q @ text, atol=1e-9)
    others = np.delete(votes, column, axis=1)
    np.testing.assert_allclose(votes[:, column], others.mean(1), atol=1e-9)


def test_alpha_and_strength_are_chosen_where_held_out_shots_are_best(problem):
    model = fitted(problem, alpha="auto", strength="auto", n_folds=3)
    assert len(model.search_["strength"]) == len(TIMOClassifier._shapes["strength"])
    assert model.search_["score"].argmin() == 0
    assert (model.strength_, model.alpha_) == tuple(
        model.search_[name][0] for name in ("strength", "alpha")
    )
    assert set(model.search_["gain"]) == {1.0}
    assert model.loo_.protocol.startswith("3-fold cross-validation")


def test_what_it_says_of_its_shots_is_learned_anew_in_folds(problem):
    """A fold's shots weigh no prompt and are in no discriminant."""
    model = fitted(problem, n_folds=2)
    fold = model._shots.folds(2, 0).numpy()
    for k in (0, 1):
        part = TIMOClassifier(
            text_prior=problem.prior, prompt_vectors=problem.vectors, alpha=0.7, **HERE
        ).fit(problem.X[fold != k], problem.y[fold != k])
        expected = part.logits(problem.X[fold == k])
        np.testing.assert_allclose(model.loo_.logits[fold == k], expected, atol=1e-9)


def test_one_shot_takes_what_is_shipped():
    model = fitted(Problem((1, 1, 1, 1)), alpha="auto")
    assert model.alpha_ == TIMOClassifier._defaults["alpha"]


def test_the_order_of_rows_means_nothing(problem):
    order = np.random.default_rng(5).permutation(len(problem.X))
    options = {"text_prior": problem.prior, "prompt_vectors": problem.vectors} | HERE
    one = TIMOClassifier(**options).fit(problem.X, problem.y)
    other = TIMOClassifier(**options).fit(problem.X[order], problem.y[order])
    np.testing.assert_allclose(one.logits(problem.Q), other.logits(problem.Q), atol=1e-7)


def test_mistakes_are_one_sentence(problem):
    with pytest.raises(DataError, match="TIMOClassifier needs text"):
        TIMOClassifier().fit(problem.X, problem.y)
    for wrong in (None, [problem.prompts]):
        with pytest.raises(DataError, match="needs the vectors of each class's prompts"):
            fitted(problem, prompt_vectors=wrong)
    with pytest.raises(DataError, match="no prompts of class 'fir'"):
        fitted(problem, prompt_vectors={n: problem.vectors[n] for n in NAMES if n != "fir"})
    with pytest.raises(DataError, match=r"class 'ash' must have shape \(prompts, 12\), got \(3,"):
        fitted(problem, prompt_vectors=problem.vectors | {"ash": np.ones(3)})
    with pytest.raises(DataError, match=r"Row 1 of prompt_vectors\['ash'\] is all zeros"):
        fitted(problem, prompt_vectors=problem.vectors | {"ash": np.eye(12)[:2] * [[1], [0]]})
    with pytest.raises(DataError, match="strength of TIMOClassifier must be"):
        fitted(problem, strength=-1.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_and_cpu_agree(problem):
    cpu, gpu = (
        fitted(problem, alpha="auto", device=device, dtype="float64").predict_proba(problem.Q)
        for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(gpu, cpu, atol=1e-4)
