"""Small few-shot problems with text, estimators at given numbers, and numpy oracles."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone

from gpcache import GPCacheClassifier, GPCacheError, TextPrior
from gpcache.methods import TipAdapterClassifier
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.softmax import _solved

# Not in sorted order, and the last one has text but no shots.
NAMES = ("oak", "ash", "fir", "elm", "yew")
SHOTS = (5, 3, 4, 2, 0)

# Numbers at which nothing is left to choose.
NUMBERS = {"alpha": 3.0, "beta": 2.5, "noise": 0.2, "gain": 0.8}
SOFTMAX_NUMBERS = {
    "alpha": 3.0,
    "beta": 2.5,
    "tau": 7.0,
    "shrinkage": 0.3,
    "gain": 0.8,
    "discriminant": 0.05,
}
FLOAT64 = {"device": "cpu", "dtype": "float64"}

# Every posterior of GPCache, small enough that an approximation differs from the exact one.
PRECISIONS = {
    "exact": {},
    "grouped": {"precision": "grouped", "n_groups": 2},
    "nystrom": {"precision": "nystrom", "n_landmarks": 10},
    "nystrom-consistent": {"precision": "nystrom", "n_landmarks": 10, "cross": "consistent"},
    "fourier": {"precision": "fourier", "n_features": 64},
    "class_mean": {"precision": "class_mean"},
    "unweighted": {"precision_weighting": False},
}


@dataclass(frozen=True)
class Problem:
    """Shots X (n, d) with labels y (n,), queries (m, d), and text for every class."""

    X: np.ndarray
    y: np.ndarray
    queries: np.ndarray
    prior: TextPrior

    def rows(self, rows):
        """The same problem with these shots alone, in this order."""
        return replace(self, X=self.X[rows], y=self.y[rows])


def make_problem(*, shots=SHOTS, names=NAMES, width=12, n_queries=9, seed=0, spread=0.45):
    """Classes in a common cone, as CLIP's are; rows are not of length one."""
    generator = np.random.default_rng(seed)
    centres = 1 + generator.normal(size=(len(names), width))
    labels = np.repeat(np.arange(len(names)), shots)
    labels = labels[generator.permutation(len(labels))]
    drawn = generator.integers(len(names), size=n_queries)

    def near(which):
        return centres[which] + spread * generator.normal(size=(len(which), width))

    text = centres + 0.3 * generator.normal(size=centres.shape)
    return Problem(
        near(labels), np.array(names)[labels], near(drawn), TextPrior(names, text, logit_scale=12.0)
    )


# The oracles: numpy, explicit inverses, one equation a line.


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def softmax(logits):
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def nll(logits, labels):
    """Mean −log softmax(logits) at class numbers (n,), in nats."""
    shifted = logits - logits.max(1, keepdims=True)
    return np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels])


def smoothed_nll(logits, labels):
    """What is minimised: targets 1 − ε at the label, ε/(c − 1) elsewhere, with ε = 1/(n + 2)."""
    n, c = logits.shape
    doubt = 1 / (n + 2)
    targets = np.full((n, c), doubt / (c - 1))
    targets[np.arange(n), labels] = 1 - doubt
    shifted = logits - logits.max(1, keepdims=True)
    return np.mean(np.sum(targets * (np.log(np.exp(shifted).sum(1))[:, None] - shifted), 1))


def kernel(x, y, beta):
    """κ(x, y) = exp(−β(1 − xᵀy))."""
    return np.exp(-beta * (1 - x @ y.T))


def one_hot(labels, classes):
    return (np.asarray(labels)[:, None] == np.asarray(classes)[None, :]).astype(float)


def residual(y, classes, logits):
    """Y − softmax(logits) (n, c); nothing in columns of classes without a row."""
    values = one_hot(y, classes) - softmax(logits)
    return values * np.isin(classes, y)


def posterior(keys, values, queries, *, beta, noise):
    """k G⁻¹ V (m, c) and 1 − k G⁻¹ kᵀ (m,), with G = K + noise·I."""
    inverse = np.linalg.inv(kernel(keys, keys, beta) + noise * np.eye(len(keys)))
    cross = kernel(queries, keys, beta)
    return cross @ inverse @ values, 1 - np.diag(cross @ inverse @ cross.T)


def whitening(rows, y, shrinkage=4.0, diagonal=0.0):
    """Mean (d,) and inverse root (d, d) of S + λ·tr(S)/(n − 1)·I, S the scatter within classes.

    With `diagonal`, of features that were divided by √(diagonal · variance + rest · mean variance).
    """
    scatter = np.zeros((rows.shape[1], rows.shape[1]))
    for name in np.unique(y):
        deviation = rows[y == name] - rows[y == name].mean(0)
        scatter += deviation.T @ deviation
    if diagonal:
        variance = np.diag(scatter) / len(rows)
        scale = (diagonal * variance + (1 - diagonal) * variance.mean()) ** -0.5
        _, root = whitening(rows * scale, y, shrinkage)
        return rows.mean(0), scale[:, None] * root
    shrunk = scatter + shrinkage * np.trace(scatter) / (len(rows) - 1) * np.eye(len(scatter))
    values, vectors = np.linalg.eigh(shrunk)
    return rows.mean(0), vectors @ np.diag(values**-0.5) @ vectors.T


def feature_map(space, X, y, *, shrinkage=4.0, projection=None, diagonal=0.0):
    """φ learned from rows X with labels y: project, centre, whiten, each if asked, normalise."""

    def projected(rows):
        rows = unit(rows)
        return rows if projection is None else unit(rows @ projection.T + rows)

    if space == "raw":
        return projected
    if space == "centred":
        return lambda queries: unit(projected(queries) - projected(X).mean(0))
    mean, root = whitening(projected(X), y, shrinkage, diagonal)
    return lambda queries: unit((projected(queries) - mean) @ root)


def zero_shot(prior, X):
    """s f W (m, c), columns in sorted order of the class names."""
    order = np.argsort(prior.class_names)
    return prior.logit_scale * unit(X) @ unit(np.asarray(prior.vectors))[order].T


def gp_logits(
    problem,
    queries,
    *,
    alpha,
    beta,
    noise,
    gain=1.0,
    eta=0.0,
    prior="residual",
    space="whitened",
    with_text=True,
    projection=None,
):
    """gain · s f W + α · k G⁻¹ V / variance^η; V = Y, or what `residual` leaves of it."""
    classes = np.sort(problem.prior.class_names) if with_text else np.unique(problem.y)
    values, text = one_hot(problem.y, classes), 0.0
    if with_text:
        text = gain * zero_shot(problem.prior, queries)
        if prior == "residual":
            values = residual(problem.y, classes, gain * zero_shot(problem.prior, problem.X))
    phi = feature_map(space, problem.X, problem.y, projection=projection)
    mean, variance = posterior(phi(problem.X), values, phi(queries), beta=beta, noise=noise)
    return text + alpha * mean / variance[:, None] ** eta


def gp_cache(problem=None, **options):
    """Regression at given numbers in float64; with the problem's text if a problem is given."""
    prior = None if problem is None else problem.prior
    fixed = {"text_prior": prior, "likelihood": "gaussian"} | NUMBERS | FLOAT64
    return GPCacheClassifier.from_options(**fixed | options)


def softmax_cache(problem=None, **options):
    """As `gp_cache`, with the softmax likelihood: only the trust in the text is left to choose."""
    prior = None if problem is None else problem.prior
    return GPCacheClassifier.from_options(
        **{"text_prior": prior} | SOFTMAX_NUMBERS | FLOAT64 | options
    )


def solved_anew(estimator, X, y, **options):
    """The softmax likelihood's model of rows X with labels y, solved from scratch.

    Choice, feature map, calibration and what each label is believed are those of the estimator, as
    they are after an update.
    """
    fresh = changed(clone(estimator), **options).fit(X, y)
    known, fitted = estimator.fitted_, fresh.fitted_
    shots = replace(
        fitted.shots.at_gain(known.choice.gain), label_weights=known.shots.label_weights
    )
    feature_map = known.model.feature_map
    precision = known.recipe.condition(shots, feature_map(shots.features), known.choice)
    unsolved = CacheModel(feature_map, precision, fitted.text, known.choice)
    fresh._keep(
        replace(
            fitted,
            shots=shots,
            recipe=known.recipe,
            model=_solved(unsolved, shots, None),
            calibration=known.calibration,
            known_report=None,
            known_novelty=None,
        )
    )
    return fresh


def changed(estimator, **options):
    """The same estimator with other options, by their flat names."""
    return type(estimator).from_options(**(estimator.get_params(deep=False) | options))


def tip_adapter(problem=None, **options):
    """Tip-Adapter at given numbers in float64."""
    prior = None if problem is None else problem.prior
    numbers = {name: NUMBERS[name] for name in ("alpha", "beta", "gain")}
    return TipAdapterClassifier.from_options(**{"text_prior": prior} | numbers | FLOAT64 | options)


@contextmanager
def one_sentence(kind, phrase):
    """What is inside must fail as a user's mistake does: one sentence, and no chain of causes."""
    with pytest.raises(kind, match=phrase) as caught:
        yield
    error = caught.value
    assert isinstance(error, GPCacheError | ValueError | TypeError)
    assert "\n" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


@pytest.fixture
def problem():
    return make_problem()


@pytest.fixture(scope="session", params=["softmax", "gaussian"])
def likelihood(request):
    """Both likelihoods of GPCache."""
    return request.param


@pytest.fixture(scope="session", params=[name for name in PRECISIONS if name != "unweighted"])
def softmax_precision(request):
    """Options of every posterior that the softmax likelihood knows."""
    return PRECISIONS[request.param]


@pytest.fixture(scope="session", params=list(PRECISIONS))
def precision(request):
    """Options of every posterior that GPCache knows, the plain sum included."""
    return PRECISIONS[request.param]


# Scope "session" lets property tests (hypothesis) take this as well.
@pytest.fixture(scope="session")
def tools():
    """The helpers of this file: test files cannot import a conftest."""
    return SimpleNamespace(
        numbers=NUMBERS,
        float64=FLOAT64,
        make_problem=make_problem,
        unit=unit,
        softmax=softmax,
        nll=nll,
        smoothed_nll=smoothed_nll,
        kernel=kernel,
        one_hot=one_hot,
        residual=residual,
        posterior=posterior,
        whitening=whitening,
        feature_map=feature_map,
        zero_shot=zero_shot,
        gp_logits=gp_logits,
        gp_cache=gp_cache,
        softmax_cache=softmax_cache,
        solved_anew=solved_anew,
        changed=changed,
        tip_adapter=tip_adapter,
        one_sentence=one_sentence,
    )
