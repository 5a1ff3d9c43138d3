"""GDA, ProKeR, Tip-X and APE against slow readings of their equations, in float64."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.utils.estimator_checks import check_estimator

from gpcache import DataError, ProtocolError, TextPrior
from gpcache.methods import GPCacheClassifier, TipAdapterClassifier
from gpcache.methods.ape import APEClassifier, channel_merit
from gpcache.methods.cache.shots import Shots
from gpcache.methods.gda import GDAClassifier
from gpcache.methods.proker import ProKeRClassifier
from gpcache.methods.tip_x import TipXClassifier

# In float64, which is the default on a CPU only.
HERE = {"device": "cpu"}
FIXED = {
    GDAClassifier: {"alpha": 0.7},
    ProKeRClassifier: {"beta": 2.0, "lam": 0.3},
    TipXClassifier: {"alpha": 3.0, "beta": 2.0, "gamma": 0.8},
    APEClassifier: {"alpha": 3.0, "beta": 2.0, "gamma": 0.4},
}
SCALE = 20.0


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


class Problem:
    """Unequal shots of four classes with text, 12 columns; queries beside them."""

    def __init__(self, shots=(4, 3, 2, 3), seed=0, spread=1.5):
        generator = np.random.default_rng(seed)
        self.text = unit(generator.normal(size=(4, 12)))
        self.labels = np.repeat(np.arange(4), shots)
        noise = generator.normal(size=(len(self.labels), 12))
        self.X = unit(4 * self.text[self.labels] + spread * noise)
        self.views = unit(self.X[:, None] + 0.2 * generator.normal(size=(len(self.X), 3, 12)))
        self.truth = generator.integers(0, 4, 40)
        self.Q = unit(4 * self.text[self.truth] + spread * generator.normal(size=(40, 12)))
        self.prior = TextPrior(list(range(4)), self.text, SCALE)
        self.hot = np.eye(4)[self.labels]
        self.zero_shot = SCALE * self.Q @ self.text.T


@pytest.fixture
def problem():
    return Problem()


def fitted(method, problem, **options):
    model = method(text_prior=problem.prior, **HERE, **FIXED[method] | options)
    return model.fit(problem.X, problem.labels)


def test_gda_is_its_equation(problem):
    n, d = problem.X.shape
    means = np.stack([problem.X[problem.labels == label].mean(0) for label in range(4)])
    sigma = np.zeros((d, d))
    for row, label in zip(problem.X, problem.labels, strict=True):
        sigma += np.outer(row - means[label], row - means[label]) / (n - 1)
    precision = d * np.linalg.inv((n - 1) * sigma + np.trace(sigma) * np.eye(d))
    weight = means @ precision
    offset = [-0.5 * mean @ precision @ mean - math.log(4) for mean in means]
    expected = problem.zero_shot + 0.7 * (problem.Q @ weight.T + offset)
    np.testing.assert_allclose(
        fitted(GDAClassifier, problem).logits(problem.Q), expected, atol=1e-9
    )


def test_gda_of_one_sample_a_class_is_the_nearest_mean():
    """Nothing is known of the scatter: the precision is d · I, which the shipped weight suits."""
    problem = Problem((1, 1, 1, 1))
    offset = -0.5 * 12 - math.log(4)
    expected = problem.zero_shot + 0.7 * (12 * problem.Q @ problem.X.T + offset)
    found = fitted(GDAClassifier, problem).logits(problem.Q)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_gda_takes_every_view_as_a_sample(problem):
    model = GDAClassifier(text_prior=problem.prior, **HERE, alpha=0.7)
    model.fit(problem.X, problem.labels, views=problem.views)
    flat = GDAClassifier(text_prior=problem.prior, **HERE, alpha=0.7)
    flat.fit(problem.views.reshape(-1, 12), np.repeat(problem.labels, 3))
    np.testing.assert_allclose(model.logits(problem.Q), flat.logits(problem.Q), atol=1e-9)


def test_proker_is_its_equation(problem):
    K = np.exp(-2.0 * (1 - problem.X @ problem.X.T))
    k = np.exp(-2.0 * (1 - problem.Q @ problem.X.T))
    residual = problem.hot - problem.X @ problem.text.T
    weights = np.linalg.inv(K / 0.3 + np.eye(len(K))) @ residual
    expected = SCALE * (problem.Q @ problem.text.T + k @ weights)
    found = fitted(ProKeRClassifier, problem).logits(problem.Q)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_proker_is_the_prior_mean_process_scaled_by_its_noise(problem):
    """λ times the posterior mean of a Gaussian process on the same residuals."""
    process = GPCacheClassifier.from_options(
        likelihood="gaussian",
        beta=2.0,
        noise=0.3,
        alpha=1.0,
        kernel_space="raw",
        prior="zero_shot",
        **HERE,
    )
    residual = problem.hot - problem.X @ problem.text.T
    process.fit(problem.X, problem.labels)
    values = torch.tensor(residual)
    mean = process.fitted_.model.precision.with_values(values).mean(torch.tensor(problem.Q))
    expected = problem.zero_shot + SCALE * 0.3 * mean.numpy()
    found = fitted(ProKeRClassifier, problem).logits(problem.Q)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_tip_x_is_its_equation(problem):
    def said(row):
        odds = np.exp(row @ problem.text.T / 0.5)
        return odds / odds.sum()

    def divergence(one, other):
        p, q = said(one), said(other)
        return float(sum(p * np.log(p / q)))

    among = np.array([[divergence(a, b) for b in problem.X] for a in problem.X])
    cosines = problem.X @ problem.X.T
    expected = problem.zero_shot.copy()
    for row, query in enumerate(problem.Q):
        for key, label in zip(problem.X, problem.labels, strict=True):
            share = (divergence(query, key) - among.min()) / (among.max() - among.min())
            likeness = cosines.min() + share * (cosines.max() - cosines.min())
            vote = 3.0 * math.exp(-2.0 * (1 - query @ key)) - 0.8 * likeness
            expected[row, label] += vote
    np.testing.assert_allclose(
        fitted(TipXClassifier, problem).logits(problem.Q), expected, atol=1e-9
    )


def test_tip_x_without_its_second_vote_is_tip_adapter(problem):
    options = {"alpha": 3.0, "beta": 2.0}
    tip = TipAdapterClassifier.from_options(text_prior=problem.prior, **HERE, **options).fit(
        problem.X, problem.labels
    )
    found = fitted(TipXClassifier, problem, gamma=0.0)
    np.testing.assert_allclose(found.logits(problem.Q), tip.logits(problem.Q), atol=1e-9)


@pytest.mark.parametrize("shots", [(3, 3, 3, 3), (4, 3, 2, 3)])
def test_ape_scores_channels_by_its_loops(shots):
    """Products of all vectors of different classes; each pair of classes counts alike."""
    problem = Problem(shots)
    vectors = [
        np.vstack([problem.text[label], problem.X[problem.labels == label]]) for label in range(4)
    ]
    alike = np.zeros(12)
    for a, b in itertools.permutations(range(4), 2):
        products = [one * other for one in vectors[a] for other in vectors[b]]
        alike += np.mean(products, 0) / 12
    expected = 0.6 * problem.text.var(0, ddof=1) - 0.4 * alike
    labels = torch.tensor(problem.labels)
    made = Shots(torch.tensor(problem.X), labels, 4, None)
    found = channel_merit(made, torch.tensor(problem.text), 0.4, 0.6)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_ape_is_its_equation(problem):
    labels = torch.tensor(problem.labels)
    made = Shots(torch.tensor(problem.X), labels, 4, None)
    merit = channel_merit(made, torch.tensor(problem.text), 0.5, 0.5).numpy()
    kept = np.argsort(-merit)[: round(0.7 * 12)]
    keys, queries = unit(problem.X[:, kept]), unit(problem.Q[:, kept])
    odds = np.exp(keys @ unit(problem.text[:, kept]).T)
    said = odds / odds.sum(1, keepdims=True)
    expected = problem.zero_shot.copy()
    for row, query in enumerate(queries):
        for key, label, p in zip(keys, problem.labels, said, strict=True):
            surprise = math.log2((1 + 1e-6) / (p[label] + 1e-6))
            vote = math.exp(-2.0 * (1 - query @ key)) * math.exp(0.4 * surprise)
            expected[row, label] += 3.0 * vote
    np.testing.assert_allclose(
        fitted(APEClassifier, problem).logits(problem.Q), expected, atol=1e-9
    )


def test_ape_with_all_channels_and_no_trust_is_tip_adapter(problem):
    tip = TipAdapterClassifier.from_options(text_prior=problem.prior, **HERE, alpha=3.0, beta=2.0)
    tip.fit(problem.X, problem.labels)
    found = fitted(APEClassifier, problem, gamma=0.0, channels=1.0)
    np.testing.assert_allclose(found.logits(problem.Q), tip.logits(problem.Q), atol=1e-9)


@pytest.mark.parametrize("method", FIXED)
def test_the_weight_minimises_the_smoothed_nll_of_held_out_folds(method, problem):
    """The folds learned anew by hand at the chosen shape; α and temperature by a minimiser."""
    model = method(text_prior=problem.prior, **HERE, alpha="auto", n_folds=3)
    model.fit(problem.X, problem.labels)
    shape = {name: getattr(model, f"{name}_") for name in FIXED[method] if name != "alpha"}
    labels = torch.tensor(problem.labels)
    made = Shots(torch.tensor(problem.X), labels, 4, None)
    fold = made.folds(3, 0).numpy()
    held = np.concatenate([np.flatnonzero(fold == k) for k in np.unique(fold[fold >= 0])])

    def loss(alpha):
        parts = []
        for k in np.unique(fold[fold >= 0]):
            part = method(text_prior=problem.prior, **HERE, **shape, alpha=alpha)
            part.fit(problem.X[fold != k], problem.labels[fold != k])
            parts.append(part.logits(problem.X[fold == k]))
        logits = np.concatenate(parts)
        truth = problem.labels[held]
        n, c = logits.shape
        target = np.full((n, c), 1 / (n + 2) / (c - 1))
        target[np.arange(n), truth] = 1 - 1 / (n + 2)

        def tempered(x):
            scaled = math.exp(x) * logits
            scaled = scaled - scaled.max(1, keepdims=True)
            logged = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
            return -(target * logged).sum(1).mean()

        return minimize_scalar(tempered, bounds=(-9, 9), method="bounded").fun

    best = minimize_scalar(lambda x: loss(math.exp(x)), bounds=(-9, 9), method="bounded")
    assert loss(model.alpha_) <= best.fun + 1e-5
    assert model.loo_.counted.all()
    assert model.loo_.protocol.startswith("3-fold cross-validation")


@pytest.mark.parametrize("method", FIXED)
def test_a_validation_set_decides_where_it_is_given(method, problem):
    options = dict.fromkeys(FIXED[method], "auto")
    for criterion in ("nll", "accuracy"):
        model = method(text_prior=problem.prior, **HERE, criterion=criterion, **options)
        model.fit(problem.X, problem.labels, validation=(problem.Q, problem.truth))
        for column in ("nll", "accuracy", "score", *FIXED[method]):
            assert len(model.search_[column]) == len(model.search_["score"])
        best = model.search_["score"].argmin()
        assert best == 0
        if criterion == "accuracy":
            assert model.search_["accuracy"][0] == model.search_["accuracy"].max()
            assert model.score(problem.Q, problem.truth) == model.search_["accuracy"][0]


@pytest.mark.parametrize("method", FIXED)
def test_one_shot_takes_what_is_shipped(method):
    problem = Problem((1, 1, 1, 1))
    model = method(text_prior=problem.prior, **HERE).fit(problem.X, problem.labels)
    assert {name: getattr(model, f"{name}_") for name in method._defaults} == method._defaults
    assert np.isfinite(model.predict_proba(problem.Q)).all()


@pytest.mark.parametrize("method", FIXED)
def test_a_class_without_shots_is_still_answered_by_its_text(method):
    problem = Problem((4, 3, 3, 0))
    model = method(text_prior=problem.prior, **HERE).fit(problem.X, problem.labels)
    assert model.predict_proba(problem.text).argmax(1)[3] == 3


@pytest.mark.parametrize("method", FIXED)
def test_the_order_of_rows_means_nothing(method, problem):
    order = np.random.default_rng(5).permutation(len(problem.X))
    one = method(text_prior=problem.prior, **HERE).fit(problem.X, problem.labels)
    other = method(text_prior=problem.prior, **HERE).fit(problem.X[order], problem.labels[order])
    np.testing.assert_allclose(one.logits(problem.Q), other.logits(problem.Q), atol=1e-7)


@pytest.mark.parametrize("method", FIXED)
def test_mistakes_are_one_sentence(method, problem):
    if method is not GDAClassifier:
        with pytest.raises(DataError, match=f"{method.__name__} needs text"):
            method().fit(problem.X, problem.labels)
    with pytest.raises(DataError, match=f"alpha of {method.__name__} must be 'auto' or a number"):
        method(text_prior=problem.prior, **HERE, alpha=-1).fit(problem.X, problem.labels)
    with pytest.raises(ProtocolError, match="chooses on a validation set"):
        method(text_prior=problem.prior, **HERE, selection="validation").fit(
            problem.X, problem.labels
        )
    views = "views must have shape" if method.learns_from_views else "takes one vector per image"
    with pytest.raises(DataError, match=views):
        method(text_prior=problem.prior, **HERE).fit(problem.X, problem.labels, views=problem.X)


def test_gda_passes_the_checks_of_scikit_learn():
    check_estimator(GDAClassifier(**HERE))
