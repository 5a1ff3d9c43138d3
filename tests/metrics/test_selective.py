"""Risk against coverage, against its definition on every order of equal confidences."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpcache import DataError
from gpcache.metrics import accuracy_at_coverage, aurc, coverage_at_risk, risk_coverage

ROWS = st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=6)


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


@given(ROWS, st.sampled_from([0.0, 0.05, 1 / 3, 0.5, 1.0]))
def test_at_a_risk_the_coverage_is_the_last_that_bears_it(rows, bound):
    confidence, correct = zip(*rows, strict=True)
    coverages, risks = risk_coverage(confidence, correct)
    found = coverage_at_risk(confidence, correct, bound)
    fits = [c for c, r in zip(coverages, risks, strict=True) if r <= bound + 1e-9]
    assert found == (fits[-1] if fits else 0.0)


def test_by_hand():
    confidence, correct = [0.9, 0.8, 0.7, 0.6, 0.5], [1, 1, 0, 1, 0]
    assert accuracy_at_coverage(confidence, correct, 0.6) == pytest.approx(2 / 3)
    assert accuracy_at_coverage(confidence, correct, 0.0) == 1.0  # the most confident row
    assert coverage_at_risk(confidence, correct, 0.25) == 0.8  # the risk rises, then falls again
    assert coverage_at_risk(confidence, correct, 0.2) == 0.4
    assert coverage_at_risk(confidence, [0] * 5, 0.2) == 0.0


def test_twenty_rows_bear_one_error_at_five_percent():
    correct = np.ones(20, dtype=bool)
    correct[-1] = False
    assert coverage_at_risk(np.linspace(1, 0, 20), correct, 0.05) == 1.0


def test_infinite_confidences_are_like_others():
    values = [np.inf, np.inf, 0.0, -np.inf]
    _, risk = risk_coverage(values, [1, 0, 1, 1])
    np.testing.assert_allclose(risk, [1 / 2, 1 / 2, 1 / 3, 1 / 4])


@pytest.mark.parametrize(
    ("confidence", "correct", "told"),
    [
        ([], [], r"^confidence must be \(n,\).* \(0,\)"),
        ([0.5, 0.6], [True], r"^correct must be 2 outcomes.* \(1,\)"),
        ([0.5, np.nan], [True, False], "^confidence must not be NaN, but row 1"),
        ([0.5, 0.6], [1, 2], "^correct must be true or false, but row 1 is 2"),
    ],
)
def test_bad_input_is_told(confidence, correct, told):
    for call in (
        risk_coverage,
        aurc,
        lambda a, b: accuracy_at_coverage(a, b, 0.5),
        lambda a, b: coverage_at_risk(a, b, 0.5),
    ):
        with pytest.raises(DataError, match=told):
            call(confidence, correct)


def test_a_share_lies_between_0_and_1():
    with pytest.raises(DataError, match=r"^coverage must lie between 0 and 1, got 1\.5"):
        accuracy_at_coverage([0.5], [1], 1.5)
    with pytest.raises(DataError, match=r"^risk must lie between 0 and 1, got -1"):
        coverage_at_risk([0.5], [1], -1)
