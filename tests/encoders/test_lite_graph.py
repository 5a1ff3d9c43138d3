"""The cached graph of `lite`: the same vectors, and nothing of a damaged file."""

import stat
import subprocess
import sys

import numpy as np
import pytest

from gpcache.encoders import load_encoder
from gpcache.encoders.lite_graph import read_graph
from gpcache.encoders.lite_recipes import RECIPES
from gpcache.support.files import user_cache

RECIPE = RECIPES["lite"]


@pytest.fixture
def pixels():
    size = (3, 260, 260, 3)
    return np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GPCACHE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cached_graph_gives_the_vectors_of_the_encoder(pixels):
    encoder = load_encoder("lite", device="cpu")
    graph = read_graph(RECIPE)
    assert graph.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(graph.encode_pixels(pixels), encoder.encode_pixels(pixels))


def test_the_cache_is_for_its_owner_and_holds_one_graph(empty_cache):
    empty_cache.mkdir(mode=0o700)
    older = empty_cache / "lite-0123456789abcdef.graph"
    older.write_bytes(b"of an older version")
    assert read_graph(RECIPE) is None
    load_encoder("lite", device="cpu")
    (file,) = empty_cache.iterdir()
    assert file != older
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_graph(RECIPE) is not None


def test_a_damaged_graph_is_written_again(empty_cache, pixels):
    expected = load_encoder("lite", device="cpu").encode_pixels(pixels)
    (file,) = empty_cache.iterdir()
    assert stat.S_IMODE(empty_cache.stat().st_mode) == 0o700
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert read_graph(RECIPE) is None
    np.testing.assert_array_equal(load_encoder("lite").encode_pixels(pixels), expected)
    assert read_graph(RECIPE) is not None


def test_without_a_place_for_the_cache_the_encoder_works(tmp_path, monkeypatch, pixels):
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.setenv("GPCACHE_CACHE", str(file / "cache"))
    assert load_encoder("lite", device="cpu").encode_pixels(pixels).shape == (3, 1664)


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("GPCACHE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "gpcache"


def test_a_cached_graph_needs_neither_torch_nor_scikit_learn():
    load_encoder("lite", device="cpu")  # fills the cache
    script = """
import sys
import numpy as np
from gpcache.encoders.lite_graph import read_graph
from gpcache.encoders.lite_recipes import RECIPES
pixels = np.zeros((1, 260, 260, 3), np.uint8)
assert read_graph(RECIPES["lite"]).encode_pixels(pixels).shape == (1, 1664)
print({"torch", "sklearn", "transformers", "onnx"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
