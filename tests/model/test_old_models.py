"""Model folders of version 0.1, which knew regression alone, answer and learn on as they did."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from gpcache.model.classifier import ImageClassifier

DATA = Path(__file__).parent / "data"
spec = importlib.util.spec_from_file_location("made", DATA / "make_version_0_1.py")
made = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made)

FOLDER = DATA / "version_0_1"
ROWS, ANSWERS = json.loads((FOLDER / "answers.json").read_text()).values()
CLOSE = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(params=list(made.MODELS))
def name(request):
    return request.param


@pytest.fixture
def model(name):
    return ImageClassifier.load(FOLDER / name, encoder=made.tiny.ColourEncoder(), device="cpu")


def test_they_are_of_a_version_without_a_likelihood(name):
    config = json.loads((FOLDER / name / "config.json").read_text())
    assert config["gpcache"] == "0.1.0"
    assert "likelihood" not in config["model"]["options"]


def test_they_answer_as_they_did(name, model):
    assert not model.model.fitted_.recipe.is_softmax
    np.testing.assert_allclose(made.probabilities(model, ROWS), ANSWERS[name]["fitted"], **CLOSE)


def test_they_learn_on_as_they_did(name, model):
    """Version 0.1 kept its choices, as `refit=False` does."""
    model.model.add(np.array(ROWS["added"], dtype=np.float32), list(made.COLOURS), refit=False)
    model.model.relabel([0], ["green"], refit=False)
    np.testing.assert_allclose(made.probabilities(model, ROWS), ANSWERS[name]["updated"], **CLOSE)


def test_saved_again_they_are_the_same(name, model, tmp_path):
    model.save(tmp_path / "again")
    again = ImageClassifier.load(tmp_path / "again", encoder=model.encoder_, device="cpu")
    assert not again.model.fitted_.recipe.is_softmax
    np.testing.assert_allclose(made.probabilities(again, ROWS), ANSWERS[name]["fitted"], **CLOSE)


def test_photos_go_in_and_answers_come_out(name, model):
    """As far as features of the same photo are the same on another machine."""
    asked = [image for image, _ in made.photos(3, start=100)]
    found = [list(one.probabilities.values()) for one in model.predict(asked, sets=0.2, why=1)]
    np.testing.assert_allclose(
        np.sort(found, axis=1), np.sort(ANSWERS[name]["fitted"], axis=1), rtol=0, atol=1e-5
    )
    assert (model.held_out() is None) == (name == "one-photo")
    model.add(made.photos(1, start=50))
    assert {one.label for one in model.predict(asked)} == set(made.COLOURS)
    count = len(model.examples)
    assert len(model.remove(names=["item 0000001"]).examples) < count
