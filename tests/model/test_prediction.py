"""Prediction: order, sums, and JSON."""

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from gpcache.model.predictions import Neighbour, Prediction, agreeing_set


def prediction(distribution=(0.2, 0.5, 0.3), familiarity=0.25, **options):
    return Prediction(
        "a.jpg",
        np.array(["ash", "elm", "oak"]),
        np.array(distribution),
        0.125,
        familiarity,
        **({"rejected": False} | options),
    )


def test_the_label_is_the_most_probable_class():
    found = prediction()
    assert (found.label, found.probability) == ("elm", 0.5)
    assert found.probabilities == {"ash": 0.2, "elm": 0.5, "oak": 0.3}


def test_top_is_sorted_and_never_longer_than_there_are_classes():
    assert prediction().top(2) == [("elm", 0.5), ("oak", 0.3)]
    assert [name for name, _ in prediction().top(9)] == ["elm", "oak", "ash"]
    assert [name for name, _ in prediction((0.4, 0.2, 0.4)).top(2)] == ["ash", "oak"]


def test_a_dictionary_is_json_and_holds_what_was_asked_for():
    found = prediction(neighbours=(Neighbour("b.jpg", "elm", -0.5),))
    assert json.loads(json.dumps(found.as_dict(top=2), allow_nan=False)) == {
        "image": "a.jpg",
        "label": "elm",
        "probability": 0.5,
        "uncertainty": 0.125,
        "familiarity": 0.25,
        "rejected": False,
        "nearest": "elm",
        "top": [{"label": "elm", "probability": 0.5}, {"label": "oak", "probability": 0.3}],
        "why": [{"name": "b.jpg", "label": "elm", "weight": -0.5}],
    }
    assert set(prediction().as_dict()) == {
        "image",
        "label",
        "probability",
        "uncertainty",
        "familiarity",
        "rejected",
        "nearest",
    }


def test_a_rejected_image_has_no_label_but_a_nearest_class():
    found = prediction(rejected=True)
    assert (found.label, found.nearest, found.probability) == (None, "elm", 0.5)
    assert found.as_dict()["label"] is None


@pytest.mark.parametrize(
    ("labels", "rejected", "expected"),
    [
        (["oak", "elm"], False, ("oak", "elm")),
        ([], False, ("elm",)),
        (["elm"], True, ()),
        ([], True, ()),
    ],
)
def test_a_set_says_the_same_as_the_refusal(labels, rejected, expected):
    assert agreeing_set(labels, "elm", rejected) == expected


def test_sets_and_notes_are_there_when_asked_for():
    found = prediction(plausible=("elm", "oak"), note="Beware.").as_dict()
    assert (found["plausible"], found["note"]) == (["elm", "oak"], "Beware.")
    assert prediction(plausible=()).as_dict()["plausible"] == []


def test_an_unknown_familiarity_is_null():
    found = json.dumps(prediction(familiarity=float("nan")).as_dict(), allow_nan=False)
    assert json.loads(found)["familiarity"] is None


def test_a_prediction_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        prediction().rejected = True
