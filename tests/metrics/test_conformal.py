"""The pieces of conformal prediction against counting by hand, and what they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpcache.errors import DataError
from gpcache.metrics import conformal
from gpcache.metrics.conformal import (
    class_p_values,
    in_set,
    lac_scores,
    least_rows,
    p_values,
    uneven_classes,
    why_everything,
)

COARSE = st.integers(0, 8).map(lambda value: value / 4)
ERRORS = st.sampled_from([0.02, 0.05, 0.07, 0.1, 0.2, 0.3, 1 / 3, 0.5, 0.9])


@given(st.lists(COARSE, max_size=40), st.lists(COARSE, min_size=1, max_size=5))
def test_a_p_value_is_the_share_of_rows_as_bad_with_itself(calibration, scores):
    expected = [
        (1 + sum(known >= score for known in calibration)) / (len(calibration) + 1)
        for score in scores
    ]
    np.testing.assert_allclose(p_values(calibration, scores), expected)


@given(ERRORS)
def test_from_so_many_rows_on_a_label_can_be_ruled_out(error):
    n = least_rows(error)
    worst = 99.0
    assert not in_set(p_values(np.zeros(n), [worst]), error).any()
    if n:
        assert in_set(p_values(np.zeros(n - 1), [worst]), error).all()


def test_why_a_set_is_everything():
    assert why_everything(9, 0.1) == ""
    assert why_everything(8, 0.1) == (
        "Every set contains every class: 8 labelled rows cannot rule out any class at an error "
        "of 0.1, which needs 9 or more."
    )
    assert [least_rows(error) for error in (0.5, 0.2, 0.1, 0.05, 0.01)] == [1, 4, 9, 19, 99]


def test_a_class_is_compared_with_its_own_rows(monkeypatch):
    generator = np.random.default_rng(0)
    known, labels = generator.integers(6, size=30) / 5, generator.integers(3, size=30)
    scores = generator.integers(6, size=(20, 4)) / 5  # class 3 has no rows
    expected = np.column_stack([p_values(known[labels == c], scores[:, c]) for c in range(4)])
    np.testing.assert_allclose(class_p_values(known, labels, scores), expected)
    assert (expected[:, 3] == 1).all()
    monkeypatch.setattr(conformal, "_BLOCK", 100)
    np.testing.assert_allclose(class_p_values(known, labels, scores), expected)


def test_classes_that_sets_miss_are_listed_worst_first():
    """Of 20 rows each, one class is missed always, one half of the time, the others hardly ever."""
    generator = np.random.default_rng(0)
    scores = generator.random((12, 20)) * 0.5
    scores[3] += 0.5
    scores[7, :10] += 0.5
    labels = np.repeat(np.arange(12), 20)
    found = uneven_classes(scores.ravel(), labels, 0.125)
    assert found == [(3, 0, 20), (7, 10, 20)]
    assert uneven_classes(generator.random(240), labels, 0.125) == []
    assert uneven_classes([], [], 0.125) == []


def test_lac_is_what_the_label_lacks_to_certainty():
    np.testing.assert_allclose(lac_scores([[0.7, 0.3]]), [[0.3, 0.7]])


@pytest.mark.parametrize("error", [0.1, 0.3])
def test_split_sets_hold_the_truth_as_promised(error):
    """Labels drawn from other probabilities than the model's: the promise needs no good model."""
    generator = np.random.default_rng(0)
    n, hits = 30, []
    for _ in range(400):
        logits = generator.normal(size=(n + 20, 5))
        labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
        claimed = np.exp(3 * logits) / np.exp(3 * logits).sum(1, keepdims=True)  # far too sure
        own = lac_scores(claimed)[np.arange(n + 20), labels]
        hits.append(in_set(p_values(own[:n], own[n:]), error).mean())
    spread = np.std(hits) / 20
    assert 1 - error - 3 * spread <= np.mean(hits) <= 1 - error + 1 / (n + 1) + 3 * spread


@pytest.mark.parametrize("error", [1e-300, 5e-324])
def test_the_smallest_errors_are_one_short_sentence(error):
    assert least_rows(error) > 10**299
    assert len(why_everything(3, error)) < 200


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: in_set([0.5], 0), "^error must be a rate between 0 and 1, .*got 0"),
        (lambda: in_set([0.5], 1.0), "^error must be .*got 1.0"),
        (lambda: least_rows(True), "^error must be .*got True"),
        (lambda: why_everything(3, np.nan), "^error must be .*got nan"),
        (lambda: p_values([[0.5]], [0.1]), r"^Calibration scores must be \(n,\), got shape \(1, 1"),
        (lambda: p_values([np.nan], [0.1]), "^Calibration scores must not be NaN, but row 0"),
        (lambda: p_values([0.5], [[0.1], [np.nan]]), "^Scores must not be NaN, but row 1"),
        (lambda: class_p_values([0.5], [0, 1], [[0.1]]), "1 calibration scores and 2 labels"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(DataError, match=message):
        call()
