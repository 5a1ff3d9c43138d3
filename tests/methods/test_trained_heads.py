"""TaskRes, CLIP-Adapter, CLAP and the linear probe against plain autograd and scikit-learn."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

from gpcache import DataError
from gpcache.methods import (
    CLAPClassifier,
    CLIPAdapterClassifier,
    LinearProbeClassifier,
    TaskResClassifier,
    ZeroShotClassifier,
)
from gpcache.methods.cache.shots import Shots
from gpcache.methods.clap import class_trust
from gpcache.methods.state import restore, state_of
from gpcache.metrics import Calibration

spec = importlib.util.spec_from_file_location("text_off", Path(__file__).with_name("text_off.py"))
text_off = importlib.util.module_from_spec(spec)
spec.loader.exec_module(text_off)
Problem, SCALE, unit = text_off.Problem, text_off.SCALE, text_off.unit

HERE = {"device": "cpu"}
HEADS = [TaskResClassifier, CLIPAdapterClassifier, CLAPClassifier]


@pytest.fixture
def problem():
    return Problem(queries=200)


def by_hand(head, problem, optimiser, *, epochs, penalty=None, warm_up=0):
    """Full-batch training by torch alone, cosine per step."""
    X, labels = torch.tensor(problem.X), torch.tensor(problem.labels)
    rate = optimiser.param_groups[0]["lr"]
    warm = torch.optim.lr_scheduler.ConstantLR(optimiser, 1e-5 / rate, total_iters=warm_up)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs - warm_up)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimiser, [warm, cosine], [warm_up])
    if not warm_up:
        optimiser.param_groups[0]["lr"] = rate
    for _ in range(epochs):
        loss = torch.nn.functional.cross_entropy(head(X), labels)
        loss = loss if penalty is None else loss + penalty()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return head(torch.tensor(problem.Q)).numpy()


def test_task_res_is_plain_autograd(problem):
    text = torch.tensor(problem.text)
    x = torch.zeros_like(text, requires_grad=True)

    def head(rows):
        return SCALE * rows @ torch.nn.functional.normalize(10 * text + 0.5 * x, dim=1).T

    optimiser = torch.optim.Adam([x], lr=2e-3, weight_decay=5e-4)
    expected = by_hand(head, problem, optimiser, epochs=30, warm_up=1)
    model = TaskResClassifier(text_prior=problem.prior, epochs=30, **HERE)
    found = model.fit(problem.X, problem.labels).logits(problem.Q)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_clip_adapter_is_plain_autograd(problem):
    start = CLIPAdapterClassifier(text_prior=problem.prior, epochs=0, **HERE)
    start.fit(problem.X, problem.labels)
    first, second = (one.clone().requires_grad_() for one in start.parameters_)
    assert first.shape == (3, 12)
    assert float(first.detach().abs().max()) <= 12**-0.5

    def head(rows):
        adapted = torch.relu(torch.relu(rows @ first.T) @ second.T)
        mixed = torch.nn.functional.normalize(0.2 * adapted + 0.8 * rows, dim=1)
        return SCALE * mixed @ torch.tensor(problem.text).T

    optimiser = torch.optim.AdamW([first, second], lr=1e-3, weight_decay=0.0, eps=1e-4)
    expected = by_hand(head, problem, optimiser, epochs=30)
    model = CLIPAdapterClassifier(text_prior=problem.prior, epochs=30, **HERE)
    found = model.fit(problem.X, problem.labels).logits(problem.Q)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_clap_is_plain_autograd(problem):
    """From text of length ten, as CLIP's encoder gives it before it is scaled."""
    text = 10 * torch.tensor(problem.text)
    w = text.clone().requires_grad_()
    odds = np.exp(SCALE * problem.X @ problem.text.T)
    own = (odds / odds.sum(1, keepdims=True))[np.arange(len(problem.X)), problem.labels]
    trust = torch.tensor([own[problem.labels == label].mean() for label in range(4)])

    def head(rows):
        return SCALE * rows @ torch.nn.functional.normalize(w, dim=1).T

    def penalty():
        return (trust * (w - text).square().sum(1)).mean()

    optimiser = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    expected = by_hand(head, problem, optimiser, epochs=30, penalty=penalty, warm_up=1)
    model = CLAPClassifier(text_prior=problem.prior, epochs=30, **HERE)
    found = model.fit(problem.X, problem.labels).logits(problem.Q)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_clap_trusts_the_text_of_a_class_without_shots():
    labels = torch.tensor([0, 0, 2])
    shots = Shots(torch.eye(3), labels, 3, 2 * torch.eye(3))
    assert class_trust(shots)[1] == 1


@pytest.mark.parametrize("head", HEADS)
def test_untrained_it_is_zero_shot_or_near_it(head, problem):
    """TaskRes and CLAP start at the text; an adapter of ratio 0 changes nothing."""
    options = {"ratio": 0.0} if head is CLIPAdapterClassifier else {}
    model = head(text_prior=problem.prior, epochs=0, **HERE, **options)
    zero_shot = ZeroShotClassifier(text_prior=problem.prior, **HERE)
    expected = zero_shot.fit(problem.X, problem.labels).logits(problem.Q)
    found = model.fit(problem.X, problem.labels).logits(problem.Q)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("head", HEADS)
def test_training_pays_where_the_text_is_off(head, problem):
    zero_shot = ZeroShotClassifier(text_prior=problem.prior, **HERE).fit(problem.X, problem.labels)
    model = head(text_prior=problem.prior, **HERE).fit(problem.X, problem.labels)
    assert model.training_loss_[-1] < model.training_loss_[0]
    assert model.score(problem.Q, problem.truth) >= zero_shot.score(problem.Q, problem.truth)


@pytest.mark.parametrize("head", HEADS)
def test_what_it_says_of_its_shots_is_trained_anew_in_folds(head, problem):
    model = head(text_prior=problem.prior, epochs=5, n_folds=2, **HERE)
    model.fit(problem.X, problem.labels)
    made = Shots(torch.tensor(problem.X), torch.tensor(problem.labels), 4)
    fold = made.folds(2, 0).numpy()
    for k in (0, 1):
        part = head(text_prior=problem.prior, epochs=5, calibrate=False, **HERE)
        part.fit(problem.X[fold != k], problem.labels[fold != k])
        expected = part.logits(problem.X[fold == k])
        np.testing.assert_allclose(model.loo_.logits[fold == k], expected, atol=1e-9)


@pytest.mark.parametrize("head", HEADS)
def test_views_are_what_is_trained_on(head, problem):
    views = unit(problem.X[:, None] + 0.1)
    model = head(text_prior=problem.prior, epochs=3, calibrate=False, **HERE)
    model.fit(problem.X, problem.labels, views=views)
    other = head(text_prior=problem.prior, epochs=3, calibrate=False, **HERE)
    if head is CLAPClassifier:  # its trust is that of the shots themselves
        return
    other.fit(views[:, 0], problem.labels)
    np.testing.assert_allclose(model.logits(problem.Q), other.logits(problem.Q), atol=1e-9)


@pytest.mark.parametrize("head", HEADS)
def test_one_shot_and_classes_without_any(head):
    problem = Problem((1, 1, 1, 0), queries=200)
    model = head(text_prior=problem.prior, epochs=3, **HERE).fit(problem.X, problem.labels)
    assert model.temperature_ == 1.0
    assert model.predict_proba(problem.text).argmax(1)[3] == 3


@pytest.mark.parametrize("head", HEADS)
def test_a_validation_set_gives_the_temperature(head, problem):
    model = head(text_prior=problem.prior, epochs=3, **HERE)
    model.fit(problem.X, problem.labels, validation=(problem.Q, problem.truth))
    logits = model.logits(problem.Q)

    def loss(temperature, slope=None):
        calibration = Calibration(temperature, model.entropy_slope_ if slope is None else slope)
        logged = calibration.scaled(torch.tensor(logits)).numpy()
        logged = logged - np.log(np.exp(logged).sum(1, keepdims=True))
        target = np.full(logged.shape, 1 / (202 * 3))
        target[np.arange(200), problem.truth] = 1 - 1 / 202
        return -(target * logged).sum(1).mean()

    best, slope = model.temperature_, model.entropy_slope_
    assert loss(best) < min(loss(0.95 * best), loss(1.05 * best))
    pull = 2 / 200  # on the squared slope
    assert loss(best) + pull * slope**2 < min(
        loss(best, slope + step) + pull * (slope + step) ** 2 for step in (-0.05, 0.05)
    )


@pytest.mark.parametrize("head", HEADS)
def test_mistakes_are_one_sentence(head, problem):
    with pytest.raises(DataError, match=f"{head.__name__} needs text"):
        head().fit(problem.X, problem.labels)
    with pytest.raises(DataError, match="epochs must be a whole number"):
        head(text_prior=problem.prior, epochs=-1).fit(problem.X, problem.labels)
    if head is CLIPAdapterClassifier:
        with pytest.raises(DataError, match="ratio of CLIPAdapterClassifier"):
            head(text_prior=problem.prior, ratio=2.0).fit(problem.X, problem.labels)


def probabilities(model, rows):
    odds = np.exp(model.logits(rows))
    return odds / odds.sum(1, keepdims=True)


def wide_problem(n, width, seed=3):
    """Ten classes in a narrow cone, as CLIP's features lie."""
    generator = np.random.default_rng(seed)
    centres = 3 + generator.normal(size=(10, width))

    def near(labels):
        return unit(centres[labels] + 1.5 * generator.normal(size=(len(labels), width)))

    labels, truth = np.arange(n) % 10, np.arange(200) % 10
    return near(labels), labels, near(truth)


@pytest.mark.parametrize("strength", [0.1, 0.5, 1.0, 10.0, 50.0, 100.0, 1000.0])
@pytest.mark.parametrize(("n", "width"), [(40, 64), (120, 32)])
def test_the_linear_probe_is_logistic_regression(strength, n, width):
    """With fewer rows than columns and with more; to the tolerance that its file states."""
    X, labels, queries = wide_problem(n, width)
    other = LogisticRegression(C=strength, tol=1e-10, max_iter=100_000)
    expected = other.fit(X, labels).predict_proba(queries)
    model = LinearProbeClassifier(strength=strength, **HERE).fit(X, labels)
    tolerance = 0.001 if strength <= 100 else 0.005
    np.testing.assert_allclose(probabilities(model, queries), expected, atol=tolerance)


def test_a_probe_says_the_same_whatever_was_asked_before():
    X, labels, queries = wide_problem(40, 16)
    shots = Shots(torch.tensor(X), torch.tensor(labels), 10, None)
    rows = torch.tensor(queries)
    asked, fresh = (LinearProbeClassifier(**HERE)._learn(shots) for _ in range(2))
    for strength in (1000.0, 0.1, 30.0, 50.0):
        asked.scores(rows, {"strength": strength})
    found = asked.scores(rows, {"strength": 100.0})
    assert torch.equal(found, fresh.scores(rows, {"strength": 100.0}))


def test_a_probe_needs_a_strength_above_zero(problem):
    with pytest.raises(DataError, match="strength of LinearProbeClassifier must be"):
        LinearProbeClassifier(strength=0.0, **HERE).fit(problem.X, problem.labels)


def test_the_strength_of_the_probe_is_chosen_where_held_out_shots_are_best(problem):
    model = LinearProbeClassifier(**HERE).fit(problem.X, problem.labels)
    assert model.search_["score"].argmin() == 0
    assert model.strength_ == model.search_["strength"][0]
    assert len(model.search_["strength"]) == 5


def test_the_probe_passes_the_checks_of_scikit_learn():
    check_estimator(LinearProbeClassifier(**HERE))


def test_task_res_trains_the_authors_epochs_from_the_text_of_the_given_length(problem):
    """200 epochs from 8 shots a class on; a shorter text turns further."""
    for rows, epochs in ((slice(None), 100), (np.tile(np.arange(len(problem.X)), 3), 200)):
        model = TaskResClassifier(text_prior=problem.prior, calibrate=False, **HERE)
        model.fit(problem.X[rows], problem.labels[rows])
        assert len(model.training_loss_) == epochs
    turned = []
    for length in (1.0, 10.0):
        prior = replace(problem.prior, length=length)
        model = TaskResClassifier(text_prior=prior, epochs=5, calibrate=False, **HERE)
        model.fit(problem.X, problem.labels)
        turned.append(np.abs(model.logits(problem.Q) - SCALE * problem.Q @ problem.text.T).max())
        again = restore(state_of(model), device="cpu")
        np.testing.assert_array_equal(again.logits(problem.Q), model.logits(problem.Q))
    assert turned[0] > 5 * turned[1]
