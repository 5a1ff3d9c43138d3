"""A small real encoder and a folder of small photos for the tests of the feature store."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

spec = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)


@pytest.fixture
def encoder():
    return tiny.ColourEncoder()


@pytest.fixture
def other_encoder():
    return tiny.ColourEncoder(seed=1)


@pytest.fixture
def write_photo():
    """Write a photo that no other seed gives."""

    def write(path, seed):
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)

    return write


@pytest.fixture
def photos(tmp_path, write_photo):
    """Three classes of four photos."""
    folder = tmp_path / "photos"
    for number in range(12):
        write_photo(folder / "abc"[number // 4] / f"{number}.png", number)
    return folder
