"""A toy data set as an .npz file, specs that run on it, and a small encoder for photos."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

place = Path(__file__).parents[1] / "features" / "tiny.py"
spec = importlib.util.spec_from_file_location("tiny", place)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)

CLASSES = ("ant", "bee", "cat", "dog")
WIDTH = 16


def rows(generator, centres, count):
    labels = np.repeat(np.arange(len(centres)), count)
    noise = 0.9 * generator.standard_normal((len(labels), WIDTH))
    return centres[labels] + noise, labels


@pytest.fixture
def encoder():
    return tiny.ColourEncoder()


@pytest.fixture
def write_features(tmp_path):
    """Write features of four classes that overlap; `parts` says how many of each class where."""

    def write(name="toy", text=True, seed=0, **parts):
        generator = np.random.default_rng(seed)
        centres = generator.standard_normal((len(CLASSES), WIDTH))
        arrays = {"classnames": np.array(CLASSES)}
        for part, count in (parts or {"train": 12, "val": 6, "test": 25}).items():
            arrays[f"{part}_x"], arrays[f"{part}_y"] = rows(generator, centres, count)
        if text:
            arrays["text"] = centres + generator.standard_normal(centres.shape)
        np.savez(tmp_path / f"{name}.npz", **arrays)
        return tmp_path / f"{name}.npz"

    return write


SPEC = """
name = "toy"
title = "A toy"
protocols = ["full validation"]
datasets = ["toy.npz"]
shots = [2, 4]
seeds = [1, 2]

[[methods]]
name = "zero-shot"
label = "ZS"

[[methods]]
name = "tip-adapter"
label = "Tip"

[[methods]]
name = "gpcache"
label = "GPCache"
preset = "paper"
"""


@pytest.fixture
def write_spec(tmp_path):
    """Write a spec; by default three methods on toy.npz at two numbers of shots, two draws."""

    def write(text=SPEC, name="toy"):
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def spec_text():
    return SPEC


@pytest.fixture
def write_photos(tmp_path):
    """Write class folders of photos in one colour a class, with noise; returns their folder."""

    def write(folder="photos", parts=None, seed=0):
        generator = np.random.default_rng(seed)
        for part, count in (parts or {"train": 8, "test": 5}).items():
            for number, label in enumerate(("red", "green", "blue")):
                target = tmp_path / folder / part / label
                target.mkdir(parents=True)
                for photo in range(count):
                    pixels = generator.integers(0, 120, (20, 20, 3), dtype=np.uint8)
                    pixels[..., number] += 100
                    Image.fromarray(pixels).save(target / f"{photo}.png")
        return tmp_path / folder

    return write
