"""`gpcache export`: the file answers as the model does."""

import json
import shutil

import numpy as np
import pytest

from gpcache import ImageClassifier

onnxruntime = pytest.importorskip("onnxruntime")


def test_the_file_answers_as_the_model_does(run, model, unseen, tmp_path):
    target = tmp_path / "shapes.onnx"
    code, out, err = run("export", model, "-o", target)
    assert (code, err) == (0, "")
    assert out.startswith(f"{target}: ")
    session = onnxruntime.InferenceSession(str(target))
    classifier = ImageClassifier.load(model, device="cpu")
    photos = sorted(unseen.rglob("*.png"))
    features = classifier.encoder_.encode_images(photos)
    (given,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {given.name: features}), strict=True))
    expected = classifier.model.predict_proba(features)
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-4)


def test_its_name_is_that_of_the_model(run, model, tmp_path):
    own = shutil.copytree(model, tmp_path / "pets.gpc")
    code, out, _ = run("export", own, "--no-variance", "--json")
    found = json.loads(out)
    assert (code, found["format"]) == (0, "onnx")
    assert found["file"] == str(tmp_path / "pets.onnx")
    assert found["bytes"] == (tmp_path / "pets.onnx").stat().st_size


def test_the_whole_model_takes_pixels(run, model, tmp_path):
    target = tmp_path / "whole.onnx"
    assert run("export", model, "-o", target, "--images")[0] == 0
    (given,) = onnxruntime.InferenceSession(str(target)).get_inputs()
    assert len(given.shape) == 4


def test_mistakes_are_one_sentence(mistake, model, tmp_path):
    assert "make the folder" in mistake("export", model, "-o", tmp_path / "no" / "a.onnx")
    assert "is a folder: give the name of a file" in mistake("export", model, "-o", tmp_path)
    assert "is not a gpcache model" in mistake("export", tmp_path)
    assert list(tmp_path.iterdir()) == []
