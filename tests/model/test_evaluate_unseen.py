"""An evaluation is of images that were not trained on, whatever folder is given."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from gpcache import ImageClassifier
from gpcache.errors import DataError

TINY = Path(__file__).parents[1] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", TINY)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)


def pairs(*seeds):
    """One image of each of two classes for every seed."""
    return [
        (np.random.default_rng([seed, shade]).integers(shade, shade + 99, (9, 9, 3)), str(shade))
        for seed in seeds
        for shade in (10, 150)
    ]


def images(*seeds):
    return [(pixels.astype(np.uint8), label) for pixels, label in pairs(*seeds)]


@pytest.fixture
def model():
    return ImageClassifier(tiny.ColourEncoder()).fit(images(0, 1, 2))


def test_training_images_are_left_out_and_counted(model):
    found = model.evaluate(images(1, 2, 3, 4))
    assert len(found) == 4
    assert found.protocol == "images that were not trained on (4 others were, and are left out)"
    assert model.evaluate(images(3, 4)).protocol == "images that were not trained on"
    np.testing.assert_array_equal(found.probabilities, model.evaluate(images(3, 4)).probabilities)


def test_nothing_but_training_images_is_one_sentence(model):
    with pytest.raises(DataError, match="All images in 'iterable' are training images"):
        model.evaluate(images(0, 1))
