"""Conformal sets against n + 1 refits for every candidate label, and the promise they make."""

import numpy as np
import pytest
import torch

from gpcache import GPCacheClassifier, GPCacheFClassifier, TextPrior
from gpcache.errors import DataError, NumericalError, ProtocolError
from gpcache.methods import (
    GDAClassifier,
    TaskResClassifier,
    TipAdapterClassifier,
    ZeroShotClassifier,
    conformal,
)
from gpcache.methods.conformal import sets_of


def brute_force(problem, estimator, tools, *, space, prior, text, eta=0.0, conditional=False):
    """p-values (m, c): each query takes each label in turn, and every row is left out by a refit.

    The feature map and the numbers stay as fitted.
    """
    numbers, classes = tools.numbers, estimator.classes_
    phi = tools.feature_map(space, problem.X, problem.y)
    found = np.empty((len(problem.queries), len(classes)))
    for row, query in enumerate(problem.queries):
        X = np.vstack([problem.X, query])
        zero_shot = numbers["gain"] * tools.zero_shot(problem.prior, X) if text else 0.0
        for column, name in enumerate(classes):
            y = np.append(problem.y, name)
            values = tools.one_hot(y, classes)
            if text and prior == "residual":
                values = tools.residual(y, classes, zero_shot)
            scores = np.empty(len(X))
            for i in range(len(X)):
                rest = np.delete(np.arange(len(X)), i)
                mean, variance = tools.posterior(
                    phi(X[rest]),
                    values[rest],
                    phi(X[[i]]),
                    beta=numbers["beta"],
                    noise=numbers["noise"],
                )
                logits = numbers["alpha"] * mean / variance[:, None] ** eta
                if text:
                    logits = logits + zero_shot[[i]]
                chances = tools.softmax(logits / estimator.temperature_)[0]
                scores[i] = -np.log(chances[list(classes).index(y[i])])
            others = y[:-1] == name if conditional else np.ones(len(X) - 1, dtype=bool)
            worse = (scores[:-1] >= scores[-1] - 1e-10) & others
            found[row, column] = (1 + worse.sum()) / (1 + others.sum())
    return found


@pytest.mark.parametrize("conditional", [False, True], ids=["marginal", "class-conditional"])
@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
@pytest.mark.parametrize(
    ("space", "prior", "eta"),
    [("raw", "residual", 0.0), ("centred", "zero_shot", 0.7), ("whitened", "residual", 1.5)],
)
def test_full_conformal_is_refitting_for_every_label(
    space, prior, eta, text, conditional, problem, tools
):
    estimator = tools.gp_cache(
        problem if text else None,
        kernel_space=space,
        prior=prior,
        eta=eta,
        confidence_scaling=eta > 0,
    ).fit(problem.X, problem.y)
    expected = brute_force(
        problem,
        estimator,
        tools,
        space=space,
        prior=prior,
        text=text,
        eta=eta,
        conditional=conditional,
    )
    found = estimator.predict_set(
        problem.queries, error=0.2, protocol="full", class_conditional=conditional
    )
    np.testing.assert_allclose(found.p_values, expected, atol=1e-12)
    np.testing.assert_array_equal(found.included, expected > 0.2)
    assert len(np.unique(expected)) > 3  # the numbers tell something


def test_one_shot_a_class_is_enough_for_full_conformal(tools):
    problem = tools.make_problem(shots=(1, 1, 1, 1, 1))
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    expected = brute_force(problem, estimator, tools, space="raw", prior="residual", text=True)
    found = estimator.predict_set(problem.queries, error=0.3)
    np.testing.assert_allclose(found.p_values, expected, atol=1e-12)


def test_after_an_update_it_is_that_of_all_shots(problem, tools):
    rows = np.arange(14)
    part, rest = problem.rows(rows[:10]), problem.rows(rows[10:])
    updated = tools.gp_cache(problem, kernel_space="raw").fit(part.X, part.y).add(rest.X, rest.y)
    whole = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    updated.temperature_ = whole.temperature_
    expected, found = (one.predict_set(problem.queries) for one in (whole, updated))
    np.testing.assert_allclose(found.p_values, expected.p_values)


def test_batches_change_nothing(problem, tools, monkeypatch):
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    whole = estimator.predict_set(problem.queries).p_values
    monkeypatch.setattr(conformal, "BATCH_ELEMENTS", 150)
    np.testing.assert_array_equal(estimator.predict_set(problem.queries).p_values, whole)


def test_a_copy_of_a_shot_ties_with_it(problem, tools):
    """Row and copy are exchangeable, so with its label the copy is no worse than the shot."""
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    found = estimator.predict_set(problem.X)
    own = np.searchsorted(estimator.classes_, problem.y)
    assert (found.p_values[np.arange(14), own] >= 2 / 15 - 1e-12).all()


def test_float32_says_nearly_the_same(problem, tools):
    double, single = (
        tools.gp_cache(problem, kernel_space="raw", dtype=dtype).fit(problem.X, problem.y)
        for dtype in ("float64", "float32")
    )
    expected, found = (one.predict_set(problem.queries).p_values for one in (double, single))
    assert (np.abs(found - expected) <= 1 / 15 + 1e-12).all()
    assert (found == expected).mean() > 0.9


def one_kind(generator, n, *, classes=4, width=10):
    """Rows and labels that are independent and alike: exchangeable."""
    centres = np.random.default_rng(99).normal(1, 1, (classes, width))
    labels = generator.integers(classes, size=n)
    return generator.normal(centres[labels], 1.2), labels


@pytest.mark.parametrize("conditional", [False, True], ids=["marginal", "class-conditional"])
def test_sets_hold_the_truth_as_promised(conditional, tools):
    """Fixed numbers and raw space: coverage in [1 − ε, 1 − ε + 1/(n + 1)], up to chance."""
    errors, hits, n = (0.1, 0.3), [], 30
    for draw in range(60):
        generator = np.random.default_rng(draw)
        X, y = one_kind(generator, n + 20)
        estimator = tools.gp_cache(kernel_space="raw").fit(X[:n], y[:n])
        estimator.temperature_ = 1.0
        found = estimator.predict_set(X[n:], class_conditional=conditional)
        assert found.protocol.endswith("; exact")
        true = found.p_values[np.arange(20), y[n:]]
        hits.append([(true > error).mean() for error in errors])
    mean, deviation = np.mean(hits, 0), np.std(hits, 0) / np.sqrt(len(hits))
    for coverage, spread, error in zip(mean, deviation, errors, strict=True):
        assert coverage >= 1 - error - 3 * spread
        if not conditional:  # coarser steps, and so more slack
            assert coverage <= 1 - error + 1 / (n + 1) + 3 * spread


def test_split_conformal_holds_for_any_method():
    hits = []
    for draw in range(40):
        generator = np.random.default_rng(draw)
        X, y = one_kind(generator, 100)
        estimator = TipAdapterClassifier().fit(X[:40], y[:40])
        found = estimator.predict_set(X[70:], error=0.2, calibration=(X[40:70], y[40:70]))
        assert found.protocol == "split conformal on 30 calibration rows"
        hits.append(found.included[np.arange(30), y[70:]].mean())
    spread = np.std(hits) / np.sqrt(len(hits))
    assert 0.8 - 3 * spread <= np.mean(hits) <= 0.8 + 1 / 31 + 3 * spread


@pytest.mark.parametrize(
    "make",
    [
        lambda: TipAdapterClassifier(),
        lambda: GDAClassifier(),
        lambda: GPCacheClassifier(),
        lambda: GPCacheClassifier.from_options(kernel_space="raw"),
        lambda: GPCacheClassifier.from_options(likelihood="gaussian"),
        lambda: GPCacheClassifier.from_options(precision="nystrom"),
        lambda: GPCacheClassifier.from_options(likelihood="gaussian", precision="nystrom"),
        lambda: GPCacheFClassifier.from_options(epochs=2),
        lambda: TaskResClassifier(text_prior=TextPrior(range(4), np.eye(4, 10)), epochs=2),
    ],
    ids=[
        "tip-adapter",
        "gda",
        "softmax",
        "softmax raw",
        "whitened",
        "softmax nystrom",
        "nystrom",
        "trained keys",
        "trained head",
    ],
)
def test_without_a_closed_form_held_out_shots_speak(make):
    X, y = one_kind(np.random.default_rng(0), 60)
    estimator = make().fit(X[:40], y[:40])
    found = estimator.predict_set(X[40:], error=0.2)
    assert found.protocol.startswith("cross-conformal; approximate, from ")
    report = estimator.loo_
    held_out = report.probabilities[np.arange(40), y[:40]][report.counted]
    chances = estimator.predict_proba(X[40:])
    expected = [
        [(1 + (held_out <= p + 1e-15).sum()) / (1 + len(held_out)) for p in row] for row in chances
    ]
    np.testing.assert_allclose(found.p_values, expected, atol=1e-12)


def test_what_is_not_exchangeable_is_said(tools):
    X, y = one_kind(np.random.default_rng(0), 40)
    chosen = GPCacheClassifier.from_options(likelihood="gaussian", kernel_space="raw").fit(X, y)
    told = chosen.predict_set(X[:2]).protocol
    assert told.endswith(
        "approximate, because the chosen hyper-parameters saw the shots and not the new row"
    )
    whitened = tools.gp_cache().fit(X, y)
    whitened.temperature_ = 1.0
    told = whitened.predict_set(X[:2], protocol="full").protocol
    assert "because the whitening saw the shots" in told
    centred = tools.gp_cache(kernel_space="centred").fit(X, y)
    centred.temperature_ = 1.0
    assert "the centre of the space" in centred.predict_set(X[:2]).protocol


def test_too_few_rows_rule_nothing_out_and_it_is_said_why(problem, tools):
    few = problem.rows(np.arange(6))
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(few.X, few.y)
    found = estimator.predict_set(problem.queries, error=0.1)
    assert found.included.all()
    assert (found.sizes == 5).all()
    assert found.note == (
        "Every set contains every class: 6 labelled rows cannot rule out any class at an error "
        "of 0.1, which needs 9 or more."
    )
    assert estimator.predict_set(problem.queries, error=0.2).note == ""


def test_where_nothing_was_held_out_nothing_is_ruled_out(tools):
    problem = tools.make_problem(shots=(1, 1, 1, 1, 0))
    estimator = GDAClassifier(text_prior=problem.prior).fit(problem.X, problem.y)
    found = estimator.predict_set(problem.queries)
    assert found.included.all()
    assert "0 labelled rows" in found.note
    assert found.protocol.endswith("; 4 shots that are alone in their class are not counted")


def test_the_only_shot_of_a_class_has_its_say(tools):
    """Held out in folds where it can be, else left out by a refit of the posterior alone."""
    problem = tools.make_problem(shots=(5, 1, 4, 3, 0))
    estimator = tools.gp_cache(problem).fit(problem.X, problem.y)
    alone = problem.y == "ash"
    assert (estimator.loo_.counted == ~alone).all()
    row = int(np.flatnonzero(alone)[0])
    rest = problem.rows(np.flatnonzero(~alone))
    phi = tools.feature_map("whitened", problem.X, problem.y)
    numbers = tools.numbers
    text = numbers["gain"] * tools.zero_shot(problem.prior, problem.X)
    # The closed form keeps the values of the fit, in which its class has a shot.
    values = tools.residual(problem.y, estimator.classes_, text)[~alone]
    mean, _ = tools.posterior(
        phi(rest.X), values, phi(problem.X[[row]]), beta=numbers["beta"], noise=numbers["noise"]
    )
    logits = text[[row]] + numbers["alpha"] * mean
    calibrated = estimator._calibration.probabilities(torch.tensor(logits)).numpy()
    truth = np.searchsorted(estimator.classes_, problem.y)
    held_out = estimator.loo_.probabilities[np.arange(13), truth]
    held_out[row] = calibrated[0, truth[row]]
    chances = estimator.predict_proba(problem.queries)
    expected = (1 + (held_out[:, None, None] <= chances + 1e-12).sum(0)) / 14
    found = estimator.predict_set(problem.queries)
    np.testing.assert_allclose(found.p_values, expected, atol=1e-12)


def test_classes_with_few_rows_are_in_every_set(problem, tools):
    """Shots: ash 3, elm 2, fir 4, oak 5, yew 0 (text alone); at 0.2 it takes four."""
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    found = estimator.predict_set(problem.queries, error=0.2, class_conditional=True)
    assert found.included[:, [0, 1, 4]].all()
    assert not found.included[:, [2, 3]].all()
    assert found.note.startswith(
        "3 of 5 classes are in every set: at an error of 0.2 a class needs"
    )
    assert found.note.endswith(
        "a class needs 4 labelled rows of its own to be ruled out, and the smallest has 0."
    )
    steps = found.p_values * (1 + np.array([3, 2, 4, 5, 0]))
    np.testing.assert_allclose(steps, steps.round(), atol=1e-9)


def test_an_estimator_gives_its_sets_itself(problem, tools):
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    for options in ({}, {"error": 0.3, "class_conditional": True}, {"protocol": "held_out"}):
        found = estimator.predict_set(problem.queries, **options)
        features = estimator._read_queries(problem.queries)
        probabilities = estimator.predict_proba(problem.queries)
        expected = sets_of(estimator, features, probabilities, **{"error": 0.1} | options)
        np.testing.assert_array_equal(found.included, expected.included)
        assert (found.error, found.protocol) == (expected.error, expected.protocol)
    split = estimator.predict_set(problem.queries, calibration=(problem.X, problem.y))
    assert split.protocol == "split conformal on 14 calibration rows"


def test_sets_list_their_labels_best_first(problem, tools):
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    found = estimator.predict_set(problem.queries, error=0.2)
    for labels, p, kept in zip(found.labels, found.p_values, found.included, strict=True):
        assert set(labels) == set(estimator.classes_[kept])
        ranks = p[np.searchsorted(estimator.classes_, labels)]
        assert (np.diff(ranks) <= 0).all()
    np.testing.assert_array_equal(found.sizes, [len(labels) for labels in found.labels])


@pytest.mark.parametrize("error", [0, 1, -0.1, 5, True, "often", np.nan])
def test_an_error_is_a_rate(error, problem, tools):
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    with tools.one_sentence(DataError, "^error must be a rate between 0 and 1"):
        estimator.predict_set(problem.queries, error=error)


def test_bad_requests_are_one_sentence(problem, tools):
    cache = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    text = ZeroShotClassifier(text_prior=problem.prior).fit(problem.X, problem.y)
    plain = TipAdapterClassifier().fit(problem.X, problem.y)
    queries = problem.queries
    with tools.one_sentence(DataError, "^protocol of GPCacheClassifier must be one of"):
        cache.predict_set(queries, protocol="split")
    with tools.one_sentence(ProtocolError, "^ZeroShotClassifier learns nothing from labelled"):
        text.predict_set(queries)
    with tools.one_sentence(ProtocolError, "TipAdapterClassifier cannot leave shots out"):
        plain.predict_set(queries, protocol="full")
    with tools.one_sentence(DataError, "validation must be a pair"):
        plain.predict_set(queries, calibration=(queries,))
    found = text.predict_set(queries, calibration=(problem.X, problem.y))
    assert found.p_values.shape == (9, 5)


def test_too_little_memory_is_told_before_it_is_taken(problem, tools, monkeypatch):
    estimator = tools.gp_cache(problem, kernel_space="raw").fit(problem.X, problem.y)
    monkeypatch.setattr("gpcache.support.devices.has_memory", lambda *_: False)
    with tools.one_sentence(NumericalError, "Leaving 14 shots of 5 classes out needs"):
        estimator.predict_set(problem.queries)
