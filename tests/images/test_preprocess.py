"""Preprocess against torchvision's goldens, and its behaviour on lines."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from gpcache.images import Preprocess


def test_bit_equal_to_torchvision(goldens):
    """If a new Pillow resizes otherwise, look at the samples, then run make_goldens.py again."""
    stored = json.loads(goldens.GOLDENS.read_text())
    seen = {}
    for pipeline, options in goldens.PIPELINES.items():
        preprocess = Preprocess(**options)
        for name, image in goldens.images().items():
            pixels = preprocess.pixels(image)
            values = preprocess.normalised(torch.from_numpy(pixels[None].copy()))[0].numpy()
            seen[f"{pipeline}: {name}"] = goldens.summary(pixels, values)
    assert seen == stored
    assert len(stored) == 39


@pytest.mark.parametrize("size", [(1, 5000), (16384, 1), (2, 16384)])
def test_a_line_needs_little_memory(size):
    """Its resized whole would be a gigabyte and more."""
    script = f"""
import resource
from PIL import Image
from gpcache.images import Preprocess
image = Image.new("RGB", {size}, (10, 200, 30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pixels = Preprocess().pixels(image)
assert pixels.shape == (224, 224, 3) and (pixels == (10, 200, 30)).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert grown.returncode == 0, grown.stderr
    assert int(grown.stdout) < 50_000  # kilobytes


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (3, 9001)])
def test_the_crop_of_a_line_equals_the_crop_of_the_whole(size, monkeypatch, goldens):
    """Both ways to the same pixels, up to rounding; a small size keeps the whole affordable."""
    image = Image.fromarray(goldens.pattern(*size, 3))
    preprocess = Preprocess(size=32)
    whole = preprocess.pixels(image)
    monkeypatch.setattr("gpcache.images.preprocess._MAX_SCALED", 0)
    part = preprocess.pixels(image)
    assert np.abs(whole.astype(int) - part).max() <= 1


def test_equal_descriptions_mean_equal_numbers():
    assert Preprocess().describe() == Preprocess(resize=224).describe()
    assert Preprocess().describe() != Preprocess(resize=256).describe()
    assert Preprocess().describe() != Preprocess(interpolation="bilinear").describe()
