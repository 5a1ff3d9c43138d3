"""Models and stores of the version in which Lite0 was called `lite`: they keep their encoder."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from gpcache import ImageClassifier
from gpcache.encoders import load_encoder
from gpcache.encoders.lite_recipes import LITE0_FINGERPRINT
from gpcache.errors import StoreError
from gpcache.features.extract import extract
from gpcache.features.store import FeatureStore
from gpcache.images.sources import open_source
from gpcache.model import files as model_files


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three photos of noise in two colours, as class folders."""
    folder, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, tint in {"red": (200, 0, 0), "green": (0, 200, 0)}.items():
        (folder / name).mkdir()
        for number in range(3):
            pixels = generator.integers(0, 56, (60, 70, 3), dtype=np.uint8) + np.uint8(tint)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def fitted(photos):
    return ImageClassifier("lite0", device="cpu").fit(photos)


@pytest.fixture
def former_model(fitted, tmp_path):
    """A model folder that calls Lite0 `lite`, as that version wrote it."""
    content = fitted.content
    model_files.write(
        replace(content, encoder=replace(content.encoder, name="lite")), tmp_path / "m.gpc", None
    )
    return tmp_path / "m.gpc"


def test_a_model_of_lite0_that_says_lite_answers_the_same(fitted, former_model, photos):
    loaded = ImageClassifier.load(former_model, device="cpu")
    assert loaded.encoder_name == loaded.encoder_.name == "lite0"
    assert loaded.encoder_.fingerprint == LITE0_FINGERPRINT
    files = sorted(photos.rglob("*.png"))
    for ours, theirs in zip(loaded.predict(files), fitted.predict(files), strict=True):
        assert ours.probabilities == theirs.probabilities


def test_such_a_model_grows_and_is_saved_under_the_name_of_today(former_model, tmp_path):
    loaded = ImageClassifier.load(former_model, device="cpu")
    rng = np.random.default_rng(1)
    loaded.add([(Image.fromarray(rng.integers(0, 256, (50, 50, 3), dtype=np.uint8)), "red")])
    loaded.save(tmp_path / "grown.gpc")
    again = ImageClassifier.load(tmp_path / "grown.gpc", device="cpu")
    assert again.encoder_name == "lite0"
    assert len(again.examples) == 7


def test_a_store_of_lite0_that_says_lite_goes_on_with_lite0(photos, tmp_path):
    encoder = load_encoder("lite0", device="cpu")
    extract(open_source(photos / "red"), tmp_path / "store", encoder)
    before = FeatureStore.open(tmp_path / "store")
    replace(before.manifest, encoder="lite").write(before.folder)

    assert FeatureStore.open(tmp_path / "store").manifest.encoder == "lite0"
    extract(open_source(photos), tmp_path / "store", encoder)
    assert len(FeatureStore.open(tmp_path / "store")) == 6
    with pytest.raises(StoreError, match=r"was made by the encoder 'lite0' .* not by 'lite'"):
        extract(open_source(photos), tmp_path / "store", load_encoder("lite", device="cpu"))
