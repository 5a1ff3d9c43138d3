"""Intervals against the normal approximation, the score test they invert, and each other."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpcache.errors import DataError
from gpcache.metrics import bootstrap_interval, bootstrap_metric, ece, wilson_interval


def test_bootstrap_agrees_with_the_normal_interval():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=500)
    low, high = bootstrap_interval(values, repeats=20_000)
    half = 1.96 * values.std() / math.sqrt(values.size)
    assert low == pytest.approx(values.mean() - half, abs=0.04 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.04 * half)


def test_bootstrap_is_drawn_from_its_seed_alone():
    values = np.arange(10) % 3 == 0
    first = bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, seed=1) == first
    assert bootstrap_interval(np.arange(10.0), seed=1) != bootstrap_interval(
        np.arange(10.0), seed=2
    )


def test_bootstrap_widens_with_its_level_and_of_a_constant_is_a_point():
    values = np.random.default_rng(2).random(50)
    narrow, wide = (bootstrap_interval(values, level=level) for level in (0.5, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert bootstrap_interval([0.25] * 5) == (0.25, 0.25)


def test_bootstrap_in_blocks_fills_every_repeat(monkeypatch):
    monkeypatch.setattr("gpcache.metrics.intervals._BOOTSTRAP_BLOCK", 30)
    low, high = bootstrap_interval([1.0] * 9 + [2.0], repeats=101)
    assert 1.0 <= low < high <= 2.0


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


def test_the_bootstrap_of_any_metric_is_that_of_the_mean_for_the_mean():
    values = np.random.default_rng(3).random(40)
    found = bootstrap_metric(np.mean, values, repeats=200, seed=5)
    assert found == pytest.approx(bootstrap_interval(values, repeats=200, seed=5))


def test_rows_of_all_arrays_go_together():
    """A metric that would see any pair torn apart."""
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(3), size=30)
    labels = probabilities.argmax(1)

    def torn(p, y):
        return float((p.argmax(1) != y).sum())

    assert bootstrap_metric(torn, probabilities, labels, repeats=50) == (0.0, 0.0)


def test_the_interval_of_an_ece_widens_with_its_level():
    generator = np.random.default_rng(1)
    probabilities = generator.dirichlet(np.ones(4), size=80)
    labels = generator.integers(4, size=80)
    narrow, wide = (
        bootstrap_metric(ece, probabilities, labels, level=level, repeats=200)
        for level in (0.5, 0.95)
    )
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval([]), r"^values .*\(0,\)"),
        (lambda: bootstrap_interval([[1.0]]), r"^values .*\(1, 1\)"),
        (lambda: bootstrap_interval([1.0, np.nan]), "^values must be a row of finite"),
        (lambda: bootstrap_interval([1.0], repeats=0), "^repeats .*got 0"),
        (lambda: bootstrap_interval([1.0], level=95), "^level .*got 95"),
        (lambda: bootstrap_metric(np.mean), "same number of rows, at least 1; got none"),
        (lambda: bootstrap_metric(ece, [[1.0]], [0, 0]), r"got \(1, 1\), \(2,\)"),
        (lambda: bootstrap_metric(np.mean, []), r"at least 1; got \(0,\)"),
        (lambda: bootstrap_metric(np.mean, 3.0), r"at least 1; got \(\)"),
        (lambda: bootstrap_metric(np.mean, ["a"]), "^array 0 must be real numbers"),
        (lambda: bootstrap_metric(np.mean, [1.0], level=0), "^level .*got 0"),
        (lambda: bootstrap_metric(np.mean, [1.0], repeats=1.5), "^repeats .*got 1.5"),
        (lambda: wilson_interval(1, 2, level=0.0), "^level .*got 0.0"),
        (lambda: wilson_interval(3, 2), "^successes .*3 of 2"),
        (lambda: wilson_interval(0, 0), "^successes .*0 of 0"),
    ],
)
def test_bad_parameters_are_one_sentence(call, message):
    with pytest.raises(DataError, match=message):
        call()
