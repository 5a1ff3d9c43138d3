"""On photos every method runs with the inputs of its paper: spatial features, prompts, views."""

import numpy as np
import pytest

from gpcache import load_encoder
from gpcache.benchmark.datasets.encoding import stored_spatial_features
from gpcache.benchmark.datasets.loading import open_task
from gpcache.benchmark.rows import read_rows
from gpcache.benchmark.run import run
from gpcache.benchmark.spec import read_spec
from gpcache.encoders.prompts import Prompts, sentence_vectors, text_weights
from gpcache.methods import GDAClassifier, TipAdapterFClassifier
from gpcache.methods.calip import CALIPClassifier, image_and_places
from gpcache.methods.timo import TIMOClassifier

SPEC = """
title = "Photos"
protocols = ["full validation", "no validation"]
datasets = ["photos"]
encoders = ["lite"]
shots = [2]
seeds = [1]

[[methods]]
name = "calip"

[[methods]]
name = "timo"

[[methods]]
name = "gda"

[[methods]]
name = "tip-adapter"

[[methods]]
name = "tip-adapter-f"
options = { epochs = 3 }
"""


@pytest.fixture(scope="module")
def lite():
    return load_encoder("lite", device="cpu")


@pytest.fixture
def done(write_photos, write_spec, tmp_path):
    """Rows by protocol and method, made by two processes after this one has the encoder."""
    write_photos()
    outcome = run(read_spec(write_spec(SPEC, "photos")), tmp_path / "rows", device="cpu", jobs=2)
    assert outcome.counts == {"done": 10}, outcome.reasons
    rows = read_rows(tmp_path / "rows" / "photos.jsonl")
    return {(row["protocol"], row["method"]): row for row in rows}


def test_every_method_is_given_what_it_needs(done, lite, tmp_path):
    task = open_task(
        "photos", lambda: lite, folder=tmp_path, root=None, cache=tmp_path / "rows" / "features",
        wanted=[(2, 1)],
    )  # fmt: skip
    drawn = task.draw(2, 1)
    X, y, views = drawn.shots.features, drawn.shots.labels, drawn.views
    assert views.shape == (6, 10, lite.dim)
    means = views.mean(1)
    np.testing.assert_allclose(X, means / np.linalg.norm(means, axis=1)[:, None], atol=1e-6)
    asked = image_and_places(lite, list(task.test.names))
    shots = image_and_places(lite, list(drawn.shots.names))
    spare = image_and_places(lite, list(drawn.spare.names))
    prompts = sentence_vectors(lite, Prompts.from_templates(sorted({*y}), "a photo of a {}."))
    common = {"text_prior": task.prior, "device": "cpu"}
    validation = {"validation": (drawn.spare.features, drawn.spare.labels)}
    tuned, seed = {"criterion": "accuracy"}, {"random_state": 1}
    expected = {
        ("no validation", "calip"): CALIPClassifier(**common).fit(shots, y),
        ("full validation", "calip"): CALIPClassifier(**common, **tuned).fit(
            validation=(spare, drawn.spare.labels)
        ),
        ("no validation", "timo"): TIMOClassifier(prompt_vectors=prompts, **common, **seed).fit(
            X, y, views=views
        ),
        ("full validation", "gda"): GDAClassifier(**common, **tuned, **seed).fit(
            X, y, views=views, **validation
        ),
        ("full validation", "tip-adapter-f"): TipAdapterFClassifier.from_options(
            epochs=3, **common, **tuned, **seed
        ).fit(X, y, views=views, **validation),
    }
    labels = np.searchsorted(sorted({*y}), task.test.labels)
    for place, model in expected.items():
        queries = asked if place[1] == "calip" else task.test.features
        probabilities = model.predict_proba(queries)
        nll = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
        # Places are stored in half precision.
        assert done[place]["nll"] == pytest.approx(nll, rel=1e-2 if queries is asked else 1e-5)
        assert done[place]["n_views"] == (0 if place[1] == "calip" else 10)
    assert done["no validation", "tip-adapter"]["n_views"] == 0


def test_spatial_features_are_encoded_once_and_mapped_from_the_disk(lite, write_photos, tmp_path):
    images = sorted(write_photos().rglob("test/**/*.png"))
    found = stored_spatial_features(images, lite, tmp_path / "places")
    assert isinstance(found, np.memmap)
    np.testing.assert_allclose(found, image_and_places(lite, images), atol=1e-3)
    (file,) = (tmp_path / "places").glob("*.npy")
    before = file.stat().st_mtime_ns
    stored_spatial_features(images, lite, tmp_path / "places")
    assert file.stat().st_mtime_ns == before
    images[0].write_bytes(images[-1].read_bytes())
    again = stored_spatial_features(images, lite, tmp_path / "places")
    np.testing.assert_array_equal(again[0], again[-1])


def test_the_vectors_of_sentences_average_to_the_text(lite):
    prompts = Prompts(("ant", "bee"), (("an ant", "a small ant"), ("a bee",)))
    found = sentence_vectors(lite, prompts)
    assert [len(rows) for rows in found.values()] == [2, 1]
    means = np.stack([rows.mean(0) for rows in found.values()])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(text_weights(lite, prompts), means, atol=1e-6)
