"""Exported heads in ONNX Runtime against the classifiers that they were made from."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from sklearn.exceptions import NotFittedError

import gpcache
from gpcache import (
    DataError,
    GPCacheClassifier,
    GPCacheFClassifier,
    MissingExtraError,
    TextPrior,
    load_encoder,
)
from gpcache.methods import TipAdapterClassifier, TipAdapterFClassifier, ZeroShotClassifier
from gpcache.methods.base import FeatureClassifier
from gpcache.metrics import Calibration, max_probability
from gpcache.model.onnx import export_image_onnx, export_onnx, head
from gpcache.model.predictions import HeldOutScores

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = Path(os.environ.get("GPCACHE_DEV_DATA", ROOT.parent / "shared")) / "images" / "caltech20"

WIDTH = 12
# Not in sorted order, unequal, and the last one has text but no shots.
NAMES, SHOTS = ("oak", "ash", "fir", "elm", "yew"), (5, 3, 4, 2, 0)
NUMBERS = {"alpha": 3.0, "beta": 2.5, "gain": 0.8, "device": "cpu"}
TOLERANCE = 1e-4

POSTERIORS = {
    "exact": {},
    "grouped": {"precision": "grouped", "n_groups": 2},
    "a group without shots": {"precision": "grouped", "n_groups": 5},
    "nystrom": {"precision": "nystrom", "n_landmarks": 10},
    "nystrom-consistent": {"precision": "nystrom", "n_landmarks": 10, "cross": "consistent"},
    "fourier": {"precision": "fourier", "n_features": 64},
    "fourier-consistent": {"precision": "fourier", "n_features": 64, "cross": "consistent"},
    "class_mean": {"precision": "class_mean"},
}
REGRESSION = {name: {"likelihood": "gaussian"} | options for name, options in POSTERIORS.items()}
PRECISIONS = REGRESSION | {
    "unweighted": {"likelihood": "gaussian", "precision_weighting": False},
    **{f"softmax {name}": options for name, options in POSTERIORS.items()},
}


@pytest.fixture(scope="module")
def data():
    """Shots, labels, queries in float32 (which the graph takes) and text; no row has length one."""
    generator = np.random.default_rng(0)
    centres = 1 + generator.normal(size=(len(NAMES), WIDTH))
    labels = np.repeat(np.arange(len(NAMES)), SHOTS)
    X = centres[labels] + 0.45 * generator.normal(size=(len(labels), WIDTH))
    queries = centres[[0, 1, 2, 3, 4, 0, 1]] + 0.45 * generator.normal(size=(7, WIDTH))
    text = centres + 0.3 * generator.normal(size=centres.shape)
    prior = TextPrior(NAMES, text, logit_scale=12.0)
    return X, np.array(NAMES)[labels], queries.astype(np.float32), prior


@pytest.fixture(scope="module", params=["lite", "lite0"])
def lite(request):
    return load_encoder(request.param, device="cpu")


def gp_cache(prior=None, **options):
    if options.get("likelihood") == "gaussian":
        options = {"noise": 0.2} | options
    return GPCacheClassifier.from_options(text_prior=prior, **NUMBERS | options)


def run(file, rows):
    """The outputs by name, of a file that onnx finds in order."""
    onnx.checker.check_model(file, full_check=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {session.get_inputs()[0].name: rows}), strict=True))


def metadata(file):
    return {item.key: item.value for item in onnx.load_from_string(file).metadata_props}


def assert_same(outputs, model, X):
    logits = model.logits(X)
    np.testing.assert_allclose(outputs["logits"], logits, atol=TOLERANCE * np.abs(logits).max())
    np.testing.assert_allclose(outputs["probabilities"], model.predict_proba(X), atol=TOLERANCE)
    if "variance" in outputs:
        variance = model.posterior(X)[1] if hasattr(model, "posterior") else np.ones(len(X))
        expected = variance.reshape(len(X), -1)
        np.testing.assert_allclose(outputs["variance"], expected, atol=TOLERANCE)
        assert outputs["variance"].shape == expected.shape
        found = model.answer(X)
        highest = max_probability(found.logits, temperature=model.temperature_)
        familiarity = HeldOutScores.of(model).familiarity(found.novelty, highest)
        np.testing.assert_allclose(outputs["familiarity"][:, 0], familiarity, atol=TOLERANCE)
        np.testing.assert_array_equal(outputs["rejected"][:, 0], familiarity <= 0.05)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("with_text", [True, False])
@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_every_posterior_answers_as_in_torch(precision, with_text, batch, data):
    X, y, queries, prior = data
    model = gp_cache(prior if with_text else None, **PRECISIONS[precision]).fit(X, y)
    outputs = run(export_onnx(model), queries[:batch])
    expected = ["logits", "probabilities", "variance", "familiarity", "rejected"]
    assert list(outputs) == expected
    assert_same(outputs, model, queries[:batch])


@pytest.mark.parametrize("precision", list(REGRESSION))
def test_confidence_scaling_divides_by_each_class_s_own_variance(precision, data):
    X, y, queries, prior = data
    options = REGRESSION[precision] | {"confidence_scaling": True, "eta": 1.5}
    model = gp_cache(prior, **options).fit(X, y)
    assert_same(run(export_onnx(model), queries), model, queries)


@pytest.mark.parametrize("likelihood", ["softmax", "gaussian"])
@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("space", ["raw", "centred", "whitened"])
def test_every_kernel_space(space, projected, likelihood, data):
    X, y, queries, prior = data
    matrix = np.random.default_rng(1).normal(size=(WIDTH, WIDTH)) if projected else None
    options = {"kernel_space": space, "projection": matrix, "likelihood": likelihood}
    model = gp_cache(prior, **options).fit(X, y)
    assert_same(run(export_onnx(model), queries), model, queries)


@pytest.mark.parametrize(
    "make",
    [
        lambda prior: ZeroShotClassifier(text_prior=prior),
        lambda prior: TipAdapterClassifier.from_options(text_prior=prior, **NUMBERS),
        lambda prior: TipAdapterFClassifier.from_options(
            text_prior=prior, epochs=2, learning_rate=0.1
        ),
        lambda prior: GPCacheFClassifier.from_options(
            text_prior=prior, epochs=2, learning_rate=0.1
        ),
        lambda prior: GPCacheClassifier.from_options(text_prior=prior),
        lambda prior: GPCacheClassifier.from_options(text_prior=prior, dtype="float32"),
        lambda prior: GPCacheClassifier.from_options(text_prior=prior, likelihood="gaussian"),
    ],
    ids=[
        "zero-shot",
        "tip-adapter",
        "tip-adapter-f",
        "gp-cache-f",
        "defaults",
        "float32",
        "regression",
    ],
)
def test_every_method(make, data):
    X, y, queries, prior = data
    model = make(prior).fit(X, y)
    assert_same(run(export_onnx(model), queries), model, queries)


@pytest.mark.parametrize("all_classes", [False, True])
def test_the_discriminant_is_exported_where_there_is_one(all_classes, data):
    """A class without a shot would have no mean."""
    X, y, queries, prior = data
    if all_classes:
        X, y = np.vstack([X, queries[[4, 4, 4]] + [[0.1], [0], [0.2]]]), np.append(y, ["yew"] * 3)
    model = gp_cache(prior, discriminant=0.5).fit(X, y)
    assert (model.discriminant_ > 0) == all_classes
    assert_same(run(export_onnx(model), queries), model, queries)


@pytest.mark.parametrize("likelihood", ["softmax", "gaussian"])
def test_after_updates(likelihood, data):
    X, y, queries, prior = data
    model = gp_cache(prior, kernel_space="raw", likelihood=likelihood)
    model.fit(X[:-3], y[:-3]).add(X[-3:], y[-3:]).remove([0])
    assert_same(run(export_onnx(model), queries), model, queries)


@pytest.mark.parametrize("likelihood", ["softmax", "gaussian"])
@pytest.mark.parametrize("cross", ["exact", "consistent"])
def test_landmarks_that_repeat_each_other(cross, likelihood, data):
    """The core of Nyström is then singular but for its jitter."""
    X, y, queries, prior = data
    options = {"precision": "nystrom", "n_landmarks": 1000, "cross": cross}
    options["likelihood"] = likelihood
    model = gp_cache(prior, **options).fit(np.repeat(X, 2, axis=0), np.repeat(y, 2))
    assert_same(run(export_onnx(model), queries), model, queries)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_length_of_a_row_means_nothing(scale, data):
    """Squares of such numbers are beyond float32 both ways."""
    X, y, queries, prior = data
    file = export_onnx(gp_cache(prior).fit(X, y))
    for name, expected in run(file, queries).items():
        found = run(file, queries * np.float32(scale))[name]
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_no_rows_give_no_rows(precision, data):
    X, y, queries, prior = data
    file = export_onnx(gp_cache(prior, **PRECISIONS[precision]).fit(X, y))
    empty = run(file, queries[:0])
    for name, output in run(file, queries).items():
        assert empty[name].shape == (0, output.shape[1])


def test_the_file_says_what_it_is(data):
    X, y, queries, prior = data
    model = gp_cache(prior).fit(X, y)
    file = export_onnx(model, encoder_fingerprint="abc")
    found = metadata(file)
    assert json.loads(found["classes"]) == ["ash", "elm", "fir", "oak", "yew"]
    assert found["encoder_fingerprint"] == "abc"
    assert found["method"] == "GPCacheClassifier"
    assert found["gpcache_version"] == gpcache.__version__
    outputs = run(file, queries)
    calibration = Calibration(float(found["temperature"]), float(found["entropy_slope"]))
    assert calibration.temperature != 1
    assert calibration.slope != 0
    expected = calibration.probabilities(torch.tensor(outputs["logits"])).numpy()
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-6)
    proto = onnx.load_from_string(file)
    assert (proto.ir_version, proto.opset_import[0].version) == (8, 17)
    assert "encoder_fingerprint" not in metadata(export_onnx(model))
    assert float(found["reject"]) == 0.05
    inside = {weight.name: onnx.numpy_helper.to_array(weight) for weight in proto.graph.initializer}
    assert inside["temperature"] == np.float32(calibration.temperature)
    assert inside["reject"] == np.float32(0.05)
    none_refused = run(export_onnx(model, reject=0.0), queries)["rejected"]
    assert not none_refused.any()
    all_refused = run(export_onnx(model, reject=0.99), queries)
    np.testing.assert_array_equal(all_refused["rejected"], all_refused["familiarity"] <= 0.99)
    assert all_refused["rejected"].any()
    assert "reject" not in metadata(export_onnx(model, variance=False))


def test_numbers_as_classes_stay_numbers(data):
    X, y, _, _ = data
    file = export_onnx(gp_cache().fit(X, np.unique(y, return_inverse=True)[1] * 10))
    assert json.loads(metadata(file)["classes"]) == [0, 10, 20, 30]


@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_equal_fits_give_equal_bytes(precision, data):
    X, y, _, prior = data
    first, second = (gp_cache(prior, **PRECISIONS[precision]).fit(X, y) for _ in range(2))
    assert export_onnx(first) == export_onnx(second)


@pytest.mark.parametrize("eta", [0.0, 1.5])
def test_the_variance_can_be_left_out(eta, data):
    X, y, queries, prior = data
    options = {"likelihood": "gaussian", "confidence_scaling": True, "eta": eta}
    model = gp_cache(prior, **options).fit(X, y)
    file = export_onnx(model, variance=False)
    outputs = run(file, queries)
    assert list(outputs) == ["logits", "probabilities"]
    assert_same(outputs, model, queries)
    # Without an eta nothing needs the matrix of 14 × 14 numbers.
    weights = onnx.load_from_string(file).graph.initializer
    assert any(list(weight.dims) == [14, 14] for weight in weights) == (eta != 0)


def test_a_model_beyond_protobuf_is_refused_with_the_way_out(data, monkeypatch):
    X, y, queries, _ = data
    options = {"likelihood": "gaussian", "confidence_scaling": True, "kernel_space": "raw"}
    plain, scaled = (gp_cache(eta=eta, **options).fit(X, y) for eta in (0, 1))
    # Keys 14 × 12 and values 14 × 4 take 896 bytes, the root of the variance 784.
    monkeypatch.setattr(head, "LARGEST", 1200)
    with pytest.raises(DataError, match=r"would take 1\.7 kB .* pass variance=False, which"):
        export_onnx(plain)
    assert_same(run(export_onnx(plain, variance=False), queries), plain, queries)
    for variance in (True, False):
        with pytest.raises(
            DataError, match="2 GB: fit it with fewer shots, or with approximation="
        ):
            export_onnx(scaled, variance=variance)
    monkeypatch.setattr(head, "LARGEST", 800)
    for variance in (True, False):
        with pytest.raises(DataError, match=r"2 GB: fit it with fewer shots\.$"):
            export_onnx(plain, variance=variance)


def test_what_cannot_be_exported_is_refused(data):
    X, y, _, prior = data

    class Own(FeatureClassifier):
        pass

    with pytest.raises(DataError, match=r"^Own cannot be exported to ONNX"):
        export_onnx(Own())
    with pytest.raises(NotFittedError):
        export_onnx(gp_cache(prior))
    model = gp_cache(prior, projection=lambda rows: rows.flip(1)).fit(X, y)
    with pytest.raises(DataError, match=r"projection is a function.*fit with .* a matrix"):
        export_onnx(model)


def test_without_onnx_the_extra_is_named(data, monkeypatch):
    X, y, _, prior = data
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"^Export to ONNX needs onnx, .*gpcache\[onnx\]"):
        export_onnx(gp_cache(prior).fit(X, y))


# Pixels in.


def coloured(n, seed, size):
    """Preprocessed images (n, size, size, 3), coarse noise over one of four colours, and kinds."""
    generator = np.random.default_rng(seed)
    kinds = np.arange(n) % 4
    colours = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200], [180, 180, 60]])
    coarse = generator.integers(-60, 60, (n, 17, 17, 1)).repeat(16, 1).repeat(16, 2)
    coarse = coarse[:, :size, :size]
    pixels = np.clip(colours[kinds][:, None, None, :] + coarse, 0, 255).astype(np.uint8)
    return pixels, np.array(["red", "green", "blue", "sand"])[kinds]


@pytest.mark.parametrize("with_text", [True, False])
def test_pixels_to_answers(with_text, lite):
    pixels, y = coloured(12, seed=0, size=lite.preprocess.size)
    prior = None
    if with_text:
        names = ["red", "green", "blue", "sand", "wood"]
        prior = TextPrior(names, lite.encode_texts(names), lite.logit_scale)
    model = gp_cache(prior).fit(lite.encode_pixels(pixels), y)
    file = export_image_onnx(model, lite)
    for batch in (1, 7):
        queries, _ = coloured(batch, seed=1, size=lite.preprocess.size)
        outputs = run(file, queries)
        assert list(outputs) == [
            "logits",
            "probabilities",
            "variance",
            "familiarity",
            "rejected",
            "label",
        ]
        features = lite.encode_pixels(queries)
        assert_same(outputs, model, features)
        labels = np.array(json.loads(metadata(file)["classes"]))[outputs["label"]]
        assert (labels == model.predict(features)).all()
    found = metadata(file)
    assert json.loads(found["preprocess"]) == json.loads(json.dumps(lite.preprocess.describe()))
    assert (found["encoder"], found["encoder_fingerprint"]) == (lite.name, lite.fingerprint)
    assert file == export_image_onnx(model, lite)
    assert "variance" not in run(export_image_onnx(model, lite, variance=False), queries)


@pytest.mark.skipif(not PHOTOS.exists(), reason=f"{PHOTOS} is absent: set GPCACHE_DEV_DATA")
def test_photos_get_their_names(lite):
    from PIL import Image

    def read(part, count):
        folders = sorted((PHOTOS / part).iterdir())[:4]
        files = [file for folder in folders for file in sorted(folder.iterdir())[:count]]
        images = [lite.preprocess.pixels(Image.open(file).convert("RGB")) for file in files]
        return np.stack(images), np.array([file.parent.name for file in files])

    pixels, y = read("train", 3)
    model = GPCacheClassifier.from_options(device="cpu").fit(lite.encode_pixels(pixels), y)
    queries, names = read("test", 3)
    file = export_image_onnx(model, lite)
    outputs = run(file, queries)
    assert_same(outputs, model, lite.encode_pixels(queries))
    labels = np.array(json.loads(metadata(file)["classes"]))[outputs["label"]]
    assert np.mean(labels == names) > 0.8


def test_a_model_of_other_features_or_another_encoder_is_refused(data, lite):
    X, y, _, _ = data
    model = gp_cache().fit(X, y)
    width = rf"fitted on features of width 12, but .*'{lite.name}' gives 1664"
    with pytest.raises(DataError, match=width):
        export_image_onnx(model, lite)
    with pytest.raises(DataError, match="'lite' and 'lite0' can be exported, got a str"):
        export_image_onnx(model, "lite")
