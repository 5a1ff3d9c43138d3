"""Probabilities and intervals against hand-computed cases, definitions and two libraries."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from gpcache.errors import DataError
from gpcache.metrics import (
    accuracy,
    ece,
    expected_ece_if_calibrated,
    nll,
    reliability,
    wilson_interval,
)

SCHEMES = ("width", "mass")


@st.composite
def predictions(draw):
    """Probabilities (n, c) and labels (n,); coarse ones put ties and edges of bins in play."""
    n, c = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    seed, coarse = draw(st.integers(0, 2**32 - 1)), draw(st.booleans())
    generator = np.random.default_rng(seed)
    if coarse:
        probabilities = generator.multinomial(10, np.full(c, 1 / c), size=n) / 10
    else:
        probabilities = generator.dirichlet(np.full(c, 0.5), size=n)
    return probabilities, generator.integers(c, size=n)


def ece_by_loop(probabilities, labels, bins, scheme):
    """The definition, row by row and bin by bin."""
    n = len(labels)
    rows = [(max(p), int(np.argmax(p) == y)) for p, y in zip(probabilities, labels, strict=True)]
    ordered = sorted(confidence for confidence, _ in rows)
    total, low = 0.0, -1.0
    for i in range(1, bins + 1):
        high = i / bins if scheme == "width" else ordered[math.ceil(n * i / bins) - 1]
        inside = [row for row in rows if low < row[0] <= high or (i == bins and row[0] > high)]
        if inside:
            confidence = sum(row[0] for row in inside) / len(inside)
            correct = sum(row[1] for row in inside) / len(inside)
            total += len(inside) / n * abs(correct - confidence)
        low = max(low, high)
    return total


def test_accuracy_by_hand():
    scores = [[3.0, -1.0], [0.0, 5.0], [2.0, 1.0], [1.0, 1.0]]
    assert accuracy(scores, [0, 1, 1, 0]) == 0.75  # the tie counts for the first class
    assert accuracy(scores, [0, 1, 1, 1]) == 0.5


def test_accuracy_takes_infinite_scores():
    assert accuracy([[-np.inf, 0.0], [np.inf, 0.0]], [1, 1]) == 0.5


def test_nll_by_hand():
    assert nll([[0.5, 0.5], [0.25, 0.75]], [0, 0]) == pytest.approx(math.log(2) * 1.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nll_of_an_underflowed_probability_is_finite(dtype):
    expected = -math.log(np.finfo(dtype).tiny)
    assert nll(np.array([[1, 0]], dtype=dtype), [1]) == pytest.approx(expected)


def test_nll_of_whole_numbers():
    assert nll([[1, 0], [0, 1]], [0, 1]) == 0.0


def test_reliability_by_hand():
    probabilities = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.5, 0.5]]
    table = reliability(probabilities, [0, 1, 1, 1], bins=4)
    assert table.count.tolist() == [0, 1, 1, 2]  # 0.5 lies on an edge and belongs below it
    np.testing.assert_allclose(table.confidence, [np.nan, 0.5, 0.6, 0.85])
    np.testing.assert_allclose(table.accuracy, [np.nan, 0.0, 1.0, 0.5])
    expected = 0.25 * 0.5 + 0.25 * 0.4 + 0.5 * 0.35
    assert ece(probabilities, [0, 1, 1, 1], bins=4) == pytest.approx(expected)


def test_bins_of_equal_mass():
    top = np.linspace(0.55, 0.95, 9)
    table = reliability(np.stack([top, 1 - top], axis=1), np.zeros(9, int), bins=3, scheme="mass")
    assert table.count.tolist() == [3, 3, 3]
    np.testing.assert_allclose(table.confidence, [0.6, 0.75, 0.9])


def test_equal_confidences_share_a_bin_of_equal_mass():
    table = reliability([[0.7, 0.3]] * 6, [0, 0, 0, 1, 1, 1], bins=3, scheme="mass")
    assert sorted(table.count.tolist()) == [0, 0, 6]


def test_ece_extremes():
    certain = [[1.0, 0.0], [1.0, 0.0]]
    assert [ece(certain, y) for y in ([0, 0], [0, 1], [1, 1])] == [0.0, 0.5, 1.0]


@given(predictions(), st.integers(1, 20), st.sampled_from(SCHEMES))
def test_ece_is_its_definition(case, bins, scheme):
    probabilities, labels = case
    expected = ece_by_loop(probabilities, labels, bins, scheme)
    assert ece(probabilities, labels, bins=bins, scheme=scheme) == pytest.approx(expected, abs=1e-9)


@given(predictions(), st.integers(1, 20), st.sampled_from(SCHEMES))
def test_reliability_accounts_for_every_row(case, bins, scheme):
    probabilities, labels = case
    table = reliability(probabilities, labels, bins=bins, scheme=scheme)
    assert len(table.count) == bins
    assert table.count.sum() == len(labels)
    right = np.nansum(table.accuracy * table.count)
    assert right == pytest.approx(accuracy(probabilities, labels) * len(labels))
    filled = table.confidence[table.count > 0]
    assert (np.diff(filled) > 0).all()


@given(predictions())
def test_one_bin_is_the_gap_of_the_means(case):
    probabilities, labels = case
    gap = abs(accuracy(probabilities, labels) - probabilities.max(axis=1).mean())
    assert ece(probabilities, labels, bins=1) == pytest.approx(gap, abs=1e-9)
    # Finer bins can only uncover more: |sum| is at most the sum of the parts.
    assert ece(probabilities, labels, bins=7) >= gap - 1e-9


@given(predictions(), st.randoms(use_true_random=False))
def test_the_order_of_rows_means_nothing(case, random):
    probabilities, labels = case
    order = list(range(len(labels)))
    random.shuffle(order)
    for metric in (accuracy, nll, ece, lambda p, y: ece(p, y, bins=4, scheme="mass")):
        before, after = metric(probabilities, labels), metric(probabilities[order], labels[order])
        assert after == pytest.approx(before, abs=1e-9)


def drawn(n, c, seed):
    """Random cases away from the edges of bins, where libraries differ in which bin they take."""
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.full(c, 0.4), size=n)
    return probabilities, generator.integers(c, size=n)


@pytest.fixture(scope="module")
def torchmetrics():
    """Only where it is needed: its import takes seconds, in every process that collects tests."""
    from torchmetrics.functional import classification

    return classification


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("c", [2, 7])
def test_torchmetrics_agrees(seed, c, torchmetrics):
    probabilities, labels = drawn(200, c, seed)
    p, y = torch.tensor(probabilities), torch.tensor(labels)
    expected = torchmetrics.multiclass_calibration_error(p, y, num_classes=c, n_bins=15, norm="l1")
    assert ece(probabilities, labels) == pytest.approx(float(expected), abs=1e-6)
    expected = torchmetrics.multiclass_accuracy(p, y, num_classes=c, average="micro")
    assert accuracy(probabilities, labels) == pytest.approx(float(expected), abs=1e-6)


def test_torchmetrics_agrees_on_a_case_by_hand(torchmetrics):
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.45, 0.55]])
    labels = [0, 1, 1, 1]  # bins (0.5, 0.75]: 0.575 against 1; (0.75, 1]: 0.85 against 0.5
    found = torchmetrics.multiclass_calibration_error(
        torch.tensor(probabilities), torch.tensor(labels), num_classes=2, n_bins=4
    )
    assert ece(probabilities, labels, bins=4) == pytest.approx(0.5 * 0.425 + 0.5 * 0.35)
    assert float(found) == pytest.approx(0.5 * 0.425 + 0.5 * 0.35, abs=1e-6)


def test_what_a_calibrated_model_scores_of_one_confidence():
    """One bin: E|k/n − p| of a binomial, summed by its definition."""
    n, p = 12, 0.7
    expected = sum(
        math.comb(n, k) * p**k * (1 - p) ** (n - k) * abs(k / n - p) for k in range(n + 1)
    )
    found = expected_ece_if_calibrated([[p, 1 - p]] * n, 40_000)
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_a_calibrated_model_scores_is_the_mean_over_labels_so_drawn(scheme):
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.full(3, 0.5), size=60)
    scores = []
    for _ in range(2000):
        labels = [generator.choice(3, p=row) for row in probabilities]
        scores.append(ece(probabilities, labels, bins=6, scheme=scheme))
    found = expected_ece_if_calibrated(probabilities, 4000, bins=6, scheme=scheme)
    assert found == pytest.approx(np.mean(scores), abs=4 * np.std(scores) / math.sqrt(2000))


def test_what_a_calibrated_model_scores_falls_with_the_rows_and_depends_on_the_seed_alone():
    probabilities = np.random.default_rng(1).dirichlet(np.ones(4), size=1000)
    few, many = (expected_ece_if_calibrated(probabilities[:n], 100) for n in (50, 1000))
    assert 2 * many < few
    assert expected_ece_if_calibrated(probabilities, 20, 1) == expected_ece_if_calibrated(
        probabilities, 20, 1
    )
    assert expected_ece_if_calibrated(probabilities, 20, 1) != expected_ece_if_calibrated(
        probabilities, 20, 2
    )
    assert expected_ece_if_calibrated([[1.0, 0.0]] * 5) == 0.0


def test_draws_in_blocks_are_the_same_draws(monkeypatch):
    probabilities = np.random.default_rng(1).dirichlet(np.ones(4), size=30)
    whole = expected_ece_if_calibrated(probabilities, 101)
    monkeypatch.setattr("gpcache.metrics.probabilities._DRAWN_BLOCK", 70)
    assert expected_ece_if_calibrated(probabilities, 101) == pytest.approx(whole, rel=1e-12)


def test_nll_equals_scikit_learn():
    generator = np.random.default_rng(0)
    probabilities, labels = generator.dirichlet(np.ones(5), size=50), generator.integers(5, size=50)
    expected = log_loss(labels, probabilities, labels=range(5))
    assert nll(probabilities, labels) == pytest.approx(expected)


def test_half_precision_probabilities_are_accepted():
    probabilities = np.random.default_rng(0).dirichlet(np.ones(300), size=20).astype(np.float16)
    labels = np.arange(20)
    wide = probabilities.astype(np.float64)
    assert ece(probabilities, labels) == pytest.approx(ece(wide, labels), abs=1e-12)


def test_wilson_by_hand():
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(10, 10)[1] == 1.0


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_are_where_the_score_test_turns(case):
    successes, n = case
    for bound in wilson_interval(successes, n, level=0.95):
        distance = (successes / n - bound) ** 2
        assert distance == pytest.approx(1.959963985**2 * bound * (1 - bound) / n, abs=1e-9)


@pytest.mark.parametrize("metric", [nll, ece, reliability])
@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        ([0.5, 0.5], r"must be \(n, c\)"),
        (np.empty((0, 2)), r"got shape \(0, 2\)"),
        ([[0.5, 0.5], [np.nan, 1.0]], "row 1 has NaN"),
        ([[0.5, 0.5], [0.5, 0.7]], r"row 1 sums to 1\.2 "),
        ([[np.inf, 0.0], [0.5, 0.5]], "row 0 sums to inf"),
        ([[1.5, -0.5], [0.5, 0.5]], "must not be negative, but row 0"),
        ([["a", "b"], ["c", "d"]], "must be real numbers"),
        ([[0.5, 0.5], [1.0]], "rows differ in length"),
    ],
)
def test_bad_probabilities_are_one_sentence(metric, probabilities, message):
    with pytest.raises(DataError, match=f"^probabilities .*{message}"):
        metric(probabilities, [0, 1])


@pytest.mark.parametrize("metric", [accuracy, nll, ece, reliability])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0], r"must be 2 integers.* shape \(1,\)"),
        ([[0], [1]], r"shape \(2, 1\)"),
        ([0.0, 1.0], "got float64"),
        ([True, False], "got bool"),
        (["cat", "dog"], "must be real numbers"),
        ([0, 2], r"in 0…1, but row 1 has 2"),
        ([-1, 0], r"in 0…1, but row 0 has -1"),
    ],
)
def test_bad_labels_are_one_sentence(metric, labels, message):
    with pytest.raises(DataError, match=f"^labels .*{message}"):
        metric([[0.5, 0.5], [0.2, 0.8]], labels)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accuracy([[np.nan, 1.0]], [0]), "^scores .*row 0 has NaN"),
        (lambda: ece([[1.0]], [0], bins=0), "^bins .*got 0"),
        (lambda: ece([[1.0]], [0], bins=2.5), "^bins .*got 2.5"),
        (lambda: ece([[1.0]], [0], scheme="size"), "^scheme .*got 'size'"),
        (lambda: reliability([[1.0]], [0], bins=True), "^bins .*got True"),
        (lambda: expected_ece_if_calibrated([[1.0]], 0), "^n_draws .*got 0"),
        (lambda: expected_ece_if_calibrated([[0.4, 0.4]]), "^probabilities .*sums to 0.8"),
        (lambda: expected_ece_if_calibrated([[1.0]], scheme="size"), "^scheme .*got 'size'"),
        (lambda: wilson_interval(1, 2, level=0.0), "^level .*got 0.0"),
        (lambda: wilson_interval(3, 2), "^successes .*3 of 2"),
        (lambda: wilson_interval(0, 0), "^successes .*0 of 0"),
    ],
)
def test_bad_parameters_are_one_sentence(call, message):
    with pytest.raises(DataError, match=message):
        call()
