"""Evaluation: every figure of a case small enough to count by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from gpcache.errors import DataError
from gpcache.model.evaluation import ClassScore, Confusion, Evaluation, Separation, Unknown


@pytest.fixture
def case():
    """Five images: two of three cats right, the dog taken for a cat, no image of an eel."""
    return Evaluation(
        data="photos",
        protocol="test",
        class_names=["cat", "dog", "eel", "fox"],
        names=["1", "2", "3", "4", "5"],
        labels=np.array([0, 0, 0, 1, 3]),
        probabilities=np.array(
            [
                [0.7, 0.1, 0.1, 0.1],
                [0.4, 0.3, 0.2, 0.1],
                [0.2, 0.5, 0.2, 0.1],
                [0.5, 0.25, 0.15, 0.1],
                [0.1, 0.1, 0.0, 0.8],
            ]
        ),
        uncertainty=np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
        rejected=np.array([False, False, True, False, True]),
    )


def test_answers(case):
    assert len(case) == 5
    assert case.predicted.tolist() == [0, 0, 1, 0, 3]
    assert case.correct.tolist() == [True, True, False, False, True]
    assert case.confidence.tolist() == [0.7, 0.4, 0.5, 0.5, 0.8]
    assert case.accuracy == 0.6


def test_interval_is_wilsons(case):
    """(p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n), z = 1.96."""
    z, n, p = 1.959963984540054, 5, 0.6
    half = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    expected = [(p + z**2 / (2 * n) + sign * half) / (1 + z**2 / n) for sign in (-1, 1)]
    assert case.interval == pytest.approx(expected, abs=1e-9)


def test_nll_is_the_mean_log_of_the_true_class(case):
    expected = -sum(map(math.log, (0.7, 0.4, 0.2, 0.25, 0.8))) / 5
    assert case.nll == pytest.approx(expected, abs=1e-12)


def test_ece_weighs_each_bin_by_its_images(case):
    """Of 15 bins four are used: 0.4, 0.5 (twice), 0.7 and 0.8."""
    expected = (0.6 * 1 + abs(0.0 - 0.5) * 2 + 0.3 * 1 + 0.2 * 1) / 5
    assert case.ece == pytest.approx(expected, abs=1e-12)


def test_confusions(case):
    matrix = [[2, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert case.confusion_matrix().tolist() == matrix
    assert case.confusions() == [Confusion("cat", "dog", 1), Confusion("dog", "cat", 1)]
    assert case.confusions(top=1) == [Confusion("cat", "dog", 1)]


def test_classes(case):
    cat, dog, eel, fox = case.per_class()
    assert cat == ClassScore("cat", 3, 2 / 3, 2 / 3)
    assert dog == ClassScore("dog", 1, 0.0, 0.0)
    assert eel.n == 0
    assert math.isnan(eel.recall)
    assert math.isnan(eel.precision)
    assert fox == ClassScore("fox", 1, 1.0, 1.0)


def test_the_hardest_come_first(case):
    assert case.hardest().tolist() == [2, 3, 1, 0, 4]
    assert case.hardest(2).tolist() == [2, 3]


def test_the_most_confident_are_kept_first(case):
    """By confidence: 0.8 right, 0.7 right, 0.5 wrong twice, 0.4 right; ties are shared."""
    risks = [0, 0, 1 / 3, 2 / 4, 2 / 5]
    assert case.aurc == pytest.approx(sum(risks) / 5)
    for kept, risk in enumerate(risks, 1):
        assert case.accuracy_at(kept / 5) == pytest.approx(1 - risk)
    with pytest.raises(DataError, match="coverage"):
        case.accuracy_at(1.5)


def test_confidence_tells_right_from_wrong(case):
    """Of right (0.7, 0.4, 0.8) against wrong (0.5, 0.5), four of six pairs are in order."""
    assert case.error_separation == Separation(pytest.approx(4 / 6), 1.0)
    right = replace(case, labels=case.predicted)
    assert right.error_separation is None
    assert right.summary()["error_separation"] is None


def test_familiarity_tells_unknown_images(case):
    assert case.unknown_separation is None
    unknown = Unknown(np.array([0.05, 0.3, 0.01]), np.array([True, False, True]))
    familiar = replace(case, familiarity=np.array([0.9, 0.8, 0.2, 0.4, 0.3]), unknown=unknown)
    assert familiar.unknown_separation == Separation(pytest.approx(13.5 / 15), pytest.approx(1 / 3))
    unknown = familiar.summary()["unknown"]
    assert (unknown["n"], unknown["rejected"]) == (3, 2)
    assert unknown["separation"]["fpr95"] == pytest.approx(1 / 3)
    blind = replace(familiar, familiarity=np.full(5, np.nan))
    assert blind.unknown_separation is None
    assert json.loads(json.dumps(blind.summary(), allow_nan=False))["unknown"]["separation"] is None


def test_a_summary_is_json_with_its_data_and_protocol(case):
    found = json.loads(json.dumps(case.summary(), allow_nan=False))
    assert (found["data"], found["protocol"], found["n"]) == ("photos", "test", 5)
    assert (found["accuracy"], found["rejected"]) == (0.6, 2)
    assert found["interval"] == list(case.interval)
    assert found["accuracy_at_coverage"]["0.2"] == 1
    assert found["accuracy_at_coverage"]["1"] == pytest.approx(0.6)
    assert found["per_class"]["eel"] == {"n": 0, "recall": None, "precision": None}
    assert found["confusions"][0] == {"truth": "cat", "answer": "dog", "images": 1}


def test_nothing_to_evaluate_on_is_one_sentence():
    with pytest.raises(DataError, match=r"no labelled image to evaluate on in photos\."):
        Evaluation("photos", "test", [], [], *(np.array([]) for _ in range(4)))
