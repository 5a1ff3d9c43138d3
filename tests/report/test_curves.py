"""Risk against coverage, against its definition on every order of equal confidences."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpcache import DataError
from gpcache.report.curves import aurc, risk_coverage

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


@pytest.mark.parametrize(
    ("confidence", "correct", "told"),
    [
        ([], [], "one confidence and one outcome per image"),
        ([0.5, 0.6], [True], r"\(2,\) and \(1,\)"),
        ([0.5, np.nan], [True, False], "NaN"),
    ],
)
def test_bad_input_is_told(confidence, correct, told):
    with pytest.raises(DataError, match=told):
        risk_coverage(confidence, correct)
