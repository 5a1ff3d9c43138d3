"""A mistake of the user's gets one sentence that says what, where, and how to fix it."""

import signal

import numpy as np
import pytest
import scipy.sparse

from gpcache import DataError, GPCacheClassifier, GPCacheFClassifier, ProtocolError
from gpcache.methods import TipAdapterClassifier


def spoilt(X, row, value):
    X = X.copy()
    X[row] = value
    return X


# What is done to (X, y), the error, and what its sentence must say.
ROWS = {
    "NaN": (
        lambda X, y: (spoilt(X, (3, 1), np.nan), y),
        DataError,
        "X contains NaN or inf in row 3",
    ),
    "inf": (lambda X, y: (spoilt(X, (2, 0), -np.inf), y), DataError, "NaN or inf in row 2"),
    "a zero row": (lambda X, y: (spoilt(X, 5, 0.0), y), DataError, "Row 5 of X is all zeros"),
    "no rows": (lambda X, y: (X[:0], y[:0]), ValueError, "0 sample"),
    "no columns": (lambda X, y: (X[:, :0], y), ValueError, "0 feature"),
    "empty y": (lambda X, _: (X, []), ValueError, r"\[14, 0\]"),
    "no y": (lambda X, _: (X, None), DataError, "requires y"),
    "y too short": (lambda X, y: (X, y[:-1]), ValueError, r"\[14, 13\]"),
    "one-dimensional X": (lambda X, y: (X[0], y), ValueError, "2D array"),
    "three-dimensional X": (lambda X, y: (X[None], y), ValueError, "dim 3"),
    "sparse X": (lambda X, y: (scipy.sparse.csr_matrix(X), y), TypeError, "dense data is required"),
    "words in X": (lambda X, y: (np.full(X.shape, "a"), y), ValueError, "numeric"),
    "complex X": (lambda X, y: (X + 1j, y), ValueError, "Complex data not supported"),
    "y of measurements": (lambda X, _: (X, np.arange(14) / 3), ValueError, "continuous"),
    "NaN in y": (lambda X, y: (X, np.where(y == "oak", np.nan, 1.0)), ValueError, "y contains NaN"),
    "two columns of y": (lambda X, y: (X, np.stack([y, y], 1)), ValueError, "1d array"),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("kind", [GPCacheClassifier, TipAdapterClassifier])
def test_rows_that_cannot_be_learned_from(name, kind, problem, tools):
    spoil, error, phrase = ROWS[name]
    with tools.one_sentence(error, phrase):
        kind().fit(*spoil(problem.X, problem.y))


ASKED = {
    "NaN": (lambda X: spoilt(X, (3, 1), np.nan), DataError, "X contains NaN or inf in row 3"),
    "inf": (lambda X: spoilt(X, (2, 0), np.inf), DataError, "NaN or inf in row 2"),
    "a zero row": (lambda X: spoilt(X, 5, 0.0), DataError, "Row 5 of X is all zeros"),
    "another width": (lambda X: X[:, :7], ValueError, "7 features.* 12 features"),
    "no rows": (lambda X: X[:0], ValueError, "0 sample"),
    "one row without brackets": (lambda X: X[0], ValueError, "2D array"),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("method", ["predict", "posterior", "explain"])
def test_rows_that_cannot_be_asked_about(name, method, problem, tools):
    spoil, error, phrase = ASKED[name]
    estimator = tools.gp_cache(problem).fit(problem.X, problem.y)
    with tools.one_sentence(error, phrase):
        getattr(estimator, method)(spoil(problem.queries))


NUMBER = "must be 'auto' or a number above zero, got"
OPTIONS = [
    *[({"noise": value}, "noise.*" + NUMBER) for value in (-1, 0, np.nan, np.inf, "0.1", None)],
    *[({"beta": value}, "beta.*" + NUMBER) for value in (-1.0, 0.0, np.nan, "2", [1], True)],
    ({"noise": np.array([0.1, 1.0])}, "noise.*" + NUMBER),
    ({"eta": -1}, "eta.*'auto' or a number of zero or more, got -1"),
    ({"alpha": -1}, "alpha of GPCacheClassifier must be 'auto' or a number of zero or more"),
    ({"gain": "much"}, "gain.*'auto' or a number of zero or more, got 'much'"),
    ({"eta": -1, "confidence_scaling": True}, "eta.*'auto' or a number of zero or more, got -1"),
    *[
        ({"shrinkage": value}, f"shrinkage of GPCacheClassifier {NUMBER} {value!r}")
        for value in ("much", 0, -1)
    ],
    ({"kernel_space": "white"}, "kernel_space.*one of 'raw', 'centred', 'whitened', got 'white'"),
    ({"prior": "text"}, "prior.*one of 'residual', 'zero_shot', got 'text'"),
    ({"precision": "fast"}, "approximation.*one of 'auto', 'explicit', 'exact', .*got 'fast'"),
    ({"precision": "nystrom", "cross": "both"}, "cross.*one of 'exact', 'consistent', got 'both'"),
    ({"criterion": "auc"}, "criterion.*one of 'nll', 'accuracy', 'marginal_likelihood', got 'auc'"),
    ({"selection": "test"}, "selection.*one of 'auto', 'loo', .*got 'test'"),
    ({"strategy": "luck"}, "strategy.*one of 'adaptive', 'grid', got 'luck'"),
    *[
        ({"n_folds": value}, "n_folds must be a whole number of 4 or more")
        for value in (1, 3, 4.5, "8")
    ],
    ({"precision": "grouped", "n_groups": 0}, "n_groups must be a whole number above zero, got 0"),
    (
        {"precision": "nystrom", "n_landmarks": 2.5},
        "n_landmarks must be a whole number above zero, got 2.5",
    ),
    (
        {"precision": "fourier", "n_features": "many"},
        "n_features must be a whole number above zero, got 'many'",
    ),
    (
        {"precision_weighting": False, "confidence_scaling": True, "likelihood": "gaussian"},
        "confidence_scaling needs precision",
    ),
    ({"projection": np.eye(5)}, r"projection.*\(12, 12\), got shape \(5, 5\)"),
    ({"projection": np.ones(12)}, r"projection.*\(12, 12\), got shape \(12,\)"),
    ({"projection": lambda rows: rows[:3]}, "projection"),
    ({"device": "cuda:99"}, "device='cuda:99' is not available"),
    ({"device": "quantum"}, "device must be 'auto' or a torch device.*got 'quantum'"),
    ({"dtype": "float16"}, "dtype must be 'auto', 'float32' or 'float64', got 'float16'"),
    ({"random_state": "seven"}, "random_state"),
    ({"text_prior": np.eye(12)}, "text_prior.*TextPrior"),
    ({"text_prior": {"oak": 1}}, "text_prior.*TextPrior"),
]


def named(options):
    """The options in words; arrays by their shape, functions as such."""
    words = {k: "function" if callable(v) else getattr(v, "shape", v) for k, v in options.items()}
    return " ".join(f"{name}={word}" for name, word in words.items())


@pytest.mark.parametrize(("options", "phrase"), OPTIONS, ids=[named(o) for o, _ in OPTIONS])
def test_an_option_that_cannot_be_meant(options, phrase, problem, tools):
    with tools.one_sentence((DataError, TypeError), phrase):
        options = {"likelihood": "gaussian"} | options
        GPCacheClassifier.from_options(**options).fit(problem.X, problem.y)


TRAINED = [
    ({"epochs": -1}, "epochs must be a whole number .*got -1"),
    ({"epochs": 2.5}, "epochs must be a whole number .*got 2.5"),
    ({"batch_size": 0}, "batch_size must be a whole number (above zero|of 1 or more), got 0"),
    ({"learning_rate": 0}, "learning_rate of .* must be a number above zero, got 0"),
    ({"weight_decay": -1.0}, "weight_decay of .* must be a number of zero or more, got -1.0"),
]


@pytest.mark.parametrize(("options", "phrase"), TRAINED, ids=[named(o) for o, _ in TRAINED])
def test_training_that_cannot_be_meant(options, phrase, problem, tools):
    with tools.one_sentence(DataError, phrase):
        GPCacheFClassifier.from_options(**options).fit(problem.X, problem.y)


@pytest.mark.parametrize(
    ("make", "phrase"),
    [
        (lambda X: X, r"views must have shape \(14, number of views, 12\), got \(14, 12\)"),
        (lambda X: X[None], r"views must have shape .*got \(1, 14, 12\)"),
        (lambda X: X[:, None, :5], r"views must have shape .*got \(14, 1, 5\)"),
        (lambda X: spoilt(X, 3, np.nan)[:, None], "views contains NaN or inf in row 3"),
        (lambda X: spoilt(X, 3, 0.0)[:, None], "Row 3 of views is all zeros"),
    ],
    ids=["two-dimensional", "another n", "another width", "NaN", "a zero row"],
)
def test_views_that_do_not_fit(make, phrase, problem, tools):
    with tools.one_sentence(DataError, phrase):
        GPCacheFClassifier.from_options(epochs=1).fit(problem.X, problem.y, views=make(problem.X))


VALIDATION = {
    "unknown labels": (
        lambda X, _: (X, ["beech"] * 14),
        "'beech'.* is none of the 4 known classes",
    ),
    "labels of another kind": (
        lambda X, _: (X, np.arange(14)),
        "0.* is none of the 4 known classes",
    ),
    "another width": (lambda X, y: (X[:, :5], y), "5 features.* 12 features"),
    "too few labels": (lambda X, y: (X, y[:3]), "validation set has 14 rows and 3 labels"),
    "no rows": (lambda X, y: (X[:0], y[:0]), "0 sample"),
    "NaN": (lambda X, y: (spoilt(X, 1, np.nan), y), "NaN or inf in row 1"),
    "two columns of labels": (lambda X, y: (X, np.stack([y, y], 1)), "label|1d|shape"),
    "rows alone": (lambda X, _: X, r"^(?!.*_read_validation).*validation.*\(X"),
    "a pair of one": (lambda X, _: (X,), r"^(?!.*_read_validation).*validation.*\(X"),
}


@pytest.mark.parametrize("name", VALIDATION)
def test_a_validation_set_that_does_not_fit(name, problem, tools):
    make, phrase = VALIDATION[name]
    with tools.one_sentence((ValueError, TypeError), phrase):
        GPCacheClassifier().fit(problem.X, problem.y, validation=make(problem.X, problem.y))


@pytest.mark.parametrize(
    "estimator",
    [
        TipAdapterClassifier(),
        GPCacheClassifier.from_options(likelihood="gaussian", precision_weighting=False),
    ],
    ids=["Tip-Adapter", "B"],
)
def test_a_plain_sum_has_no_marginal_likelihood(estimator, problem, tools):
    def give_up(*_):
        pytest.fail("the search does not end")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(2)
    try:
        with tools.one_sentence(ProtocolError, "no marginal likelihood"):
            tools.changed(estimator, criterion="marginal_likelihood").fit(problem.X, problem.y)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
