"""GPCache with the softmax likelihood, its default: three components, all chosen on held-out shots.

logits = alpha · k(x) A + discriminant · linear discriminant(x) + gain · zero_shot(x)
"""

import math
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from gpcache import DataError, GPCacheClassifier, GPCacheFClassifier, ProtocolError, TextPrior
from gpcache.errors import NumericalError
from gpcache.gp import softmax as solver
from gpcache.gp.cholesky import JitterWarning
from gpcache.methods import Regression, restore, state_of
from gpcache.methods.cache import softmax_folds
from gpcache.methods.cache import softmax_search as softmax

GIVEN = {
    "alpha": 3.0,
    "beta": 2.5,
    "tau": 7.0,
    "shrinkage": 0.3,
    "gain": 0.8,
    "discriminant": 0.4,
}
EQUAL, UNEQUAL = (4, 4, 4, 4, 4), (1, 9, 3, 2, 4)
APPROXIMATIONS = {
    "exact": {},
    "grouped": {"precision": "grouped", "n_groups": 2},
    "nystrom": {"precision": "nystrom", "n_landmarks": 10},
    "nystrom-consistent": {"precision": "nystrom", "n_landmarks": 10, "cross": "consistent"},
    "fourier": {"precision": "fourier", "n_features": 64},
    "class_mean": {"precision": "class_mean"},
}
# Of logits whose coefficients were solved to 5e-7.
CLOSE = {"rtol": 0, "atol": 2e-5}


@pytest.fixture(scope="module", params=APPROXIMATIONS.values(), ids=APPROXIMATIONS)
def approximation(request):
    return request.param


def fitted(problem, tools, *, text=True, **options):
    prior = problem.prior if text else None
    estimator = GPCacheClassifier.from_options(text_prior=prior, **(tools.float64 | options))
    return estimator.fit(problem.X, problem.y)


def more_of(tools, count=40, **options):
    """Many rows of the same classes, as a test set: the centres are drawn first."""
    return tools.make_problem(shots=(count,) * 5, **options)


@pytest.mark.parametrize("shots", [(3, 3), (3, 3, 3)], ids=["two classes", "three classes"])
def test_a_few_rows_do_not_make_easy_classes_unsure(tools, shots):
    """These classes are never confused, but a few held-out rows alone cannot show it."""
    names = ("oak", "ash", "fir")[: len(shots)]
    problem = tools.make_problem(shots=shots, names=names, spread=0.2)
    tests = tools.make_problem(shots=(50,) * len(shots), names=names, spread=0.2)
    model = GPCacheClassifier().fit(problem.X, problem.y)
    assert model.score(tests.X, tests.y) == 1
    assert model.predict_proba(tests.X).max(1).mean() > 0.95


def with_useless_text(problem, seed):
    """The same images with text that points anywhere."""
    names, vectors = problem.prior.class_names, problem.prior.vectors
    drawn = np.random.default_rng(100 + seed).normal(size=np.shape(vectors))
    return TextPrior(names, drawn, logit_scale=12.0)


def nll(estimator, problem):
    labels = np.searchsorted(estimator.classes_, problem.y)
    probabilities = estimator.predict_proba(problem.X)
    return -np.log(probabilities[np.arange(len(labels)), labels]).mean()


# The formula, in numpy.


def posterior_mode(root, offset, targets, tau, tools):
    """W (d, c) of the least Σ cross-entropy + ‖W‖²/(2τ) for logits offset + root W: Newton.

    A row of targets sums to how much it counts.
    """
    counts = targets.sum(1)

    def objective(weights):
        logits = offset + root @ weights
        shifted = logits - logits.max(1, keepdims=True)
        losses = counts * np.log(np.exp(shifted).sum(1)) - np.sum(targets * shifted, 1)
        return losses.sum() + np.sum(weights**2) / (2 * tau)

    d, c = root.shape[1], targets.shape[1]
    weights = np.zeros((d, c))
    for _ in range(50):
        p = tools.softmax(offset + root @ weights)
        gradient = root.T @ (counts[:, None] * p - targets) + weights / tau
        spread = p[:, :, None] * np.eye(c) - p[:, :, None] * p[:, None, :]
        spread *= counts[:, None, None]
        hessian = np.einsum("ni,nab,nj->iajb", root, spread, root, optimize=True)
        hessian = hessian.reshape(d * c, d * c)
        step = np.linalg.solve(hessian + np.eye(d * c) / tau, gradient.ravel()).reshape(d, c)
        length = 1.0
        while objective(weights - length * step) > objective(weights) and length > 1e-6:
            length /= 2
        weights = weights - length * step
        if np.abs(step).max() < 1e-10:
            break
    return weights


def expected_logits(estimator, problem, queries, tools, *, text=True, space="whitened", rows=None):
    """What the formula gives of the shots of `problem` at the numbers of a fitted estimator.

    `rows` are the numbers of these shots among those of the estimator, whose labels may count less.
    """
    choice, classes = estimator.fitted_.choice, estimator.classes_
    targets = tools.one_hot(problem.y, classes)
    counts, present = targets.sum(0), np.isin(classes, problem.y)
    if estimator.fitted_.shots.weights is not None:
        believed = estimator.fitted_.shots.weights.numpy()
        targets *= (believed if rows is None else believed[rows])[:, None]
    shape = {"shrinkage": choice.shrinkage, "diagonal": choice.diagonal}
    phi = tools.feature_map(space, problem.X, problem.y, **shape)
    points = np.concatenate([phi(problem.X), phi(queries)])
    values, vectors = np.linalg.eigh(tools.kernel(points, points, choice.beta))
    root, n = vectors * np.sqrt(values.clip(min=0)), len(problem.X)
    near, own, cache = root[n:], root[:n], np.zeros((len(queries), len(classes)))
    zero_shot = [
        tools.zero_shot(problem.prior, rows) if text else np.zeros((len(rows), len(classes)))
        for rows in (problem.X, queries)
    ]
    # Classes are equally frequent, whatever the number of their shots.
    frequency = np.log(counts[present] / counts[present].mean())
    offset = (choice.offset * zero_shot[0])[:, present] + frequency
    cache[:, present] = near @ posterior_mode(own, offset, targets[:, present], choice.tau, tools)
    logits = choice.alpha * cache + choice.gain * zero_shot[1]
    if choice.discriminant:
        mean, whitening = tools.whitening(tools.unit(problem.X), problem.y, **shape)
        shots, rows = ((tools.unit(x) - mean) @ whitening for x in (problem.X, queries))
        means = targets.T @ shots / targets.sum(0)[:, None]
        logits += choice.discriminant * (rows @ means.T - 0.5 * np.sum(means**2, 1))
    return logits


@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
@pytest.mark.parametrize("shots", [EQUAL, UNEQUAL, (5, 3, 4, 2, 0), (2,) * 5], ids=str)
def test_logits_are_the_formula(shots, text, tools):
    problem = tools.make_problem(shots=shots)
    estimator = fitted(problem, tools, text=text, **GIVEN)
    expected = expected_logits(estimator, problem, problem.queries, tools, text=text)
    np.testing.assert_allclose(estimator.logits(problem.queries), expected, **CLOSE)


@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
def test_logits_are_the_formula_at_chosen_numbers(text, tools):
    problem = tools.make_problem(shots=EQUAL, spread=0.8)
    estimator = fitted(problem, tools, text=text)
    expected = expected_logits(estimator, problem, problem.queries, tools, text=text)
    np.testing.assert_allclose(estimator.logits(problem.queries), expected, **CLOSE)


@pytest.mark.parametrize("space", ["raw", "centred"])
def test_spaces_without_a_scatter_have_no_discriminant(space, tools):
    problem = tools.make_problem(shots=EQUAL, spread=0.8)
    estimator = fitted(problem, tools, kernel_space=space)
    assert estimator.discriminant_ == 0
    expected = expected_logits(estimator, problem, problem.queries, tools, space=space)
    np.testing.assert_allclose(estimator.logits(problem.queries), expected, **CLOSE)


def test_the_discriminant_and_the_cache_can_be_switched_off(tools):
    problem = tools.make_problem(shots=EQUAL, spread=0.8)
    zero_shot = tools.zero_shot(problem.prior, problem.queries)
    without = fitted(problem, tools, **GIVEN | {"discriminant": 0.0})
    assert without.discriminant_ == 0
    assert (without.explain(problem.queries).discriminant_logit == 0).all()
    text_alone = fitted(problem, tools, **GIVEN | {"discriminant": 0.0, "alpha": 0.0})
    np.testing.assert_allclose(text_alone.logits(problem.queries), 0.8 * zero_shot, atol=1e-9)


# Every approximation.


@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
@pytest.mark.parametrize("shots", [(8,) * 5, (5, 3, 4, 2, 0)], ids=str)
def test_shares_text_and_discriminant_sum_to_the_logit(shots, text, approximation, tools):
    problem = tools.make_problem(shots=shots, spread=0.8)
    place = {name: GIVEN[name] for name in ("beta", "tau", "shrinkage")}  # no search, but weights
    estimator = fitted(problem, tools, text=text, **place, **approximation)
    logits = estimator.logits(problem.queries)
    for column, name in enumerate(estimator.classes_):
        told = estimator.explain(problem.queries, labels=[name] * 9, top=None)
        assert told.shares.shape == (9, len(problem.X))
        np.testing.assert_allclose(told.shares.sum(1), told.cache_logit, rtol=0, atol=1e-9)
        total = told.cache_logit + told.text_logit + told.discriminant_logit
        np.testing.assert_allclose(total, logits[:, column], rtol=0, atol=1e-9)
    predicted = estimator.explain(problem.queries)
    np.testing.assert_array_equal(predicted.labels, estimator.predict(problem.queries))


def test_a_shot_speaks_for_its_own_class(tools):
    problem = tools.make_problem(shots=EQUAL)
    estimator = fitted(problem, tools, **GIVEN | {"beta": 20.0})
    told = estimator.explain(problem.X, labels=problem.y, top=1)
    assert told.shots[:, 0].tolist() == list(range(20))
    assert (told.shares > 0).all()


def test_every_approximation_answers(approximation, tools):
    """Right, and with the figures that each model has; pickled or saved, it is the same again."""
    problem = tools.make_problem(shots=(6, 5, 6, 4, 6), spread=0.5)
    estimator = fitted(problem, tools, text=False, **approximation)
    fresh = more_of(tools, spread=0.5)
    assert estimator.score(fresh.X, fresh.y) > 0.8
    assert estimator.loo_.accuracy > 0.6
    probabilities = estimator.predict_proba(problem.queries)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    mean, variance = estimator.posterior(problem.queries)
    assert mean.shape == (9, 5)
    assert ((variance > 0) & (variance <= 1)).all()
    assert ((estimator.novelty(fresh.X) > 0) & (estimator.novelty(fresh.X) <= 1)).all()
    for again in (
        pickle.loads(pickle.dumps(estimator)),
        restore(state_of(estimator), device="cpu"),
    ):
        found = again.predict_proba(problem.queries)
        np.testing.assert_allclose(found, probabilities, rtol=0, atol=1e-12)
        assert again.tau_ == estimator.tau_
        assert again.discriminant_ == estimator.discriminant_


@pytest.mark.parametrize(
    ("shots", "options", "allowed"),
    [
        (EQUAL, {"precision": "grouped", "n_groups": 1}, 1e-6),
        (EQUAL, {"precision": "nystrom", "n_landmarks": 20}, 1e-5),
        (EQUAL, {"precision": "nystrom", "n_landmarks": 20, "cross": "consistent"}, 1e-5),
        ((1,) * 5, {"precision": "class_mean"}, 1e-6),
        (EQUAL, {"precision": "fourier", "n_features": 2000}, 0.1),
    ],
    ids=["one group", "all landmarks", "all landmarks, consistent", "one shot", "fourier"],
)
def test_where_an_approximation_is_the_exact_model(shots, options, allowed, tools, monkeypatch):
    # A search ends early, and its last digits depend on whether it solves settings one by one.
    monkeypatch.setattr(softmax_folds, "FEW_ROWS", 0)
    problem = tools.make_problem(shots=shots)
    exact = fitted(problem, tools, **GIVEN)
    found = fitted(problem, tools, **GIVEN, **options)
    difference = found.predict_proba(problem.queries) - exact.predict_proba(problem.queries)
    assert np.abs(difference).max() < allowed
    for name in ("alpha_", "tau_", "gain_"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name))


def test_float32_agrees_to_three_digits(approximation, tools):
    problem = tools.make_problem(shots=EQUAL)
    single = fitted(problem, tools, **GIVEN, **approximation, dtype="float32")
    double = fitted(problem, tools, **GIVEN, **approximation)
    found, expected = (e.predict_proba(problem.queries) for e in (single, double))
    assert 0 < np.abs(found - expected).max() < 1e-3


def test_float32_at_a_wide_prior(tools):
    """What a GPU does: the widest priors of the search are beyond a float32 gradient."""
    problem = tools.make_problem(shots=EQUAL, spread=0.8)
    numbers = GIVEN | {"tau": 3e4, "beta": 0.5, "alpha": 1.0}
    single, double = (
        fitted(problem, tools, text=False, **numbers, dtype=d) for d in ("float32", "float64")
    )
    found, expected = (e.predict_proba(problem.queries) for e in (single, double))
    assert np.abs(found - expected).max() < 5e-3


# Shots of every kind.


@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
@pytest.mark.parametrize("shots", [EQUAL, (2,) * 5, (1,) * 5, UNEQUAL], ids=str)
def test_the_order_of_the_shots_does_not_matter(shots, text, tools):
    """To 1e-6 at given numbers; to 1e-4 where a search in float32 fitted weights or temperature."""
    problem = tools.make_problem(shots=shots, spread=0.8)
    moved = problem.rows(np.random.default_rng(1).permutation(len(problem.y)))
    for numbers in (GIVEN, {}):
        one, other = (fitted(rows, tools, text=text, **numbers) for rows in (problem, moved))
        found, expected = (e.predict_proba(problem.queries) for e in (one, other))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(one.predict(problem.queries), other.predict(problem.queries))
        if numbers:
            found, expected = (tools.softmax(e.logits(problem.queries)) for e in (one, other))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["b", "a", "é", "d d", "c"], "U"),
        ([30, -2, 7, 0, 100], "i"),
        (np.array([3, 1, 2, 5, 4], dtype=np.uint8), "u"),
        ([0.0, 1.0, 2.0, 3.0, 4.0], "f"),
    ],
    ids=["text", "integers", "bytes", "floats"],
)
def test_labels_of_any_type(names, kind, tools):
    problem = tools.make_problem(shots=EQUAL)
    number = {name: i for i, name in enumerate(("oak", "ash", "fir", "elm", "yew"))}
    labels = np.asarray(names)[[number[name] for name in problem.y]]
    estimator = GPCacheClassifier.from_options(**tools.float64).fit(problem.X, labels)
    assert estimator.classes_.dtype.kind == kind
    assert estimator.classes_.tolist() == sorted(np.unique(labels).tolist())
    predicted = estimator.predict(problem.X)
    assert predicted.dtype.kind == kind
    assert (predicted == labels).all()


@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
@pytest.mark.parametrize(
    "shots", [(1,) * 5, (2,) * 5, (3,) * 5, (1, 1, 2, 1, 1), UNEQUAL, (2, 12, 8, 4, 3)], ids=str
)
def test_few_and_unequal_shots(shots, text, tools):
    """Clearly apart, five classes are found from any number of shots; chance is 0.2."""
    problem = tools.make_problem(shots=shots, spread=0.4)
    fresh = more_of(tools, spread=0.4)
    estimator = fitted(problem, tools, text=text)
    assert estimator.score(fresh.X, fresh.y) > 0.85
    assert nll(estimator, fresh) < 0.7
    assert all(np.isfinite(getattr(estimator, f"{name}_")) for name in GIVEN)
    counted = np.array([np.sum(problem.y == name) > 1 for name in problem.y])
    np.testing.assert_array_equal(estimator.loo_.counted, counted)


def test_a_class_with_one_shot_among_classes_with_many_is_found(tools):
    recalls = []
    for seed in range(3):
        problem = tools.make_problem(shots=(1, 12, 12, 12, 12), spread=0.4, seed=seed)
        fresh = more_of(tools, spread=0.4, seed=seed)
        own = fresh.y == "oak"
        recalls.append(fitted(problem, tools, text=False).score(fresh.X[own], fresh.y[own]))
    assert np.mean(recalls) > 0.5


@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
@pytest.mark.parametrize("shots", [(1, 1), (2, 2), (8, 5)], ids=str)
def test_two_classes(shots, text, tools):
    names = ("oak", "ash")
    problem = tools.make_problem(shots=shots, names=names, spread=0.4)
    fresh = tools.make_problem(shots=(40, 40), names=names, spread=0.4)
    estimator = fitted(problem, tools, text=text)
    assert estimator.score(fresh.X, fresh.y) > 0.9
    assert estimator.decision_function(fresh.X).shape == (80,)


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
def test_one_class(shots, text, tools):
    problem = tools.make_problem(shots=(shots,), names=("oak",))
    estimator = fitted(problem, tools, text=text)
    np.testing.assert_allclose(estimator.predict_proba(problem.queries), 1)
    assert set(estimator.predict(problem.queries)) == {"oak"}
    assert np.isfinite(estimator.logits(problem.queries)).all()


def test_copies_of_one_row(tools):
    """Nothing is left to whiten, and nothing to tell classes apart by."""
    rows = np.ones((6, 12))
    estimator = GPCacheClassifier.from_options(**tools.float64).fit(rows, ["a", "b"] * 3)
    np.testing.assert_allclose(estimator.predict_proba(rows), 0.5, atol=1e-3)


@pytest.mark.parametrize("shots", [(5, 3, 4, 2, 0), (1, 1, 1, 1, 0), (6, 0, 6, 6, 0)], ids=str)
def test_a_class_without_a_shot_keeps_its_text_and_gets_no_share(shots, tools):
    problem = tools.make_problem(shots=shots)
    estimator = fitted(problem, tools)
    assert estimator.gain_ == 1.0
    zero_shot = tools.zero_shot(problem.prior, problem.queries)
    for column, name in enumerate(estimator.classes_):
        told = estimator.explain(problem.queries, labels=[name] * 9, top=None)
        np.testing.assert_allclose(told.text_logit, zero_shot[:, column], rtol=0, atol=1e-9)
        if name not in problem.y:
            assert (told.shares == 0).all()
            assert (told.discriminant_logit == 0).all()
        else:
            assert (told.shares != 0).any()
    if max(shots) > 1:
        assert recall_of_absent(estimator, problem, more_of(tools)) > 0.5


def recall_of_absent(estimator, problem, fresh):
    absent = ~np.isin(fresh.y, problem.y)
    return estimator.score(fresh.X[absent], fresh.y[absent])


# The choice.


@pytest.mark.parametrize("shots", [EQUAL, (2,) * 5, (1,) * 5], ids=str)
@pytest.mark.parametrize("name", ["beta", "tau", "shrinkage"])
def test_what_was_given_is_kept(name, shots, tools):
    problem = tools.make_problem(shots=shots, spread=0.8)
    for text, numbers in ((True, GIVEN), (False, GIVEN), (False, {name: GIVEN[name]})):
        estimator = fitted(problem, tools, text=text, **numbers)
        assert getattr(estimator, f"{name}_") == pytest.approx(GIVEN[name], rel=1e-12)
        assert set(np.round(estimator.search_[name], 9)) == {GIVEN[name]}


@pytest.mark.parametrize("shots", [EQUAL, (2,) * 5, (1,) * 5], ids=str)
@pytest.mark.parametrize("name", ["alpha", "gain"])
def test_weights_that_were_given_are_kept(name, shots, tools):
    """As far as float32 holds them."""
    problem = tools.make_problem(shots=shots, spread=0.8)
    for numbers in ({name: GIVEN[name]}, GIVEN):
        estimator = fitted(problem, tools, **numbers)
        assert getattr(estimator, f"{name}_") == pytest.approx(GIVEN[name], rel=1e-7)


@pytest.mark.parametrize("shots", [EQUAL, (2,) * 5], ids=str)
def test_a_given_alpha_is_kept_without_text(shots, tools):
    problem = tools.make_problem(shots=shots, spread=0.8)
    assert fitted(problem, tools, text=False, alpha=3.0).alpha_ == pytest.approx(3.0, rel=1e-7)


@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
@pytest.mark.parametrize("shots", [EQUAL, UNEQUAL, (2,) * 5, (1,) * 5], ids=str)
def test_the_search_lists_what_it_looked_at_the_choice_first(shots, text, tools):
    problem = tools.make_problem(shots=shots, spread=0.8)
    estimator = fitted(problem, tools, text=text)
    table = estimator.search_
    assert len({len(column) for column in table.values()}) == 1
    for name in ("beta", "tau", "shrinkage"):
        assert table[name][0] == getattr(estimator, f"{name}_")
    assert {"nll", "accuracy", "score"} <= set(table)
    looked = len(table["score"])
    if max(shots) == 1:
        assert looked == 1
        return
    assert all(np.isfinite(column).all() for column in table.values())
    assert table["score"][0] == table["score"].min()
    assert (np.diff(table["score"]) >= 0).all()
    if sum(shots) > 10:
        # From the start at least one step each way.
        assert looked > 6
        for name in ("beta", "tau", "shrinkage"):
            assert len(np.unique(table[name])) > 2


@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
@pytest.mark.parametrize("shots", [EQUAL, UNEQUAL, (2,) * 5], ids=str)
def test_settings_solved_at_once_are_those_solved_one_by_one(shots, text, tools, monkeypatch):
    """Few shots solve several settings in one batch: the walk and the choice are the same.

    Of settings that are solved exactly; the search solves them to about a hundredth.
    """
    monkeypatch.setattr(softmax_folds, "SEARCH_TOLERANCE", 1e-5)
    problem = tools.make_problem(shots=shots, spread=0.8)
    found = fitted(problem, tools, text=text)
    monkeypatch.setattr(softmax_folds, "FEW_ROWS", 0)
    expected = fitted(problem, tools, text=text)
    names = ("beta", "tau", "shrinkage", "diagonal", "offset")
    tables = [np.stack([one.search_[name] for name in names]) for one in (found, expected)]
    np.testing.assert_allclose(tables[0][:, 0], tables[1][:, 0], rtol=1e-6)
    # Scores that are nearly equal may be listed the other way round.
    orders = [np.lexsort(table.round(6)) for table in tables]
    np.testing.assert_allclose(tables[0][:, orders[0]], tables[1][:, orders[1]], rtol=1e-6)
    nll = found.search_["nll"][orders[0]], expected.search_["nll"][orders[1]]
    np.testing.assert_allclose(*nll, rtol=1e-4)
    np.testing.assert_allclose(
        *(one.predict_proba(problem.X) for one in (found, expected)), atol=1e-4
    )


def test_many_answers_are_solved_one_by_one(tools, monkeypatch):
    """A batch of several settings is kept small, however many rows or classes there are."""
    together = []
    parts = softmax_folds.Folds.parts

    def counted(folds, settings):
        together.append(len(settings))
        return parts(folds, settings)

    monkeypatch.setattr(softmax_folds.Folds, "parts", counted)
    problem = tools.make_problem(shots=(4,) * 5, spread=0.8)
    fitted(problem, tools, text=False)
    assert max(together) > 1
    together.clear()
    monkeypatch.setattr(softmax_folds, "FEW_ELEMENTS", 100)
    fitted(problem, tools, text=False)
    assert max(together) == 1


@pytest.mark.parametrize("count", [40, 150], ids=["fewer than features", "more than features"])
def test_a_tiny_shrinkage_fits_in_float32(count):
    rows = np.random.default_rng(0).normal(size=(count, 100))
    options = {"shrinkage": 1e-8, "dtype": "float32", "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)  # where a matrix is singular to rounding
        model = GPCacheClassifier.from_options(**options).fit(rows, np.arange(count) % 4)
    assert np.isfinite(model.predict_proba(rows)).all()


def test_a_choice_at_the_end_of_the_search_is_marked(tools, monkeypatch):
    """Where the best setting is the last one of a range, `at_edge` says so."""
    problem = tools.make_problem(shots=(8,) * 5, spread=0.8)
    assert fitted(problem, tools, text=False).search_["at_edge"][0] == 0
    narrow = ((1e-2, 1e3), (softmax.BETA * 0.9, softmax.BETA * 1.1), (1e-2, 1e4))
    monkeypatch.setattr(softmax, "RANGES", narrow)
    held = fitted(problem, tools, text=False)
    assert held.beta_ == pytest.approx(softmax.BETA)
    assert held.search_["at_edge"][0] == 1


def test_a_validation_set_chooses(tools):
    """Its NLL, with the estimated share of wrong labels, is listed; its weights are the best.

    The search's coarse tolerance moves it by up to 2 %.
    """
    problem = tools.make_problem(shots=(4,) * 5, spread=1.0)
    validation = more_of(tools, spread=1.0, count=12)
    estimator = GPCacheClassifier.from_options(text_prior=problem.prior, **tools.float64)
    estimator.fit(problem.X, problem.y, validation=(validation.X, validation.y))
    labels = np.searchsorted(estimator.classes_, validation.y)
    noise = estimator.label_noise_

    def loss(logits):
        right = tools.softmax(logits)[np.arange(len(labels)), labels]
        return -np.log((1 - noise) * right + noise / 5).mean()

    logits = estimator.logits(validation.X)
    found = loss(logits)
    assert estimator.search_["nll"][0] == pytest.approx(found, rel=0.02)
    right = np.mean(logits.argmax(1) == labels)
    assert estimator.search_["accuracy"][0] == pytest.approx(right, abs=1.5 / 60)
    assert loss(2 * logits) > found
    assert loss(0.5 * logits) > found
    zero_shot = tools.zero_shot(problem.prior, validation.X)
    for factor in (0.0, 2.0):
        assert loss(logits + (factor - 1) * estimator.gain_ * zero_shot) > found


def test_a_validation_set_chooses_for_one_shot_too(tools):
    problem = tools.make_problem(shots=(1,) * 5, spread=0.8)
    problem_text = with_useless_text(problem, 0)
    validation = more_of(tools, spread=0.8, count=12)
    estimator = GPCacheClassifier.from_options(text_prior=problem_text, **tools.float64)
    estimator.fit(problem.X, problem.y, validation=(validation.X, validation.y))
    assert len(estimator.search_["score"]) > 4
    assert estimator.gain_ < 0.2
    with tools.one_sentence(ProtocolError, "validation"):
        GPCacheClassifier.from_options(selection="validation").fit(problem.X, problem.y)


def test_the_criterion_may_be_accuracy(tools):
    problem = tools.make_problem(shots=(8,) * 5, spread=1.0)
    estimator = fitted(problem, tools, text=False, criterion="accuracy")
    table = estimator.search_
    # The score is the share of errors and what the way from the start costs.
    assert (table["score"] >= 1 - table["accuracy"] - 1e-9).all()
    assert table["accuracy"][0] >= np.median(table["accuracy"])


def with_exchanged_names(problem):
    """Text that is worse than useless: every vector has the name of another class."""
    names = problem.prior.class_names
    return TextPrior([*names[1:], names[0]], problem.prior.vectors, logit_scale=12.0)


@pytest.mark.parametrize("shots", [(1,) * 5, (2,) * 5, (4,) * 5, (8,) * 5], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_weights_are_never_negative(seed, shots, tools):
    """Also where a component is of no use: labels that mean nothing, text of other classes."""
    problem = tools.make_problem(shots=shots, spread=1.3, seed=seed)
    labels = np.random.default_rng(seed).permutation(problem.y)
    for prior, y in ((with_exchanged_names(problem), problem.y), (None, labels)):
        estimator = GPCacheClassifier.from_options(text_prior=prior, **tools.float64).fit(
            problem.X, y
        )
        weights = [estimator.alpha_, estimator.discriminant_, estimator.gain_]
        assert np.isfinite(weights).all()
        assert min(weights) >= 0


def test_a_gain_of_zero_switches_the_text_off(tools):
    problem = tools.make_problem(shots=EQUAL, spread=0.8)
    estimator = fitted(problem, tools, gain=0.0)
    assert estimator.gain_ == 0
    told = estimator.explain(problem.queries)
    assert (told.text_logit == 0).all()
    assert (told.cache_logit != 0).all()


@pytest.mark.parametrize("shots", [2, 8])
def test_text_with_its_names_exchanged_gets_no_weight(shots, tools):
    problem = tools.make_problem(shots=(shots,) * 5, spread=0.8)
    prior = with_exchanged_names(problem)
    estimator = GPCacheClassifier.from_options(text_prior=prior, **tools.float64).fit(
        problem.X, problem.y
    )
    assert 0 <= estimator.gain_ < 0.05
    assert np.isfinite(estimator.predict_proba(problem.queries)).all()


@pytest.mark.parametrize("shots", [1, 2, 4, 8])
def test_text_that_is_noise_is_hardly_heard(shots, tools):
    """In the mean of several draws; one shot a class has but five rows to tell by."""
    gains, losses = [], []
    for seed in range(3):
        problem = tools.make_problem(shots=(shots,) * 5, spread=0.8, seed=seed)
        fresh = more_of(tools, spread=0.8, seed=seed)
        prior = with_useless_text(problem, seed)
        noise = GPCacheClassifier.from_options(text_prior=prior, **tools.float64).fit(
            problem.X, problem.y
        )
        alone = fitted(problem, tools, text=False)
        gains.append(noise.gain_)
        losses.append(nll(noise, fresh) - nll(alone, fresh))
    assert np.mean(gains) < {1: 0.2, 2: 0.15, 4: 0.15, 8: 0.1}[shots]
    assert np.mean(losses) < 0.15


@pytest.mark.parametrize("shots", [1, 2, 4])
def test_good_text_helps(shots, tools):
    """Where images alone do worse: with a wide spread, in the mean of several draws."""
    gains, right = [], []
    for seed in range(3):
        problem = tools.make_problem(shots=(shots,) * 5, spread=1.3, seed=seed)
        fresh = more_of(tools, spread=1.3, seed=seed)
        told, alone = (fitted(problem, tools, text=text) for text in (True, False))
        gains.append(told.gain_)
        right.append(told.score(fresh.X, fresh.y) - alone.score(fresh.X, fresh.y))
    assert np.mean(gains) > 0.3
    assert np.mean(right) > 0.05


# Held-out figures.


@pytest.mark.parametrize(
    ("shots", "text"), [(2, False), (4, False), (8, False), (2, True), (4, True)]
)
def test_labels_that_mean_nothing_are_found_at_chance(shots, text, tools):
    """No figure has seen its own label, and none is shown at weights fitted to it.

    Two folds judge each other by the same pairs of shots, so at two shots a class a little is left
    to chance agreement: 0.02 in accuracy and 0.06 in NLL in the mean of 200 draws.
    """
    n, chance, accuracies, losses = 5 * shots, 0.2, [], []
    draws = range({2: 12, 4: 6, 8: 3}[shots])
    for seed in draws:
        generator = np.random.default_rng(seed)
        X = generator.normal(size=(n, 64))
        y = generator.permutation(np.repeat(list("abcde"), shots))
        prior = TextPrior(list("abcde"), generator.normal(size=(5, 64)), 12.0) if text else None
        estimator = GPCacheClassifier.from_options(text_prior=prior, **tools.float64).fit(X, y)
        accuracies.append(estimator.loo_.accuracy)
        losses.append(estimator.loo_.nll)
        assert (estimator.loo_.counted).all()
    bound = 3 * math.sqrt(chance * (1 - chance) / (n * len(draws)))
    assert np.mean(accuracies) < chance + bound + 0.02
    # Less is possible: a class with few of its shots left is guessed less often.
    assert np.mean(accuracies) > chance - 2 * bound
    assert np.mean(losses) > math.log(5) - (0.15 if shots == 2 else 0.07)


def test_held_out_logits_are_those_of_refits(tools):
    """Everything is learned again without the rows: whitening, discriminant, coefficients.

    They are computed in float32: to 1e-3 of the largest logit.
    """
    problem = tools.make_problem(shots=EQUAL, spread=0.8)
    estimator = fitted(problem, tools, **GIVEN)
    found = estimator.held_out().logits
    folds = estimator.fitted_.recipe.folds(estimator.fitted_.shots, 4)
    assert sorted(np.concatenate([held.numpy() for _, held in folds])) == list(range(20))
    for train, held in folds:
        train, held = train.numpy(), held.numpy()
        expected = expected_logits(
            estimator, problem.rows(train), problem.X[held], tools, rows=train
        )
        allowed = 1e-3 * np.abs(expected).max()
        np.testing.assert_allclose(found[held], expected, rtol=0, atol=allowed)


def test_held_out_figures_are_near_those_of_a_test_set(tools):
    """In the mean of several draws: 0.06 in accuracy of 40 rows, 0.15 in NLL."""
    differences = []
    for seed in range(4):
        problem = tools.make_problem(shots=(8,) * 5, spread=1.2, seed=seed)
        fresh = more_of(tools, spread=1.2, seed=seed, count=100)
        estimator = fitted(problem, tools, text=False)
        report = estimator.loo_
        accuracy = report.accuracy - estimator.score(fresh.X, fresh.y)
        differences.append((accuracy, report.nll - nll(estimator, fresh)))
    accuracy, loss = np.mean(differences, axis=0)
    assert abs(accuracy) < 0.06
    assert abs(loss) < 0.15


# The contract of an estimator.


def test_a_fit_forgets_the_one_before_and_is_repeatable(tools):
    problem = tools.make_problem(shots=EQUAL, spread=0.8)
    other = tools.make_problem(shots=(2, 3, 2, 3, 2), seed=5)
    estimator = fitted(problem, tools)
    expected = estimator.predict_proba(problem.queries)
    estimator.set_params(text_prior=other.prior).fit(other.X, other.y)
    estimator.set_params(text_prior=problem.prior).fit(problem.X, problem.y)
    np.testing.assert_array_equal(estimator.predict_proba(problem.queries), expected)
    again = clone(estimator).fit(problem.X, problem.y)
    np.testing.assert_array_equal(again.predict_proba(problem.queries), expected)


def test_it_is_the_default_and_the_paper_keeps_regression():
    estimator = GPCacheClassifier()
    assert estimator.likelihood == "softmax"
    assert {estimator.tau, estimator.beta, estimator.weights} == {"auto"}
    paper = Regression(prior="zero_shot", confidence_scaling=True)
    assert GPCacheClassifier.paper().likelihood == paper
    assert GPCacheFClassifier()._options().likelihood == "gaussian"


def test_regression_has_no_trace_of_it(tools):
    problem = tools.make_problem(shots=EQUAL)
    estimator = fitted(problem, tools, likelihood="gaussian")
    assert not hasattr(estimator, "tau_")
    assert (estimator.explain(problem.queries).discriminant_logit == 0).all()


NOT_A_NUMBER = [-1.0, math.nan, math.inf, "1", None, True]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("tau", value) for value in (0, 0.0, *NOT_A_NUMBER)),
        *(("shrinkage", value) for value in (0, *NOT_A_NUMBER)),
        *(("discriminant", value) for value in NOT_A_NUMBER),
        *(("alpha", value) for value in NOT_A_NUMBER),
        *(("gain", value) for value in NOT_A_NUMBER),
        *(("beta", value) for value in (0, *NOT_A_NUMBER)),
        *(("likelihood", value) for value in ("x", "Softmax", None, 3)),
    ],
)
def test_a_bad_value_is_one_sentence(name, value, problem, tools):
    with tools.one_sentence(DataError, f"{name} of GPCacheClassifier must be"):
        GPCacheClassifier.from_options(**{name: value}).fit(problem.X, problem.y)


@pytest.mark.parametrize(
    "option",
    [
        {"prior": "zero_shot"},
        {"confidence_scaling": True},
        {"precision_weighting": False},
        {"selection": "loo"},
        {"strategy": "grid"},
        {"criterion": "marginal_likelihood"},
    ],
    ids=str,
)
def test_what_belongs_to_regression_is_refused(option, problem, tools):
    (name,) = option
    with tools.one_sentence(ProtocolError, f"{name}=.*likelihood='gaussian'"):
        GPCacheClassifier.from_options(**option).fit(problem.X, problem.y)
    if name != "selection":
        options = {"likelihood": "gaussian", "kernel_space": "raw", **option}
        GPCacheClassifier.from_options(**options).fit(problem.X, problem.y)


def test_trained_keys_have_regression_alone(problem, tools):
    with tools.one_sentence(DataError, "likelihood of GPCacheFClassifier must be"):
        GPCacheFClassifier(likelihood="softmax").fit(problem.X, problem.y)


def test_a_solver_that_cannot_converge_says_so(problem, tools, monkeypatch):
    options = solver.softmax_map.__kwdefaults__ | {"max_iterations": 2}
    monkeypatch.setattr(solver.softmax_map, "__kwdefaults__", options)
    with pytest.raises(NumericalError, match="did not converge in 2 iterations"):
        fitted(problem, tools, **GIVEN)


# Known faults: each test fails today, and reports when it no longer does.


@pytest.mark.parametrize("shots", [EQUAL, (2,) * 5], ids=str)
@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
def test_a_given_discriminant_is_kept(text, shots, tools):
    problem = tools.make_problem(shots=shots, spread=0.8)
    estimator = fitted(problem, tools, text=text, discriminant=0.4)
    assert estimator.discriminant_ == pytest.approx(0.4, rel=1e-7)


def test_a_given_gain_is_kept_where_a_class_has_no_shot(tools):
    problem = tools.make_problem(shots=(5, 3, 4, 2, 0))
    assert fitted(problem, tools, gain=0.5).gain_ == 0.5


def test_a_given_gain_is_kept_to_the_last_digit(tools):
    problem = tools.make_problem(shots=EQUAL)
    assert fitted(problem, tools, gain=0.8).gain_ == 0.8


def test_at_one_shot_a_class_without_any_keeps_its_place(tools):
    recalls = []
    for seed in range(3):
        problem = tools.make_problem(shots=(1, 1, 1, 1, 0), seed=seed)
        fresh = more_of(tools, seed=seed)
        recalls.append(recall_of_absent(fitted(problem, tools), problem, fresh))
    assert np.mean(recalls) > 0.7


def test_held_out_figures_say_how_they_came_about(tools):
    problem = tools.make_problem(shots=(9,) * 5, spread=0.8)
    estimator = fitted(problem, tools, text=False, n_folds=16)
    assert estimator.loo_.protocol == estimator.held_out().protocol


def test_the_offset_in_the_search_is_that_of_a_model(tools):
    problem = tools.make_problem(shots=EQUAL, spread=0.8)
    estimator = fitted(problem, tools, gain=0.1)
    assert estimator.search_["offset"].max() <= 0.1
