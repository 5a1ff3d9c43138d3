"""Order by a score, against every pair and order, scikit-learn and torchmetrics."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from gpcache.errors import DataError
from gpcache.metrics import accuracy_at_coverage, aurc, auroc, fpr_at_tpr, risk_coverage

ROWS = st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=6)


@st.composite
def scored(draw):
    """Scores (n,) and which are positive, at least one of each; coarse scores put ties in play."""
    n, seed = draw(st.integers(2, 60)), draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    coarse = draw(st.booleans())
    scores = generator.integers(5, size=n) / 4 if coarse else generator.normal(size=n)
    positive = generator.random(n) < 0.6
    positive[:2] = True, False
    return scores, positive


@given(scored())
def test_auroc_is_the_share_of_pairs_in_order(case):
    scores, positive = case
    inside, outside = scores[positive], scores[~positive]
    pairs = [(a > b) + 0.5 * (a == b) for a in inside for b in outside]
    assert auroc(scores, positive) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    assert auroc(-scores, ~positive) == pytest.approx(auroc(scores, positive), abs=1e-12)


@given(scored(), st.sampled_from([0.0, 0.5, 0.8, 0.95, 1.0]))
def test_fpr_is_the_least_of_all_thresholds_that_let_enough_in(case, tpr):
    scores, positive = case
    false, true, _ = roc_curve(positive, scores, drop_intermediate=False)
    expected = false[(true >= tpr - 1e-9) & (true > 0)].min()
    assert fpr_at_tpr(scores, positive, tpr=tpr) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_torchmetrics_agrees(seed):
    from torchmetrics.functional.classification import binary_auroc, binary_roc  # takes seconds

    generator = np.random.default_rng(seed)
    positive = generator.random(300) < 0.5
    scores = generator.normal(positive.astype(float))
    # As probabilities: torchmetrics would squash anything else, and so make ties.
    squashed = torch.tensor(1 / (1 + np.exp(-scores)))
    target = torch.tensor(positive.astype(int))
    expected = float(binary_auroc(squashed, target))
    assert auroc(scores, positive) == pytest.approx(expected, abs=1e-6)
    false, true, _ = binary_roc(squashed, target)
    expected = float(false[true >= 0.95 - 1e-6].min())
    assert fpr_at_tpr(scores, positive) == pytest.approx(expected, abs=1e-6)


def test_detection_by_hand():
    scores = [4, 3, 3, 1, 3, 2, 0]
    positive = [1, 1, 1, 1, 0, 0, 0]
    # 4: 3 below; 3 twice: 2 below and a tie; 1: 1 below.
    assert auroc(scores, positive) == pytest.approx((3 + 2.5 + 2.5 + 1) / 12)
    assert fpr_at_tpr(scores, positive) == pytest.approx(2 / 3)  # needs the 1, and so 3 and 2 pass
    assert fpr_at_tpr(scores, positive, tpr=0.5) == pytest.approx(1 / 3)  # the tied 3 passes too
    assert fpr_at_tpr(scores, positive, tpr=0.25) == 0.0


def test_nineteen_of_twenty_are_enough():
    """0.95 · 20 is 19 rows, whatever rounding makes of it."""
    scores = np.append(np.arange(20.0), 0.5)
    assert fpr_at_tpr(scores, np.arange(21) < 20) == 0.0


def test_equal_scores_tell_nothing():
    assert auroc(np.ones(10), np.arange(10) < 3) == 0.5
    assert fpr_at_tpr(np.ones(10), np.arange(10) < 3) == 1.0


def test_infinite_scores_are_like_others():
    assert auroc([np.inf, 0.0, -np.inf, np.inf], [1, 1, 0, 0]) == pytest.approx((1.5 + 1) / 4)


@pytest.mark.parametrize("metric", [auroc, fpr_at_tpr])
@pytest.mark.parametrize(
    ("scores", "positive", "message"),
    [
        ([], [], r"^scores must be \(n,\)"),
        ([[1.0]], [1], r"^scores must be \(n,\)"),
        ([1.0, np.nan], [1, 0], "^scores must not be NaN, but row 1"),
        ([1.0, 2.0], [1], "^positive must be 2 outcomes"),
        ([1.0, 2.0], [1, 3], "^positive must be true or false, but row 1 is 3"),
        ([1.0, 2.0], [1, 1], "^positive must hold rows of both kinds, but all 2 are positive"),
        ([1.0, 2.0], [0, 0], "^positive must hold rows of both kinds, but all 2 are negative"),
    ],
)
def test_bad_scores_are_one_sentence(metric, scores, positive, message):
    with pytest.raises(DataError, match=message):
        metric(scores, positive)


def test_a_rate_lies_between_0_and_1():
    with pytest.raises(DataError, match=r"^tpr must lie between 0 and 1, got 95"):
        fpr_at_tpr([1.0, 2.0], [1, 0], tpr=95)


@given(ROWS)
def test_risk_is_the_mean_over_all_orders_that_put_the_confident_first(rows):
    n = len(rows)
    risks = []
    for order in permutations(range(n)):
        confidence = [rows[i][0] for i in order]
        if confidence == sorted(confidence, reverse=True):
            errors = np.cumsum([not rows[i][1] for i in order])
            risks.append(errors / np.arange(1, n + 1))
    coverage, risk = risk_coverage(*zip(*rows, strict=True))
    np.testing.assert_allclose(risk, np.mean(risks, axis=0), atol=1e-12)
    np.testing.assert_allclose(coverage, np.arange(1, n + 1) / n)
    assert aurc(*zip(*rows, strict=True)) == pytest.approx(np.mean(risks))


def test_full_coverage_has_the_error_rate():
    generator = np.random.default_rng(0)
    correct = generator.random(500) < 0.8
    _, risk = risk_coverage(generator.random(500), correct)
    assert risk[-1] == pytest.approx(1 - correct.mean())


def test_the_better_the_order_the_smaller_the_area():
    correct = np.arange(100) < 80
    confidence = np.linspace(1, 0, 100)
    best, worst = aurc(confidence, correct), aurc(-confidence, correct)
    constant = aurc(np.ones(100), correct)
    assert best < constant < worst
    assert constant == pytest.approx(0.2)
    assert aurc(confidence, np.ones(100, dtype=bool)) == 0


@given(ROWS, st.floats(0, 1))
def test_at_a_coverage_the_accuracy_is_that_of_the_rows_kept(rows, coverage):
    confidence, correct = zip(*rows, strict=True)
    _, risk = risk_coverage(confidence, correct)
    kept = next(k for k in range(1, len(rows) + 1) if k / len(rows) >= coverage - 1e-9)
    assert accuracy_at_coverage(confidence, correct, coverage) == pytest.approx(1 - risk[kept - 1])


def test_accuracy_at_coverage_by_hand():
    confidence, correct = [0.9, 0.8, 0.7, 0.6, 0.5], [1, 1, 0, 1, 0]
    assert accuracy_at_coverage(confidence, correct, 0.6) == pytest.approx(2 / 3)
    assert accuracy_at_coverage(confidence, correct, 0.0) == 1.0  # the most confident row


def test_infinite_confidences_are_like_others():
    values = [np.inf, np.inf, 0.0, -np.inf]
    _, risk = risk_coverage(values, [1, 0, 1, 1])
    np.testing.assert_allclose(risk, [1 / 2, 1 / 2, 1 / 3, 1 / 4])


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([], [], r"^confidence must be \(n,\).* \(0,\)"),
        ([0.5, 0.6], [True], r"^correct must be 2 outcomes.* \(1,\)"),
        ([0.5, np.nan], [True, False], "^confidence must not be NaN, but row 1"),
        ([0.5, 0.6], [1, 2], "^correct must be true or false, but row 1 is 2"),
    ],
)
def test_bad_confidences_are_one_sentence(confidence, correct, message):
    for call in (risk_coverage, aurc, lambda a, b: accuracy_at_coverage(a, b, 0.5)):
        with pytest.raises(DataError, match=message):
            call(confidence, correct)


def test_a_share_lies_between_0_and_1():
    with pytest.raises(DataError, match=r"^coverage must lie between 0 and 1, got 1\.5"):
        accuracy_at_coverage([0.5], [1], 1.5)
