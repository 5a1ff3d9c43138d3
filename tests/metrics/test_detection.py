"""Telling two kinds of rows apart, against every pair, scikit-learn and torchmetrics."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve
from torchmetrics.functional.classification import binary_auroc, binary_roc

from gpcache.errors import DataError
from gpcache.metrics import auroc, fpr_at_tpr


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


def test_by_hand():
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
    ("scores", "positive", "told"),
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
def test_bad_input_is_told(metric, scores, positive, told):
    with pytest.raises(DataError, match=told):
        metric(scores, positive)


def test_a_rate_lies_between_0_and_1():
    with pytest.raises(DataError, match=r"^tpr must lie between 0 and 1, got 95"):
        fpr_at_tpr([1.0, 2.0], [1, 0], tpr=95)
