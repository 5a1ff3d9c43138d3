"""Advice where a model is bad: each kind where it applies, and none where it does not."""

import numpy as np
import pytest
import torch

from gpcache.model.advice import TrainingRows, advise
from gpcache.model.evaluation import Evaluation

NAMES = ["ash", "elm", "fir"]


def evaluation(labels, answers, sure=0.9):
    """Answers to photos, each with the same confidence."""
    labels, answers = np.asarray(labels), np.asarray(answers)
    probabilities = np.full((len(labels), 3), (1 - sure) / 2)
    probabilities[np.arange(len(labels)), answers] = sure
    return Evaluation(
        data="photos",
        protocol="held out",
        class_names=NAMES,
        names=[str(row) for row in range(len(labels))],
        labels=labels,
        probabilities=probabilities,
        uncertainty=np.zeros(len(labels)),
        rejected=np.zeros(len(labels), dtype=bool),
    )


def rows(labels, spread=0.3, text=None, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.asarray(labels)
    centres = 1 + generator.normal(size=(1 + labels.max(), 12))
    features = centres[labels] + spread * generator.normal(size=(len(labels), 12))
    zero_shot = None if text is None else torch.as_tensor(np.eye(3)[text])
    return TrainingRows(torch.as_tensor(features), torch.as_tensor(labels), zero_shot)


LABELS = np.repeat([0, 1, 2], 12)


def kinds(*arguments):
    return [one.kind for one in advise(*arguments, NAMES)]


def test_a_good_model_needs_none():
    assert kinds(evaluation(LABELS, LABELS), rows(LABELS, text=LABELS)) == []


def test_labels_at_random_are_called_guessing():
    answers = np.random.default_rng(0).integers(0, 3, 36)
    (first, *_) = advise(evaluation(LABELS, answers), rows(LABELS), NAMES)
    assert first.kind == "guessing"
    assert "33% if every answer is 'ash'" in first.sentence
    better = np.where(np.arange(36) % 4 == 0, (LABELS + 1) % 3, LABELS)
    assert "guessing" not in kinds(evaluation(LABELS, better), rows(LABELS))


def test_a_model_that_the_names_equal_is_told_so():
    worse = np.where(np.arange(36) % 6 == 0, (LABELS + 1) % 3, LABELS)
    assert "names" in kinds(evaluation(LABELS, worse), rows(LABELS, text=LABELS))
    assert "names" not in kinds(evaluation(LABELS, worse), rows(LABELS, text=(LABELS + 1) % 3))


def test_the_two_classes_that_are_confused_and_what_more_photos_give():
    answers = LABELS.copy()
    answers[12:16] = 2  # four elms are called firs
    hard = rows(np.repeat([0, 1, 2], 16), spread=1.6)
    (found,) = advise(evaluation(LABELS, answers), hard, NAMES)
    assert (found.kind, found.classes) == ("confused", ("elm", "fir"))
    assert "4 of their 24 photos" in found.sentence
    assert "are expected to raise the accuracy by" in found.sentence
    (found,) = advise(evaluation(LABELS, answers), rows(LABELS, spread=0.01), NAMES)
    assert "points" not in found.sentence  # what is never mistaken gains nothing


@pytest.mark.parametrize(
    ("counts", "kind", "name", "words"),
    [
        ((12, 12, 2), "few", "fir", "'fir' has 2 photos, the median class 12"),
        ((12, 1, 12), "few", "elm", "'elm' has 1 photo, the median class 12"),
        ((40, 10, 10), "many", "ash", "'ash' has far more photos (40) than the median class (10)"),
    ],
)
def test_unequal_classes(counts, kind, name, words):
    (found,) = advise(None, rows(np.repeat([0, 1, 2], counts)), NAMES)
    assert (found.kind, found.classes) == (kind, (name,))
    assert words in found.sentence


def test_several_unequal_classes_are_bounded_by_one_number():
    names = ("ash", "elm", "fir", "oak", "yew")
    counts = (1, 3, 15, 15, 15)
    few, *_ = advise(None, rows(np.repeat(np.arange(5), counts)), names)
    assert few.sentence.startswith("'ash', 'elm' have 3 photos or fewer, the median class 15")
    many, *_ = advise(None, rows(np.repeat(np.arange(5), (90, 60, 15, 15, 15))), names)
    assert "'ash', 'elm' have far more photos (60 or more) than the median" in many.sentence


def test_names_are_printed_as_they_are():
    names = ["کتاب\u200cخانه", "👩\u200d🌾", "red\x1b[31m"]
    answers = np.where(np.arange(36) % 12 < 4, (LABELS + 1) % 3, LABELS)
    text = (LABELS + 1) % 3
    found = advise(evaluation(LABELS, answers), rows(LABELS, text=text), names)
    found += advise(None, rows(np.repeat([0, 1, 2], (2, 12, 12))), names)
    found += advise(None, rows(np.repeat([0, 1, 2], (10, 40, 10))), names)
    assert {"confused", "few", "many", "useless-names"} <= {one.kind for one in found}
    for one in found:
        for name in one.classes:
            assert f"'{name}'" in one.sentence or "\x1b" in name
        assert "\x1b" not in one.sentence
        assert ("'red\\x1b[31m'" in one.sentence) == (names[2] in one.classes)


def test_equal_classes_need_no_advice():
    assert advise(None, rows(np.repeat([0, 1, 2], (12, 10, 20))), NAMES) == []


def test_names_that_find_none_of_their_photos():
    text = LABELS.copy()
    text[LABELS == 1] = 0
    (found,) = advise(None, rows(LABELS, text=text), NAMES)
    assert (found.kind, found.classes) == ("useless-names", ("elm",))
    assert "--no-text" in found.sentence
