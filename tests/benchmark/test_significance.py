"""Significance, against brute force, scipy and printed tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from gpcache.benchmark.significance import (
    alike,
    critical_difference,
    mean_and_deviation,
    mean_ranks,
    paired_bootstrap,
)
from gpcache.errors import DataError


def test_the_bootstrap_equals_one_that_resamples_images():
    generator = np.random.default_rng(0)
    sets = [generator.random((2, n)) < 0.7 for n in (80, 50)]
    first, second = [pair[0] for pair in sets], [pair[1] for pair in sets]
    found = paired_bootstrap(first, second, repeats=20_000)
    means = np.zeros(20_000)
    for one, other in zip(first, second, strict=True):
        gaps = one.astype(float) - other
        drawn = generator.integers(len(gaps), size=(20_000, len(gaps)))
        means += gaps[drawn].mean(1) / 2
    observed = np.mean([a.mean() - b.mean() for a, b in zip(first, second, strict=True)])
    assert found.mean == pytest.approx(observed)
    assert (found.low, found.high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.006)
    slow = 2 * min(np.mean(means <= 0), np.mean(means >= 0))
    assert found.p_value == pytest.approx(slow, abs=0.03)


def test_equal_methods_do_not_differ_and_a_clear_winner_does():
    right = np.ones(200, dtype=bool)
    assert paired_bootstrap([right], [right]) == (0, 0, 0, 1)
    found = paired_bootstrap([right], [np.arange(200) % 2 == 0])
    assert found.mean == 0.5
    assert found.p_value == 0
    assert 0.4 < found.low < 0.5 < found.high < 0.6


def test_draws_of_the_same_images_are_no_further_images():
    generator = np.random.default_rng(1)
    one, other = generator.random((2, 300)) < 0.6
    alone = paired_bootstrap([one], [other])
    tripled = paired_bootstrap([np.mean([one] * 3, axis=0)], [np.mean([other] * 3, axis=0)])
    assert tripled == pytest.approx(alone)


def test_unpaired_rows_are_refused():
    with pytest.raises(DataError, match="same test rows"):
        paired_bootstrap([np.ones(3, bool)], [np.ones(4, bool)])


@pytest.mark.parametrize(("methods", "quantile"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_differences_are_those_of_the_printed_table(methods, quantile):
    # Demšar, 2006, table 5(a): q at 0.05.
    expected = quantile * np.sqrt(methods * (methods + 1) / (6 * 11))
    assert critical_difference(methods, 11) == pytest.approx(expected, rel=1e-3)


@given(st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), min_size=1, max_size=5))
def test_ranks_count_those_that_are_better(cells):
    scores = np.array(cells, dtype=float).T
    slow = [
        np.mean([1 + np.sum(column > own) + (np.sum(column == own) - 1) / 2
                 for column, own in zip(scores.T, row, strict=True)])
        for row in scores
    ]  # fmt: skip
    assert mean_ranks(scores) == pytest.approx(slow)
    assert mean_ranks(scores).sum() == pytest.approx(rankdata(np.arange(4)).sum())


def test_runs_join_what_lies_within_the_difference():
    assert alike(np.array([1.0, 1.5, 2.9, 3.0]), 0.6) == [(0, 1), (2, 3)]
    assert alike(np.array([1.0, 2.0, 3.0]), 1.0) == [(0, 1), (1, 2)]
    assert alike(np.array([1.0, 2.0, 3.0]), 5.0) == [(0, 2)]
    assert alike(np.array([1.0, 3.0]), 1.0) == []


def test_the_deviation_is_that_of_a_sample():
    assert mean_and_deviation([1.0, 3.0]) == pytest.approx((2.0, 2**0.5))
    assert np.isnan(mean_and_deviation([1.0])[1])
