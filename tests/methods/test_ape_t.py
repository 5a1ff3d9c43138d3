"""APE-T against plain autograd, at step 0 against Tip-Adapter, and with a validation set."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from gpcache import DataError
from gpcache.methods import TipAdapterClassifier
from gpcache.methods.ape import APETClassifier
from gpcache.methods.cache.shots import Shots

spec = importlib.util.spec_from_file_location("text_off", Path(__file__).with_name("text_off.py"))
text_off = importlib.util.module_from_spec(spec)
spec.loader.exec_module(text_off)
Problem, SCALE, unit = text_off.Problem, text_off.SCALE, text_off.unit

HERE = {"device": "cpu"}


@pytest.fixture
def problem():
    return Problem()


def fitted(problem, **options):
    options = {"alpha": 3.0, "beta": 2.0, "calibrate": False} | HERE | options
    return APETClassifier(text_prior=problem.prior, **options).fit(problem.X, problem.labels)


def by_hand(problem, *, epochs, share=0.8, queries=None, labels=None):
    """Training on all queries at once by torch alone; the channels by loops over the text."""
    alike = np.zeros(12)
    for a in range(4):
        for b in range(4):
            if a != b:
                alike += problem.text[a] * problem.text[b] / 12
    merit = 0.8 * problem.text.var(0, ddof=1) - 0.2 * alike
    kept = torch.tensor(np.argsort(-merit)[: round(share * 12)].copy())
    X, text = torch.tensor(problem.X), torch.tensor(problem.text)
    owners = torch.tensor(problem.labels)
    queries = X if queries is None else torch.tensor(queries)
    labels = owners if labels is None else torch.tensor(labels)
    residual = torch.zeros(4, len(kept), dtype=torch.float64, requires_grad=True)
    counts = np.bincount(problem.labels)
    trust = torch.tensor(counts.mean() / counts[problem.labels], requires_grad=True)

    def head(rows):
        moved, keys = text.clone(), X.clone()
        moved[:, kept] = moved[:, kept] + residual
        keys[:, kept] = keys[:, kept] + residual[owners]
        logits = SCALE * rows @ moved.T
        for i, owner in enumerate(owners.tolist()):
            vote = 3.0 * trust[i] * torch.exp(-2.0 * (1 - rows @ keys[i]))
            logits = logits + vote[:, None] * torch.eye(4, dtype=torch.float64)[owner]
        return logits

    optimiser = torch.optim.AdamW([residual, trust], lr=1e-3, weight_decay=0.1, eps=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(head(queries), labels).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return head(torch.tensor(problem.Q)).numpy()


@pytest.mark.parametrize("share", [0.8, 0.3])
def test_it_is_plain_autograd(share, problem):
    expected = by_hand(problem, epochs=15, share=share)
    found = fitted(problem, epochs=15, channels=share).logits(problem.Q)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_views_are_the_queries_and_shots_stay_the_keys(problem):
    views = unit(problem.X[:, None] + 0.1 * np.random.default_rng(1).normal(size=(12, 3, 12)))
    flat, labels = views.reshape(-1, 12), np.repeat(problem.labels, 3)
    expected = by_hand(problem, epochs=8, queries=flat, labels=labels)
    model = APETClassifier(
        text_prior=problem.prior, alpha=3.0, beta=2.0, epochs=8, calibrate=False, **HERE
    )
    model.fit(problem.X, problem.labels, views=views)
    np.testing.assert_allclose(model.logits(problem.Q), expected, atol=1e-9)


@pytest.mark.parametrize("shots", [(3, 3, 3, 3), (1, 1, 1, 1)])
def test_untrained_it_is_tip_adapter_at_the_papers_first_numbers(shots):
    problem = Problem(shots)
    tip = TipAdapterClassifier.from_options(text_prior=problem.prior, alpha=2.0, beta=1.0, **HERE)
    tip.fit(problem.X, problem.labels)
    model = fitted(problem, alpha="auto", beta="auto", epochs=0)
    assert (model.alpha_, model.beta_) == (2.0, 1.0)
    np.testing.assert_allclose(model.logits(problem.Q), tip.logits(problem.Q), atol=1e-9)


def test_a_class_without_shots_keeps_its_text():
    problem = Problem((4, 3, 3, 0))
    model = fitted(problem, epochs=20, learning_rate=0.01)
    found, text = model.logits(problem.Q), model.parameters_[0].numpy()
    votes = found - SCALE * problem.Q @ text.T
    np.testing.assert_allclose(text[3], problem.text[3], atol=1e-12)
    np.testing.assert_allclose(votes[:, 3], votes[:, :3].mean(1), atol=1e-9)


def smoothed(logits, truth):
    logged = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    target = np.full(logged.shape, 1 / (82 * 3))
    target[np.arange(80), truth] = 1 - 1 / 82
    return -(target * logged).sum(1).mean()


def test_a_validation_set_searches_again_after_training(problem):
    model = APETClassifier(text_prior=problem.prior, epochs=20, learning_rate=0.02, **HERE)
    model.fit(problem.X, problem.labels, validation=(problem.Q, problem.truth))
    text, keys, trust, owners, _ = (one.numpy() for one in model.parameters_)

    def loss(alpha, beta):
        votes = np.exp(-beta * (1 - problem.Q @ keys.T)) * trust @ np.eye(4)[owners]
        return smoothed(SCALE * problem.Q @ text.T + alpha * votes, problem.truth)

    best = loss(model.alpha_, model.beta_)
    np.testing.assert_allclose(smoothed(model.logits(problem.Q), problem.truth), best)
    tried = [
        loss(alpha, beta)
        for beta in (0.25, 0.5, 1, 2, 4)
        for alpha in np.linspace(0, 3 * max(model.alpha_, 2.0), 61)
    ]
    assert best <= min(tried) + 1e-9


def test_given_numbers_are_kept_also_with_a_validation_set(problem):
    model = APETClassifier(text_prior=problem.prior, alpha=3.0, beta=2.0, epochs=3, **HERE)
    model.fit(problem.X, problem.labels, validation=(problem.Q, problem.truth))
    assert (model.alpha_, model.beta_) == (3.0, 2.0)


def test_what_it_says_of_its_shots_is_trained_anew_in_folds(problem):
    model = fitted(problem, epochs=5, n_folds=2, calibrate=True)
    assert model.loo_.protocol.startswith("2-fold cross-validation")
    assert model.loo_.counted.all()
    labels = torch.tensor(problem.labels)
    shots = Shots(torch.tensor(problem.X), labels, 4, None)
    fold = shots.folds(2, 0).numpy()
    for k in (0, 1):
        part = APETClassifier(
            text_prior=problem.prior, alpha=3.0, beta=2.0, epochs=5, calibrate=False, **HERE
        ).fit(problem.X[fold != k], problem.labels[fold != k])
        expected = part.logits(problem.X[fold == k])
        np.testing.assert_allclose(model.loo_.logits[fold == k], expected, atol=1e-9)


def test_the_same_seed_trains_the_same_and_another_one_does_not(problem):
    one, same, other = (
        fitted(problem, epochs=4, batch_size=5, random_state=seed).logits(problem.Q)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-6


def test_parameters_are_all_that_an_answer_needs(problem):
    model = fitted(problem, epochs=5)
    other = APETClassifier(text_prior=problem.prior, **HERE)
    other._device, other._dtype, other.classes_ = model._device, model._dtype, model.classes_
    other._read_text()
    other._take(model.parameters_)
    other.n_features_in_ = 12
    np.testing.assert_array_equal(other.logits(problem.Q), model.logits(problem.Q))
    assert (other.alpha_, other.beta_) == (3.0, 2.0)


def test_mistakes_are_one_sentence(problem):
    with pytest.raises(DataError, match="APETClassifier needs text"):
        APETClassifier().fit(problem.X, problem.labels)
    with pytest.raises(DataError, match="beta of APETClassifier must be 'auto' or a number above"):
        fitted(problem, beta=0.0)
    with pytest.raises(DataError, match="alpha of APETClassifier must be 'auto' or a number of"):
        fitted(problem, alpha=-1.0)
    with pytest.raises(DataError, match="channels of APETClassifier is a share of at most 1"):
        fitted(problem, channels=1.5)
