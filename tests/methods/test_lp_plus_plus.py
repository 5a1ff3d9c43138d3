"""LP++ against autograd and torch's own SGD, its limits, and classes without shots."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from gpcache import DataError
from gpcache.methods.lp_plus_plus import LPPlusPlusClassifier

spec = importlib.util.spec_from_file_location("text_off", Path(__file__).with_name("text_off.py"))
text_off = importlib.util.module_from_spec(spec)
spec.loader.exec_module(text_off)
Problem, SCALE, unit = text_off.Problem, text_off.SCALE, text_off.unit

HERE = {"device": "cpu"}


@pytest.fixture
def problem():
    return Problem()


def fitted(problem, **options):
    model = LPPlusPlusClassifier(text_prior=problem.prior, **HERE | options)
    return model.fit(problem.X, problem.labels)


def start_of(problem):
    """Class means, and 2.5 s times the mean over classes of their mean cosine with the text."""
    means, cosines = [], []
    for label in range(4):
        rows = problem.X[problem.labels == label]
        means.append(rows.mean(0))
        cosines.append(np.mean([row @ problem.text[label] for row in rows]))
    return np.stack(means), 2.5 * SCALE * np.mean(cosines)


@pytest.mark.parametrize("epochs", [1, 9, 10, 25])
def test_it_is_gradient_descent_at_the_stated_steps(epochs, problem):
    X, labels, text = (torch.tensor(x) for x in (problem.X, problem.labels, problem.text))
    means, mixture = start_of(problem)
    w = torch.tensor(means, requires_grad=True)
    b = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    a = torch.full((4,), mixture, dtype=torch.float64, requires_grad=True)
    n = len(X)
    largest = np.linalg.eigvalsh(problem.X.T @ problem.X).max()
    columns = [sum((row @ t) ** 2 for row in problem.X) for t in problem.text]
    optimiser = torch.optim.SGD([w, b], lr=4 * n / largest, momentum=0.9)

    def head(rows):
        return rows @ w.T + b + a * (rows @ text.T)

    for epoch in range(1, epochs + 1):
        optimiser.zero_grad()
        a.grad = None
        torch.nn.functional.cross_entropy(head(X), labels).backward()
        optimiser.step()
        if epoch % 10 == 0:
            a.data -= n / (4 * max(columns)) * a.grad
    expected = head(torch.tensor(problem.Q)).detach().numpy()
    np.testing.assert_allclose(
        fitted(problem, epochs=epochs).logits(problem.Q), expected, atol=1e-9
    )


def test_as_published_starts_at_sums_and_adds_up_the_gradients_of_the_mixture(problem):
    X, labels, text = (torch.tensor(x) for x in (problem.X, problem.labels, problem.text))
    fitted_model = fitted(problem, epochs=21, as_published=True)
    start = fitted(problem, epochs=0, as_published=True)._learned._after(0)
    sums = [problem.X[problem.labels == label].sum(0) for label in range(4)]
    np.testing.assert_allclose(start.weight, np.stack(sums), atol=1e-12)
    assert 0 < float(start.offset.abs().max()) <= 12**-0.5
    w, b, a = (part.clone().requires_grad_() for part in start)
    largest = np.linalg.eigvalsh(problem.X.T @ problem.X).max()
    optimiser = torch.optim.SGD([w, b], lr=4 * len(X) / largest, momentum=0.9)
    step = len(X) / (4 * float((X @ text.T).square().sum(0).max()))
    for epoch in range(1, 22):
        optimiser.zero_grad()
        logits = X @ w.T + b + a * (X @ text.T)
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimiser.step()
        if epoch % 10 == 0:
            a.data -= step * a.grad  # never set to zero
    queries = torch.tensor(problem.Q)
    expected = (queries @ w.T + b + a * (queries @ text.T)).detach().numpy()
    np.testing.assert_allclose(fitted_model.logits(problem.Q), expected, atol=1e-9)


def test_untrained_it_is_the_means_and_the_text(problem):
    means, mixture = start_of(problem)
    expected = problem.Q @ means.T + mixture * problem.Q @ problem.text.T
    np.testing.assert_allclose(fitted(problem, epochs=0).logits(problem.Q), expected, atol=1e-9)


def test_every_view_is_a_sample(problem):
    views = unit(problem.X[:, None] + 0.1 * np.random.default_rng(1).normal(size=(12, 3, 12)))
    options = {"text_prior": problem.prior, "epochs": 12, **HERE}
    model = LPPlusPlusClassifier(**options).fit(problem.X, problem.labels, views=views)
    flat = LPPlusPlusClassifier(**options)
    flat.fit(views.reshape(-1, 12), np.repeat(problem.labels, 3))
    np.testing.assert_allclose(model.logits(problem.Q), flat.logits(problem.Q), atol=1e-9)


def test_the_epochs_are_those_of_the_best_held_out_score(problem):
    model = fitted(problem)
    assert model.search_["score"].argmin() == 0
    assert model.epochs_ == model.search_["epochs"][0]
    assert model.loo_.protocol.startswith("4-fold cross-validation")
    again = fitted(problem, epochs=int(model.epochs_))
    np.testing.assert_array_equal(model.logits(problem.Q), again.logits(problem.Q))


def test_a_validation_set_decides_where_it_is_given(problem):
    model = LPPlusPlusClassifier(text_prior=problem.prior, criterion="accuracy", **HERE)
    model.fit(problem.X, problem.labels, validation=(problem.Q, problem.truth))
    scores = {
        epochs: fitted(problem, epochs=int(epochs)).score(problem.Q, problem.truth)
        for epochs in LPPlusPlusClassifier._shapes["epochs"]
    }
    assert scores[model.epochs_] == max(scores.values())


def test_a_class_without_shots_keeps_its_text():
    problem = Problem((4, 3, 3, 0))
    cosines = [problem.X[problem.labels == y] @ problem.text[y] for y in range(3)]
    mixture = 2.5 * SCALE * np.mean([one.mean() for one in cosines])
    for epochs in (0, 40):
        model = fitted(problem, epochs=epochs)
        weight, offset, _ = (part.numpy() for part in model._learned._after(epochs))
        assert not weight[3].any()
        votes = (problem.Q @ weight.T + offset)[:, :3].mean(1)
        expected = mixture * problem.Q @ problem.text[3] + votes
        np.testing.assert_allclose(model.logits(problem.Q)[:, 3], expected, atol=1e-9)


def test_one_shot_takes_what_is_shipped():
    model = fitted(Problem((1, 1, 1, 1)))
    assert model.epochs_ == LPPlusPlusClassifier._defaults["epochs"]
    assert model.temperature_ == 1.0


def test_the_order_of_rows_means_nothing(problem):
    order = np.random.default_rng(5).permutation(len(problem.X))
    other = LPPlusPlusClassifier(text_prior=problem.prior, **HERE)
    other.fit(problem.X[order], problem.labels[order])
    np.testing.assert_allclose(
        fitted(problem).logits(problem.Q), other.logits(problem.Q), atol=1e-7
    )


def test_mistakes_are_one_sentence(problem):
    with pytest.raises(DataError, match="LPPlusPlusClassifier needs text"):
        LPPlusPlusClassifier().fit(problem.X, problem.labels)
    with pytest.raises(DataError, match=r"epochs must be a whole number of 0 or more, got 2\.5"):
        fitted(problem, epochs=2.5)
    with pytest.raises(DataError, match="epochs of LPPlusPlusClassifier must be"):
        fitted(problem, epochs=-1)
