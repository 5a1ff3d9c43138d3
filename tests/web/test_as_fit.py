"""The page's workspace makes the model that `gpcache fit` makes of the same photos."""

import io
import sys
import time

import numpy as np
import pytest
from PIL import Image

from gpcache import ImageClassifier, load_encoder
from gpcache.cli.app import main
from gpcache.web.learner import FEW

KINDS = {"brick": (190, 90, 60), "grass": (70, 150, 60), "water": (60, 110, 170)}


def drawn(kind, seed):
    """A PNG of coarse patches around a colour that other kinds come near to."""
    generator = np.random.default_rng([*map(ord, kind), seed])
    patches = np.array(KINDS[kind]) + generator.normal(0, 55, (6, 6, 3))
    pixels = np.kron(patches.clip(0, 255), np.ones((8, 8, 1))).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def lite():
    return load_encoder("lite", device="cpu")


@pytest.mark.parametrize("each", [1, 4, FEW // 3 + 3], ids=["one", "few", "many"])
def test_the_page_and_the_command_line_make_the_same_model(
    each, start, lite, tmp_path, monkeypatch
):
    """One photo a class, a few, and so many that the page updates before it chooses anew."""
    assert len(KINDS) * (FEW // 3 + 3) > FEW
    server = start(encoder=lite)
    for kind in KINDS:
        folder = tmp_path / "photos" / kind
        folder.mkdir(parents=True)
        files = []
        for number in range(each):
            name, content = f"{kind}{number:02}.png", drawn(kind, number)
            (folder / name).write_bytes(content)
            files.append(("files", (name, content)))
        added = server.client.post("/v1/examples", data={"label": kind}, files=files).json()
        assert len(added["added"]) == each
    place = tmp_path / "model"
    photos = str(tmp_path / "photos")
    monkeypatch.setattr(sys, "argv", ["gpcache", "fit", photos, "-o", str(place)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    model = ImageClassifier.load(place, device="cpu", encoder=lite)
    queries = [drawn(kind, 900 + number) for kind in KINDS for number in range(3)]
    expected = [one.probabilities for one in model.predict(queries)]
    assert min(max(one.values()) for one in expected) < 0.99  # there is something to tell

    def asked():
        files = [("files", (f"{number}.png", photo)) for number, photo in enumerate(queries)]
        found = server.client.post("/v1/predict", files=files).json()["predictions"]
        return [{bar["label"]: bar["probability"] for bar in one["probabilities"]} for one in found]

    def same(found):
        return all(
            one == pytest.approx(other, abs=1e-6)
            for one, other in zip(found, expected, strict=True)
        )

    end = time.monotonic() + 300  # beyond a few photos the page chooses anew in the background
    while not same(told := asked()) and time.monotonic() < end:
        time.sleep(0.2)
    for one, other in zip(told, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
