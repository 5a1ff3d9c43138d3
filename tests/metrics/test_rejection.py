"""Familiarity scores against their definitions, torch and scikit-learn, and their promise."""

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from gpcache.errors import DataError
from gpcache.metrics import rejection
from gpcache.metrics.rejection import (
    certainty,
    energy,
    familiarity,
    joint_familiarity,
    max_probability,
    neighbour_similarity,
)


@pytest.fixture
def logits():
    return np.random.default_rng(0).normal(0, 5, (30, 6))


@pytest.mark.parametrize("temperature", [0.01, 1.0, 7.0])
def test_logits_as_torch_has_it(logits, temperature):
    scaled = torch.tensor(logits) / temperature
    expected = scaled.softmax(1).amax(1).numpy()
    np.testing.assert_allclose(max_probability(logits, temperature=temperature), expected)
    expected = (temperature * scaled.logsumexp(1)).numpy()
    np.testing.assert_allclose(energy(logits, temperature=temperature), expected)


def test_logits_by_hand():
    assert max_probability([[0.0, math.log(3)]]) == pytest.approx([0.75])
    assert energy([[0.0, math.log(3)]]) == pytest.approx([math.log(4)])
    assert energy([[2.0]], temperature=5.0) == pytest.approx([2.0])


def test_large_logits_do_not_overflow():
    np.testing.assert_allclose(energy([[5000.0, 0.0], [-5000.0, -5000.0]]), [5000, -4999.306853])
    np.testing.assert_allclose(max_probability([[5000.0, 0.0], [-5000.0, -5000.0]]), [1, 0.5])


def test_a_common_shift_is_seen_by_the_energy_alone(logits):
    np.testing.assert_allclose(max_probability(logits + 3), max_probability(logits))
    np.testing.assert_allclose(energy(logits + 3), energy(logits) + 3)


@pytest.mark.parametrize("k", [1, 4, 20])
def test_neighbours_as_scikit_learn_has_them(k, monkeypatch):
    generator = np.random.default_rng(1)
    keys, queries = generator.normal(size=(20, 8)), generator.normal(size=(15, 8))
    found = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(keys)
    expected = 1 - found.kneighbors(queries)[0][:, -1]
    np.testing.assert_allclose(neighbour_similarity(queries, keys, k=k), expected)
    monkeypatch.setattr(rejection, "_BLOCK", 60)
    np.testing.assert_allclose(neighbour_similarity(queries, keys, k=k), expected)


def test_with_fewer_keys_than_k_the_farthest_counts():
    keys = np.eye(3)
    np.testing.assert_allclose(neighbour_similarity([[3.0, 4.0, 0.0]], keys, k=10), [0.0])


def test_certainty_is_of_the_surest_group():
    np.testing.assert_allclose(certainty([0.2, 0.9]), [0.8, 0.1])
    np.testing.assert_allclose(certainty([[0.2, 0.5], [0.9, 0.6]]), [0.8, 0.4])


def test_familiarity_by_hand():
    """Held-out rows and the row itself count; a tie speaks for the row."""
    np.testing.assert_allclose(familiarity([1, 2, 3, 4], [0, 1, 2.5, 4, 9]), [0.2, 0.4, 0.6, 1, 1])


def test_no_more_good_rows_are_refused_than_promised():
    generator = np.random.default_rng(2)
    refused = [
        (familiarity(generator.normal(size=19), generator.normal(size=40)) <= 0.1).mean()
        for _ in range(400)
    ]
    spread = np.std(refused) / math.sqrt(400)
    assert np.mean(refused) == pytest.approx(0.1, abs=3 * spread)


def joint_by_loop(held_out, row):
    """The new row joins the others; ranks by every score are summed and the sums compared."""
    everyone = np.column_stack([held_out, row])
    ranks = [[sum(other <= one for other in score) for one in score] for score in everyone]
    total = np.sum(ranks, 0)
    return np.mean(total <= total[-1])


@pytest.mark.parametrize("coarse", [True, False])
def test_joint_familiarity_is_its_definition(coarse, monkeypatch):
    generator = np.random.default_rng(4)
    held_out, scores = generator.normal(size=(3, 12)), generator.normal(size=(3, 30))
    if coarse:
        held_out, scores = held_out.round(), scores.round()
    expected = [joint_by_loop(held_out, scores[:, i]) for i in range(30)]
    np.testing.assert_allclose(joint_familiarity(held_out, scores), expected)
    monkeypatch.setattr(rejection, "_BLOCK", 40)
    np.testing.assert_allclose(joint_familiarity(held_out, scores), expected)


def test_of_one_score_joint_familiarity_is_familiarity():
    generator = np.random.default_rng(5)
    held_out, scores = generator.integers(9, size=30), generator.integers(-1, 10, size=50)
    expected = familiarity(held_out, scores)
    np.testing.assert_allclose(joint_familiarity([held_out], [scores]), expected)


@pytest.mark.parametrize("likeness", [0.0, 0.9, -0.9])
def test_jointly_no_more_good_rows_are_refused_than_promised(likeness):
    generator = np.random.default_rng(6)
    covariance = [[1, likeness], [likeness, 1]]
    refused = []
    for _ in range(400):
        rows = generator.multivariate_normal([0, 0], covariance, size=39 + 30).T
        refused.append((joint_familiarity(rows[:, :39], rows[:, 39:]) <= 0.1).mean())
    spread = np.std(refused) / math.sqrt(400)
    assert 0.05 < np.mean(refused) <= 0.1 + 3 * spread


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: energy([1.0, 2.0]), r"^logits must be \(m, c\).* \(2,\)"),
        (lambda: max_probability(np.zeros((2, 0))), r"^logits must be \(m, c\).* \(2, 0\)"),
        (lambda: energy([[1.0]], temperature=0), "^temperature must be a number above zero"),
        (lambda: max_probability([[1.0]], temperature=np.nan), "^temperature .*got nan"),
        (lambda: neighbour_similarity([[1.0]], [[1.0]], k=0), "^k must be .*got 0"),
        (lambda: neighbour_similarity([[1.0]], [[1.0]], k=True), "^k must be .*got True"),
        (lambda: neighbour_similarity([[1.0]], [[1.0, 2.0]]), "1 columns and keys 2"),
        (lambda: neighbour_similarity([[1.0]], []), r"^keys must be \(n, d\)"),
        (lambda: neighbour_similarity([[0.0]], [[1.0]]), "^Row 0 of queries is all zeros"),
        (lambda: familiarity([0.1, np.nan], [0.2]), "^Calibration scores must not be NaN.* row 1"),
        (lambda: familiarity([0.1], [0.2, np.nan]), "^Scores must not be NaN, but row 1"),
        (lambda: joint_familiarity([0.1], [[0.2]]), r"^held_out must be \(s, n\)"),
        (lambda: joint_familiarity([[0.1]], [[0.2], [0.3]]), "holds 1 scores and scores 2"),
        (lambda: joint_familiarity([[0.1]], [[np.nan]]), "^scores must not be NaN, but row 0"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(DataError, match=message):
        call()
