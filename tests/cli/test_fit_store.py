"""`gpcache fit STORE`: a model of more photos than it keeps, through every command."""

import json

import numpy as np
import pytest
from PIL import Image

from gpcache import DataError, ImageClassifier
from gpcache.methods.cache import explicit_choice, setup
from gpcache.web.open_workspace import open_workspace

COLOURS = {"brick": (190, 90, 60), "grass": (70, 150, 60), "water": (60, 110, 170)}


def draw(folder, first, count):
    """Coarse patches around the colour of each class."""
    for label, colour in COLOURS.items():
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            patches = np.random.default_rng(number).normal(colour, 60, (6, 6, 3))
            image = Image.fromarray(patches.clip(0, 255).astype(np.uint8)).resize((64, 64))
            image.save(folder / label / f"{number}.png")
    return folder


@pytest.fixture
def few(monkeypatch):
    """So few photos count as many."""
    monkeypatch.setattr(setup, "EXACT_ROWS", 50)
    monkeypatch.setattr(explicit_choice, "PART_ROWS", 60)


@pytest.fixture(scope="module")
def eighteen(tmp_path_factory, prepare):
    """Eighteen photos, and the store of their features; not to be changed."""
    folder = tmp_path_factory.mktemp("eighteen")
    photos, store = draw(folder / "photos", 0, 6), folder / "photos.store"
    prepare("extract", photos, "-o", store)
    return photos, store


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_store_becomes_a_model_that_answers_grows_and_is_served(run, tmp_path):
    photos, test = draw(tmp_path / "photos", 0, 32), draw(tmp_path / "test", 100, 6)
    more = draw(tmp_path / "more", 200, 4)
    store, model = tmp_path / "photos.store", tmp_path / "photos.gpc"
    assert run("extract", photos, "-o", store)[0] == 0

    code, out, _ = run("fit", store, "-o", model, "--json")
    report = json.loads(out)
    assert (code, report["images"]) == (0, 96)
    assert report["held_out"]["protocol"].endswith("24 of 96 shots held out; 60 others chose")

    code, out, _ = run("inspect", model)
    assert "explicit features (1,7" in out
    assert "brick (32)" in out
    assert json.loads(run("inspect", model, "--json")[1])["posterior"].startswith("explicit")

    code, out, err = run("predict", model, test / "grass", "--why", "--json")
    answers = [json.loads(line)["label"] for line in out.splitlines()]
    assert answers.count("grass") >= 5
    assert "this model keeps none of its own: add --why-from" in err
    code, out, err = run("predict", model, test / "grass", "--why", "--why-from", store, "--json")
    reasons = [json.loads(line)["why"] for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert sum(one[0]["label"] == "grass" for one in reasons) >= 5
    assert all(one[0]["name"].endswith(".png") for one in reasons)
    before = json.loads(run("evaluate", model, test, "--json")[1])["accuracy"]
    assert before > 0.8

    assert run("add", model, more)[0] == 0
    code, _, err = run("predict", model, test / "grass", "--why", "--why-from", store, "--json")
    assert "learned from 108 images, and" in err
    grown = ImageClassifier.load(model)
    assert grown.n_images == 108
    assert "108 images" in repr(grown)
    code, _, err = run("remove", model, "--image", grown.examples[0].name)
    assert code == 2
    assert "must keep its shots" in err
    assert json.loads(run("evaluate", model, test, "--json")[1])["accuracy"] > 0.8
    assert run("export", model, "-o", tmp_path / "photos.onnx")[0] == 0

    served = open_workspace(tmp_path / "workspace", model=model)
    rows = grown.encoder_.encode_images([Image.open(test / "water" / "100.png")])
    answer = served.learner.answer(rows, ["100.png"], reject=0.05, why=3, error=0.1)[0]
    assert answer.prediction.top(1)[0][0] == "water"
    with pytest.raises(DataError, match="nothing else can be changed"):
        served.learner.fit(served.document.contents)


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_model_that_keeps_its_shots_names_them(run, tmp_path):
    photos, test = draw(tmp_path / "photos", 0, 32), draw(tmp_path / "test", 100, 2)
    store, model, other = (tmp_path / name for name in ("photos.store", "a.gpc", "b.gpc"))
    assert run("extract", photos, "-o", store)[0] == 0
    assert run("fit", store, "-o", model, "--keep-shots")[0] == 0
    asked = ["predict", model, test / "grass", "--why", "--json"]
    code, out, err = run(*asked)
    assert (code, err) == (0, "")
    kept = [json.loads(line) for line in out.splitlines()]
    # The same images as with the store, and what all others count for.
    code, out, _ = run(*asked, "--why-from", store)
    scanned = [json.loads(line) for line in out.splitlines()]
    for one, true in zip(kept, scanned, strict=True):
        assert [reason["name"] for reason in one["why"]] == [r["name"] for r in true["why"]]
        assert [reason["label"] for reason in one["why"]] == [r["label"] for r in true["why"]]
        weights = [[reason["weight"] for reason in each["why"]] for each in (one, true)]
        assert weights[0] == pytest.approx(weights[1], rel=5e-3)
        assert one["others_weight"] == pytest.approx(true["others_weight"], abs=0.01)
    assert "  all other training images" in run(*asked[:-1])[1]
    size = (model / "shots.safetensors").stat().st_size
    found = json.loads(run("inspect", model, "--json")[1])
    assert found["kept_shots"] == {"images": 96, "bytes": size}
    assert "reasons      96 images kept for --why, " in run("inspect", model)[1]

    # The index is part of the model: copied with it, and checked.
    ImageClassifier.load(model).save(other)
    damaged = bytearray((other / "shots.safetensors").read_bytes())
    asked[1] = other
    assert run(*asked)[0] == 0
    damaged[-len(damaged) // 3] ^= 1
    (other / "shots.safetensors").write_bytes(damaged)
    assert run("predict", other, test / "grass")[0] == 0
    code, _, err = run(*asked)
    assert (code, err.count("is damaged")) == (2, 1)
    (other / "shots.safetensors").unlink()
    code, _, err = run(*asked)
    assert (code, "is missing, so training images cannot be named" in err) == (2, True)
    code, _, err = run("inspect", other)
    assert (code, "is missing, so training images cannot be named" in err) == (2, True)

    code, _, err = run("add", model, draw(tmp_path / "more", 200, 2))
    assert (code, "no longer keeps its training images" in err) == (0, True)
    assert not (model / "shots.safetensors").exists()
    asked[1] = model
    assert "add --why-from" in run(*asked)[2]


def test_few_photos_are_kept_anyway_and_some_methods_name_none(run, eighteen, tmp_path):
    (photos, store), model = eighteen, tmp_path / "photos.gpc"
    assert run("fit", store, "-o", model, "--keep-shots")[0] == 0
    assert not (model / "shots.safetensors").exists()
    assert json.loads(run("inspect", model, "--json")[1])["kept_shots"] is None
    assert '"why"' in run("predict", model, photos / "grass" / "0.png", "--why", "--json")[1]
    code, _, err = run("fit", store, "-o", tmp_path / "x", "--keep-shots", "--method", "gda")
    assert (code, "does not explain answers by training images" in err) == (2, True)


def test_reasons_from_a_store_that_cannot_give_them_are_a_sentence(run, eighteen, tmp_path):
    (photos, store), model = eighteen, tmp_path / "photos.gpc"
    assert run("fit", store, "-o", model)[0] == 0
    asked = ["predict", model, photos / "grass" / "0.png", "--why-from", store]
    code, _, err = run(*asked)
    assert (code, "--why-from counts only with --why" in err) == (2, True)
    code, _, err = run(*asked, "--why")
    assert (code, "keeps its training images" in err) == (2, True)
    assert run("fit", store, "-o", model, "--force", "--method", "gda")[0] == 0
    code, _, err = run(*asked, "--why")
    assert (code, "does not explain answers by training images" in err) == (2, True)


def test_a_small_store_gives_the_model_of_its_photos(run, eighteen, tmp_path):
    photos, store = eighteen
    assert run("fit", store, "-o", tmp_path / "one.gpc")[0] == 0
    assert run("fit", photos, "-o", tmp_path / "other.gpc")[0] == 0
    one, other = (ImageClassifier.load(tmp_path / f"{name}.gpc") for name in ("one", "other"))
    queries = draw(tmp_path / "test", 100, 2)
    found = [[answer.probability for answer in model.predict(queries)] for model in (one, other)]
    np.testing.assert_allclose(*found, atol=1e-5)
    assert len(one.examples) == 18
    code, _, err = run("fit", store, "-o", tmp_path / "x.gpc", "--encoder", "lite0")
    assert code == 2
    assert "was made by the encoder" in err


@pytest.mark.usefixtures("few")
def test_the_exported_head_answers_as_the_model():
    runtime = pytest.importorskip("onnxruntime")
    from gpcache import GPCacheClassifier
    from gpcache.model.onnx import export_onnx

    rng = np.random.default_rng(0)
    y = np.arange(120) % 4
    X = (rng.normal(size=(4, 8))[y] + rng.normal(size=(120, 8))).astype(np.float32)
    model = GPCacheClassifier().fit(X, y)
    assert model.fitted_.streamed is not None
    session = runtime.InferenceSession(export_onnx(model))
    names = [one.name for one in session.get_outputs()]
    found = dict(zip(names, session.run(None, {session.get_inputs()[0].name: X}), strict=True))
    assert np.abs(found["probabilities"] - model.predict_proba(X)).max() < 1e-4
    assert np.abs(found["variance"][:, 0] - model.novelty(X)).max() < 1e-4
