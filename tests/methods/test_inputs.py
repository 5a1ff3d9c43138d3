"""Data as it comes: labels and arrays of any kind, unequal shots, text without shots, copies."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from gpcache import DataError, GPCacheClassifier, GPCacheFClassifier, TextPrior
from gpcache.methods import TipAdapterClassifier, TipAdapterFClassifier, ZeroShotClassifier

CACHES = [
    GPCacheClassifier(),
    TipAdapterClassifier(),
    GPCacheFClassifier.from_options(epochs=2),
    TipAdapterFClassifier.from_options(epochs=2),
]


def kind_of(estimator):
    return type(estimator).__name__


@pytest.fixture(params=CACHES, ids=kind_of)
def cache(request, problem):
    """Every cache method at its defaults, with text."""
    return clone(request.param).set_params(text_prior=problem.prior)


def test_a_class_with_text_and_no_shots_can_be_predicted(cache, problem, tools):
    assert "yew" not in problem.y
    cache = tools.changed(cache, alpha=1.0).fit(problem.X, problem.y)
    assert cache.classes_.tolist() == ["ash", "elm", "fir", "oak", "yew"]
    assert cache.predict(problem.prior.vectors[[4]]).tolist() == ["yew"]
    assert cache.logits(problem.queries).shape == (9, 5)
    assert np.isfinite(cache.loo_.logits).all()


def test_shots_teach_what_text_does_not_know(cache, problem):
    """The cache improves on the text alone for its own shots."""
    text = ZeroShotClassifier(text_prior=problem.prior).fit(problem.X, problem.y)
    cache.fit(problem.X, problem.y)
    rows, columns = np.arange(len(problem.y)), np.searchsorted(cache.classes_, problem.y)
    assert (
        cache.predict_proba(problem.X)[rows, columns].mean()
        > text.predict_proba(problem.X)[rows, columns].mean()
    )


LABELS = {
    "strings": lambda y: y,
    "objects": lambda y: y.astype(object),
    "a list": lambda y: y.tolist(),
    "whole numbers": lambda y: np.unique(y, return_inverse=True)[1] * 10 - 7,
    "a list of whole numbers": lambda y: (np.unique(y, return_inverse=True)[1] * 10 - 7).tolist(),
    "small unsigned numbers": lambda y: np.unique(y, return_inverse=True)[1].astype(np.uint8),
    "floats": lambda y: np.unique(y, return_inverse=True)[1].astype(float),
    "a tensor": lambda y: torch.as_tensor(np.unique(y, return_inverse=True)[1]),
}


@pytest.mark.parametrize("make", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("with_text", [True, False])
def test_labels_of_any_kind(make, with_text, problem, tools):
    """What matters is which shots share one, and that predictions come back as they were given."""
    rows = problem.y != "yew"
    given = make(problem.y[rows])
    names = sorted(set(given.tolist() if hasattr(given, "tolist") else given))
    vectors = problem.prior.aligned(np.unique(problem.y))
    text = TextPrior(names, vectors, 12.0) if with_text else None
    known = TextPrior(np.unique(problem.y), vectors, 12.0) if with_text else None
    estimator = GPCacheClassifier.from_options(text_prior=text, **tools.float64).fit(
        problem.X, given
    )
    strings = GPCacheClassifier.from_options(text_prior=known, **tools.float64).fit(
        problem.X, problem.y
    )
    assert estimator.classes_.tolist() == names
    np.testing.assert_allclose(
        estimator.logits(problem.queries), strings.logits(problem.queries), rtol=1e-9
    )
    answer = dict(zip(strings.classes_.tolist(), names, strict=True))
    expected = [answer[name] for name in strings.predict(problem.queries)]
    assert estimator.predict(problem.queries).tolist() == expected


ARRAYS = {
    "a list": lambda X: X.tolist(),
    "float32": lambda X: X.astype(np.float32),
    "float16": lambda X: X.astype(np.float16),
    "objects": lambda X: X.astype(object),
    "column order": np.asfortranarray,
    "every second column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "backwards": lambda X: np.ascontiguousarray(X[::-1])[::-1],
    "columns backwards": lambda X: np.ascontiguousarray(X[:, ::-1])[:, ::-1],
    "read-only": lambda X: np.frombuffer(X.tobytes()).reshape(X.shape),
    "a tensor": torch.tensor,
    "a tensor with a gradient": lambda X: torch.tensor(X, requires_grad=True),
    "a transposed tensor": lambda X: torch.tensor(X.T.copy()).T,
    "a float16 tensor": lambda X: torch.tensor(X).half(),
    "a bfloat16 tensor": lambda X: torch.tensor(X).bfloat16(),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_kind(name, problem, tools):
    """At given numbers, so that rounding moves the logits and not the choice."""
    make = ARRAYS[name]
    tolerance = 2e-1 if "bfloat16" in name else 2e-2 if "float16" in name else 1e-5
    estimator = tools.gp_cache(problem).fit(make(problem.X), problem.y)
    expected = tools.gp_cache(problem).fit(problem.X, problem.y).logits(problem.queries)
    found = estimator.logits(make(problem.queries))
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_whole_numbers_are_values_like_any_other(tools):
    """Pixels, counts: they are scaled to length one as floats are."""
    pixels = np.random.default_rng(0).integers(0, 255, size=(8, 6), dtype=np.uint8)
    labels = [0, 0, 0, 0, 1, 1, 1, 1]
    found = tools.gp_cache().fit(pixels, labels).logits(pixels)
    expected = tools.gp_cache().fit(pixels.astype(float), labels).logits(pixels.astype(float))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_tensor_on_the_gpu(problem, tools):
    X, queries = (torch.tensor(a, device="cuda") for a in (problem.X, problem.queries))
    found = tools.gp_cache(problem, device="cuda").fit(X, problem.y).logits(queries)
    expected = tools.gp_cache(problem).fit(problem.X, problem.y).logits(problem.queries)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_a_single_class(cache, problem):
    rows = problem.y == "oak"
    cache.set_params(text_prior=None).fit(problem.X[rows], problem.y[rows])
    assert cache.predict(problem.queries).tolist() == ["oak"] * 9
    np.testing.assert_array_equal(cache.predict_proba(problem.queries), np.ones((9, 1)))
    assert cache.loo_.accuracy == 1.0


def test_a_single_class_with_text_for_others(cache, problem, tools):
    rows = problem.y == "oak"
    cache = tools.changed(cache, alpha=1.0).fit(problem.X[rows], problem.y[rows])
    assert cache.predict(problem.X[rows]).tolist() == ["oak"] * rows.sum()
    assert cache.predict(problem.prior.vectors[[4]]).tolist() == ["yew"]


def test_a_single_shot(cache, problem):
    cache.fit(problem.X[:1], problem.y[:1])
    assert cache.predict(problem.X[:1]).tolist() == problem.y[:1].tolist()
    assert np.isnan(cache.loo_.accuracy)


def test_copies_of_a_row(cache, problem):
    """Five copies of everything, then nothing but copies of one row under two labels."""
    X, y = np.tile(problem.X, (5, 1)), np.tile(problem.y, 5)
    cache.fit(X, y)
    assert (cache.predict(problem.X) == problem.y).all()
    cache.fit(np.tile(problem.X[:1], (6, 1)), np.repeat(["ash", "elm"], 3))
    probability = cache.predict_proba(problem.queries)
    assert np.isfinite(probability).all()
    assert np.isfinite(cache.loo_.nll)


def test_copies_count_as_less_noise(tools, problem):
    """Each shot twice with noise σ² is each shot once with noise σ²/2."""
    once = tools.gp_cache(problem, noise=0.1, kernel_space="raw").fit(problem.X, problem.y)
    twice = tools.gp_cache(problem, noise=0.2, kernel_space="raw")
    twice.fit(np.tile(problem.X, (2, 1)), np.tile(problem.y, 2))
    np.testing.assert_allclose(
        twice.logits(problem.queries), once.logits(problem.queries), rtol=1e-9
    )


@pytest.mark.parametrize("kind", [">f4", ">f8", ">i4"])
def test_the_byte_order_of_an_array_does_not_matter(kind, problem):
    X = np.round(100 * np.asarray(problem.X)).astype(kind)
    y = np.asarray(problem.y)
    native = GPCacheClassifier(device="cpu").fit(X.astype(kind[1:]), y)
    swapped = GPCacheClassifier(device="cpu").fit(X, y.astype(y.dtype.newbyteorder()))
    expected = native.predict_proba(X.astype(kind[1:]))
    np.testing.assert_array_equal(swapped.predict_proba(X), expected)


def test_masked_arrays_are_refused(problem):
    masked = np.ma.masked_array(problem.X, np.asarray(problem.X) > 1)
    for X, y in ((masked, problem.y), (problem.X, np.ma.masked_array(problem.y))):
        with pytest.raises(DataError, match="masked array"):
            GPCacheClassifier(device="cpu").fit(X, y)


@pytest.fixture
def fitted(problem):
    return GPCacheClassifier(device="cpu").fit(problem.X, problem.y)


def read_by(name, model, problem, X, y):
    """Give rows and labels to one of the readers; only what it is about is unusual."""
    if name == "validation":
        return model.fit(problem.X, problem.y, validation=(X, y))
    return getattr(model, name)(X, *(() if name == "predict" else (y,)))


READERS = ["fit", "add", "validation", "predict"]


@pytest.mark.parametrize("reader", READERS)
def test_a_list_of_masked_rows_is_refused(reader, fitted, problem, tools):
    rows = list(np.ma.masked_array(problem.X, np.asarray(problem.X) > 1))
    with tools.one_sentence(DataError, "masked array"):
        read_by(reader, fitted, problem, rows, problem.y)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "kind", [np.asarray, list, torch.as_tensor], ids=["array", "list", "torch"]
)
def test_complex_rows_are_one_short_sentence(kind, reader, fitted, problem, tools):
    with tools.one_sentence(DataError, r"^Complex data not supported: give real numbers, .{,20}$"):
        read_by(reader, fitted, problem, kind(problem.X + 1j), problem.y)


@pytest.mark.parametrize("reader", READERS)
def test_dates_are_no_features(reader, fitted, problem, tools):
    with tools.one_sentence(
        DataError, r"X must hold real numbers, got an array of datetime64\[s\]"
    ):
        read_by(reader, fitted, problem, problem.X.astype("M8[s]"), problem.y)


@pytest.mark.filterwarnings("ignore:This update keeps the learned feature scaling")
@pytest.mark.parametrize("kind", [np.asarray, list])
def test_long_doubles_are_read_as_float64(kind, fitted, problem):
    X = kind(problem.X.astype(np.longdouble))
    expected = fitted.predict_proba(problem.X)
    np.testing.assert_array_equal(fitted.predict_proba(X), expected)
    fitted.fit(X, problem.y, validation=(X, problem.y)).add(X, problem.y)
    np.testing.assert_array_equal(fitted.fit(X, problem.y).predict_proba(X), expected)


@pytest.mark.parametrize("reader", READERS[:3])
@pytest.mark.parametrize("missing", [None, float("nan"), np.datetime64("NaT")], ids=str)
def test_a_missing_label_is_no_class(missing, reader, fitted, problem, tools):
    labels = [*problem.y[:-1].tolist(), missing]
    row = len(labels) - 1
    with tools.one_sentence(DataError, f"contains Na[NT] in row {row}|contains None in row {row}"):
        read_by(reader, fitted, problem, problem.X, labels)


def test_a_missing_date_is_no_class(problem, tools):
    dates = np.array(["2020-01-01", "2021-01-01"], dtype="M8[D]")[np.arange(len(problem.X)) % 2]
    model = GPCacheClassifier(device="cpu").fit(problem.X, dates)
    assert model.classes_.tolist() == sorted(set(dates.tolist()))
    dates[2] = "NaT"
    with tools.one_sentence(DataError, "y contains NaT in row 2, which is not a class"):
        model.fit(problem.X, dates)


def test_a_text_with_a_missing_date_or_complex_vectors_is_refused(tools):
    with tools.one_sentence(DataError, "class_names contains NaT in row 1"):
        TextPrior(np.array(["2020-01-01", "NaT"], dtype="M8[D]"), np.eye(2))
    with tools.one_sentence(DataError, "vectors must be numbers, got an array of complex128"):
        TextPrior(["a", "b"], np.eye(2) + 1j)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e-300])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_length_of_a_row_never_gives_nan(scale, dtype, problem):
    model = GPCacheClassifier(device="cpu", dtype=dtype).fit(problem.X, problem.y)
    found = model.predict_proba(np.asarray(problem.X) * scale)
    np.testing.assert_allclose(found, model.predict_proba(problem.X), atol=1e-5)


def test_names_that_differ_in_white_space_only_are_an_error(problem):
    y = np.array(["cat", "cat ", "dog"])[np.arange(len(problem.X)) % 3]
    with pytest.raises(DataError, match=r"'cat' and 'cat ' differ only in white space"):
        GPCacheClassifier(device="cpu").fit(problem.X, y)
    with pytest.raises(DataError, match="'a b' and 'a  b' differ only in white space"):
        TextPrior(["a b", "a  b"], np.eye(2))


@pytest.mark.parametrize("kind", [list, lambda labels: np.array(labels, dtype=object)])
def test_nan_among_text_is_no_class(kind, problem):
    labels = kind(["cat", float("nan"), *["dog"] * (len(problem.X) - 2)])
    with pytest.raises(DataError, match="y contains NaN"):
        GPCacheClassifier(device="cpu").fit(problem.X, labels)
    with pytest.raises(DataError, match="NaN"):
        TextPrior(kind(["a", float("nan")]), np.eye(2))
