"""Images that are read beside the imports: the same model, and nothing left running."""

import shutil
import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

from gpcache import ImageClassifier, load_encoder
from gpcache.encoders import lite_graph
from gpcache.images.drawn import DRAWN_CLASSES, draw_picture
from gpcache.model import early
from gpcache.model.early import read_early
from gpcache.model.training_images import StartedSource, open_training

pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra lite")

CLASSES = DRAWN_CLASSES[:3]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Four photos of each class, a copy, and a file that is no image."""
    load_encoder("lite", device="cpu")  # fills the cache
    place = tmp_path_factory.mktemp("photos")
    for name in CLASSES:
        (place / name).mkdir()
        for number in range(4):
            draw_picture(name, number).save(place / name / f"{number}.png")
    shutil.copy(place / CLASSES[0] / "0.png", place / CLASSES[0] / "copy.png")
    (place / CLASSES[1] / "broken.jpg").write_bytes(b"no image")
    return place


@pytest.mark.parametrize("shots", [None, 3])
def test_the_model_is_that_of_a_fit_that_reads_by_itself(photos, tmp_path, shots):
    usual = ImageClassifier("lite", device="cpu").fit(open_training(photos), shots=shots, seed=1)
    with read_early(open_training(photos), "lite", "cpu", shots=shots, seed=1) as take:
        encoder, source = take()
        assert isinstance(source, StartedSource)
        found = ImageClassifier(encoder, device="cpu").fit(source, shots=shots, seed=1)
        assert source.reading.done()
    assert found.training == usual.training
    assert (shots is not None) or found.training.refused
    for name, one in {"usual": usual, "early": found}.items():
        one.save(tmp_path / name)
    for file in (tmp_path / "usual").iterdir():
        assert (tmp_path / "early" / file.name).read_bytes() == file.read_bytes()


def test_another_draw_than_the_one_that_was_started_is_read_again(photos):
    with read_early(open_training(photos), "lite", "cpu", shots=1, seed=0) as take:
        encoder, source = take()
        found = ImageClassifier(encoder, device="cpu").fit(source, shots=3, seed=0)
    assert found.n_images == 9


def test_nothing_is_started_where_it_needs_torch_or_there_are_many(photos, monkeypatch, tmp_path):
    monkeypatch.setattr(lite_graph, "ACCELERATORS", (str(tmp_path),))
    source = open_training(photos)

    def started(encoder="lite", device="cpu", shots=None, views=0):
        with read_early(source, encoder, device, shots=shots, seed=0, views=views) as take:
            taken = take()
        return taken != (encoder, source)

    assert started()
    assert not started(encoder="clip-rn50")
    assert not started(device="auto")  # there is an accelerator
    assert not started(views=2)
    monkeypatch.setattr(early, "MOST_IMAGES", 12)
    assert not started()
    assert started(shots=4)


def test_without_a_cached_graph_the_fit_takes_the_name(photos, monkeypatch, tmp_path):
    monkeypatch.setenv("GPCACHE_CACHE", str(tmp_path / "empty"))
    source = open_training(photos)
    with read_early(source, "lite", "cpu", shots=None, seed=0) as take:
        assert take() == ("lite", source)


def test_an_error_beside_the_reading_ends_it(photos, monkeypatch):
    threads = {thread for thread in threading.enumerate() if not thread.daemon}
    encoded, may_end = threading.Event(), threading.Event()
    calls = []

    def encode_pixels(self, pixels):
        calls.append(len(pixels))
        encoded.set()
        may_end.wait(60)
        return np.ones((len(pixels), self.dim), np.float32)

    monkeypatch.setattr(early.LiteGraph, "encode_pixels", encode_pixels)
    monkeypatch.setattr(early, "PART", 1)
    monkeypatch.setattr(early, "usable_threads", lambda: 1)
    sources = []

    def interrupted():
        with read_early(open_training(photos), "lite", "cpu", shots=None, seed=0) as take:
            sources.append(take()[1])
            assert encoded.wait(60)
            # The image in progress ends after the context has been left.
            threading.Timer(0.5, may_end.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(calls) == 1
    with pytest.raises(CancelledError):
        sources[0].reading.result(timeout=60)
    assert {thread for thread in threading.enumerate() if not thread.daemon} == threads


def test_reading_imports_neither_torch_nor_scikit_learn(photos):
    script = f"""
import sys
from pathlib import Path
from gpcache.encoders.lite_recipes import RECIPES
from gpcache.model.early import EarlyReading
from gpcache.model.training_images import open_training
early = EarlyReading(open_training(Path({str(photos)!r})), RECIPES["lite"], shots=1, seed=0)
assert len(early.reading.result().examples) == 3
early.stop()
print({{"torch", "sklearn", "scipy", "pydantic", "jinja2"}} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
