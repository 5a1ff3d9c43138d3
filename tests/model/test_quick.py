"""The head without torch: the answers of `ImageClassifier`, and no model that it cannot answer."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from gpcache import ImageClassifier, ModelFileError
from gpcache.encoders import lite_graph
from gpcache.images.drawn import DRAWN_CLASSES, DRAWN_OTHERS, draw_picture
from gpcache.images.sources import any_source
from gpcache.model import quick
from gpcache.model.quick import open_quick

pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra lite")

CLASSES = DRAWN_CLASSES[:4]
FIELDS = ("distribution", "uncertainty", "familiarity", "probability")


def pictures(names, numbers):
    return [draw_picture(name, number) for name in names for number in numbers]


def labels(names, count):
    return [name for name in names for _ in range(count)]


def fitted(**options):
    images, names = pictures(CLASSES, range(6)), labels(CLASSES, 6)
    return ImageClassifier(device="cpu", **options).fit(images, names)


def updated():
    """Labels changed after the fit, and a class that is known by its name alone."""
    images, names = pictures(CLASSES, range(5)), labels(CLASSES, 5)
    names[3], names[8] = CLASSES[2], CLASSES[0]
    model = ImageClassifier(device="cpu").fit(images, names, classes=["zebra"])
    model.relabel({model.examples[3].name: CLASSES[0]})
    return model.add(pictures(CLASSES[:1], [40]), [CLASSES[0]])


KINDS = {
    "default": fitted,
    "without text": lambda: fitted(prompt=None),
    "updated": updated,
    "one shot": lambda: ImageClassifier(device="cpu").fit(pictures(CLASSES, [0]), list(CLASSES)),
    "smaller encoder": lambda: fitted(encoder="lite0"),
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("quick") / "drawn.gpc"
    KINDS[request.param]().save(place, thumbnails=request.param == "default")
    return place


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    place = tmp_path_factory.mktemp("default") / "drawn.gpc"
    fitted().save(place)
    return place


@pytest.fixture
def photo(tmp_path):
    draw_picture(CLASSES[0], 30).save(tmp_path / "one.png")
    return tmp_path / "one.png"


def test_every_number_of_an_answer_is_that_of_the_classifier(folder):
    images = pictures((*CLASSES, *DRAWN_OTHERS), [20, 21])
    usual = ImageClassifier.load(folder, device="cpu")
    expected = usual.predict(images, reject=0.2)
    found = list(
        open_quick(folder, "cpu").predict_stream(any_source(images), reject=0.2, refused=[])
    )
    assert len(found) == len(expected) == len(images)
    for one, other in zip(found, expected, strict=True):
        for name in FIELDS:
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-6)
        for name in ("name", "label", "nearest", "rejected", "note", "plausible"):
            assert getattr(one, name) == getattr(other, name)
        assert list(one.classes) == list(other.classes)


def test_one_photo_is_answered_without_torch_and_scikit_learn(default, photo):
    script = """
import sys
from gpcache.cli.app import main
try:
    main()
except SystemExit:
    print(sorted({"torch", "sklearn", "scipy", "transformers", "pandas"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", script, "predict", default, photo, "--json", "--top", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer, modules = done.stdout.splitlines()
    assert modules == "[]"
    usual = ImageClassifier.load(default, device="cpu").predict(photo)[0].as_dict(2)
    found = json.loads(answer)
    assert found.keys() == usual.keys()
    assert found["label"] == usual["label"]
    np.testing.assert_allclose(found["probability"], usual["probability"], atol=1e-6)


@pytest.mark.parametrize("option", [("--why",), ("--sets", "0.1"), ("--device", "cpu")])
def test_other_questions_are_answered_as_before(default, photo, option):
    command = [sys.executable, "-m", "gpcache", "predict", default, photo, "--json", *option]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["nearest"] in CLASSES


def test_what_the_quick_head_cannot_answer_is_left_to_the_classifier(
    default, tmp_path, monkeypatch
):
    assert open_quick(default, "cpu") is not None
    assert open_quick(default, "cuda") is None
    ImageClassifier(method="tip-adapter", device="cpu").fit(
        pictures(CLASSES, range(3)), labels(CLASSES, 3)
    ).save(tmp_path / "other.gpc")
    assert open_quick(tmp_path / "other.gpc", "cpu") is None
    monkeypatch.setattr(quick, "MOST_SHOTS", 5)
    assert open_quick(default, "cpu") is None


def test_an_accelerator_is_left_to_torch(default, tmp_path, monkeypatch):
    monkeypatch.setattr(lite_graph, "ACCELERATORS", (str(tmp_path / "none"),))
    assert open_quick(default, "auto") is not None
    monkeypatch.setattr(lite_graph, "ACCELERATORS", (str(tmp_path),))
    assert open_quick(default, "auto") is None


def test_without_a_cached_encoder_the_first_answer_is_the_classifiers(default, photo, tmp_path):
    environment = os.environ | {"GPCACHE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "gpcache", "predict", default, photo]
    outputs = [
        subprocess.run(command, capture_output=True, env=environment, check=True).stdout
        for _ in range(2)
    ]
    assert outputs[0] == outputs[1]
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_damaged_model_is_the_usual_sentence(default, photo, tmp_path, file):
    place = shutil.copytree(default, tmp_path / "damaged.gpc") / file
    data = bytearray(place.read_bytes())
    data[-20] ^= 1
    place.write_bytes(data)
    with pytest.raises(ModelFileError) as usual:
        ImageClassifier.load(place.parent)
    with pytest.raises(ModelFileError) as found:
        open_quick(place.parent, "cpu")
    assert str(found.value) == str(usual.value)
    command = [sys.executable, "-m", "gpcache", "predict", place.parent, photo]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpcache: {usual.value}\n"
