"""The examples that run an exported model elsewhere: in Python without gpcache, in a browser."""

import importlib.util
import json
import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpcache import ImageClassifier
from gpcache.model.onnx import export_image_onnx

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "onnx"
ORT_WEB = Path(os.environ.get("ONNXRUNTIME_WEB", ROOT / "node_modules" / "onnxruntime-web"))


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tools = loaded(ROOT / "tests" / "web" / "browser.py")


def drawn(kind, seed, size):
    """Coarse patches around a colour, as an image of (width, height)."""
    generator = np.random.default_rng([kind, seed])
    colour = ((190, 90, 60), (70, 150, 60), (60, 110, 170))[kind]
    patches = np.array(colour) + generator.normal(0, 55, (9, 7, 3))
    return Image.fromarray(patches.clip(0, 255).astype(np.uint8)).resize(size)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An ONNX file, photos of many shapes that it has not seen, and what the model says of them."""
    folder = tmp_path_factory.mktemp("exported")
    names = ("brick", "grass", "water")
    shots = [(drawn(k, n, (150, 120)), name) for k, name in enumerate(names) for n in range(8)]
    model = ImageClassifier("lite", device="cpu").fit(shots)
    file = folder / "model.onnx"
    file.write_bytes(export_image_onnx(model.model, model.encoder_, reject=0.2))
    photos = []
    for number, size in enumerate([(400, 301), (123, 456), (80, 80), (333, 97), (641, 480)]):
        photos.append(folder / f"photo{number}.png")
        drawn(number % 3, 90 + number, size).save(photos[-1])
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    photos.append(folder / "noise.png")
    Image.fromarray(noise).save(photos[-1])
    turned = Image.Exif()
    turned[0x0112] = 6
    photos.append(folder / "turned.png")
    drawn(0, 99, (200, 120)).save(photos[-1], exif=turned)
    return file, photos, model.predict(photos, reject=0.2)


def assert_same(found, expected):
    for one, answer in zip(found, expected, strict=True):
        assert one["probabilities"] == pytest.approx(answer.probabilities, abs=1e-4)
        assert one["familiarity"] == pytest.approx(answer.familiarity, abs=1e-4)
        assert one["rejected"] == answer.rejected


def test_numpy_and_pillow_give_the_same_answer(exported):
    file, photos, expected = exported
    found = loaded(EXAMPLES / "classify.py").classify(file, photos)
    assert_same(found, expected)
    assert {one.rejected for one in expected} == {True, False}
    assert "gpcache" not in (EXAMPLES / "classify.py").read_text().split('"""')[2]


@tools.needs_chromium
@pytest.mark.skipif(
    not (ORT_WEB / "dist").exists(),
    reason="no onnxruntime-web: npm install onnxruntime-web, or set ONNXRUNTIME_WEB to its folder",
)
def test_a_browser_gives_the_same_answer(exported, tmp_path):
    file, photos, expected = exported
    for name in ("index.html", "classify.js"):
        shutil.copy(EXAMPLES / name, tmp_path)
    shutil.copy(file, tmp_path / "model.onnx")
    (tmp_path / "ort").symlink_to(ORT_WEB / "dist")
    handler = partial(_Quiet, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = _answers(f"http://127.0.0.1:{server.server_port}/", photos)
        server.shutdown()
    assert_same(found, expected)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def _answers(address, photos):
    found = []
    with tools.steady_network(), tools.playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=tools.CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        tools.playwright.expect(page.locator("#answer")).to_have_text(
            "Choose a photo.", timeout=120_000
        )
        for photo in photos:
            page.evaluate("delete document.getElementById('answer').dataset.result")
            page.locator("#photo").set_input_files(str(photo))
            page.wait_for_selector("#answer[data-result]", timeout=120_000)
            found.append(json.loads(page.locator("#answer").get_attribute("data-result")))
        browser.close()
    assert all(url.startswith((address, "blob:")) for url in asked)
    return found
