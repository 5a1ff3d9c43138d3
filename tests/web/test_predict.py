"""Answers over HTTP: as the model file gives them, in batches, to hostile files."""

import ast
import concurrent.futures
import csv
import importlib.util
import io
import os
import re
import shlex
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gpcache import ImageClassifier
from gpcache.images.decode import decode
from gpcache.web import open_workspace as open_workspace_module

JPEG = {"content-type": "image/jpeg"}
CORPUS = Path(__file__).parents[1] / "images" / "hostile_corpus.py"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("hostile_corpus", CORPUS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("corpus")
    module.write_images(folder)
    return module, folder


def test_every_hostile_file_is_a_sentence(shared, corpus):
    module, folder = corpus
    for name, reason in module.REFUSED.items():
        content = (folder / name).read_bytes()
        answer = shared.client.post("/v1/predict", content=content, headers=JPEG)
        assert 400 <= answer.status_code < 500, name
        if answer.status_code != 413:  # the size is refused before the file is looked at
            assert re.search(reason, answer.json()["error"]), (name, answer.text)
    assert shared.client.post("/v1/predict", content=b"", headers=JPEG).status_code == 400


def test_odd_but_good_files_are_answered(shared, corpus):
    module, folder = corpus
    names = [name for name in module.ACCEPTED if not name.endswith((".heic", ".heif"))]
    files = [("files", (name, (folder / name).read_bytes())) for name in names]
    found = shared.client.post("/v1/predict", files=files).json()["predictions"]
    assert [one["name"] for one in found] == names
    assert all("label" in one for one in found)


def test_the_exported_model_answers_alike(shared, encoder, photo, tmp_path):
    content = shared.client.get("/v1/export/model").content
    zipfile.ZipFile(io.BytesIO(content)).extractall(tmp_path)
    model = ImageClassifier.load(tmp_path / "workspace.gpc", encoder=encoder)
    images = [photo(colour, 900 + k) for k, colour in enumerate(("red", "green", "blue"))]
    files = [("files", (f"{k}.jpg", image)) for k, image in enumerate(images)]
    over_http = shared.client.post("/v1/predict", files=files).json()["predictions"]
    for one, other in zip(over_http, model.predict(images), strict=True):
        assert one["label"] == other.label
        assert one["probability"] == pytest.approx(other.probability, abs=1e-6)
        assert one["uncertainty"] == pytest.approx(other.uncertainty, abs=1e-6)
    assert len(model.examples) == 18
    assert model.picture(0) == shared.client.get("/v1/photos/p1").content


def test_a_served_model_answers_as_it_did(start, encoder, photo, tmp_path):
    pairs = [
        (decode(photo(colour, 50 * k + n)).image, colour)
        for k, colour in enumerate(("red", "green", "blue"))
        for n in range(4)
    ]
    model = ImageClassifier(encoder).fit(pairs)
    model.save(tmp_path / "pets.gpc", thumbnails=True)
    running = start(tmp_path / "own", model=tmp_path / "pets.gpc")
    for _ in range(2):  # after a restart, too
        state = running.client.get("/v1/state").json()
        assert state["name"] == "pets"
        assert len(state["photos"]) == 12
        for seed, colour in enumerate(("red", "blue", (120, 120, 120))):
            image = photo(colour, 900 + seed)
            found = running.client.post("/v1/predict", content=image, headers=JPEG).json()
            answer, expected = found["predictions"][0], model.predict([image])[0]
            assert answer["probability"] == pytest.approx(expected.probability, abs=1e-6)
            assert answer["familiarity"] == pytest.approx(expected.familiarity)
            assert answer["rejected"] == expected.rejected
        start.stop(running)
        running = start(tmp_path / "own", model=tmp_path / "pets.gpc")


def test_a_workspace_begins_with_one_revision_of_a_model(start, encoder, tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl", reason="Windows has no lock on folders")
    colours = np.array([[[[200, 30, 30]]], [[[30, 40, 200]]]], dtype=np.uint8)
    model = tmp_path / "pets.gpc"
    ImageClassifier(encoder).fit(np.repeat(colours, 40, 1).repeat(40, 2), ["red", "blue"]).save(
        model
    )
    read, changed = open_workspace_module.load_folder, []

    def change_and_read(path):
        descriptor = os.open(model, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            changed.append(path)
        except BlockingIOError:  # another process would wait
            pass
        finally:
            os.close(descriptor)
        return read(path)

    monkeypatch.setattr(open_workspace_module, "load_folder", change_and_read)
    start(tmp_path / "own", model=model)
    assert changed == []


def test_a_failed_write_leaves_a_served_model_as_it_was(start, encoder, photo, tmp_path):
    pairs = [
        (decode(photo(colour, 50 * k + n)).image, colour)
        for n in range(6)
        for k, colour in enumerate(("red", "green", "blue"))
    ]
    # Its hyper-parameters were chosen on some of its photos: those of all would be others.
    model = ImageClassifier(encoder).fit(pairs)
    fitted = ImageClassifier(encoder).fit(pairs[:6])
    rows = model.model.fitted_.shots.features[6:].numpy()
    fitted.model.add(rows, [label for _, label in pairs[6:]], refit=False)
    model.content.model = fitted.model
    images = [photo((115, 105, 40), 900), photo((30, 110, 120), 901)]
    answers = [one.probability for one in model.predict(images)]
    refitted = [one.probability for one in ImageClassifier(encoder).fit(pairs).predict(images)]
    assert np.abs(np.subtract(answers, refitted)).max() > 1e-3
    model.save(tmp_path / "pets.gpc")
    client = start(tmp_path / "own", model=tmp_path / "pets.gpc").client
    before = client.get("/v1/state").json()
    document, aside = tmp_path / "own" / "workspace.json", tmp_path / "aside.json"
    document.rename(aside)
    document.mkdir()  # a file cannot take its place
    changes = [
        ("PATCH", "/v1/examples", {"ids": ["p1"], "label": "blue"}),
        ("DELETE", "/v1/examples", {"ids": ["p2"]}),
        ("POST", "/v1/classes", {"name": "yellow"}),
        ("PATCH", "/v1/examples", {"ids": ["p1"], "keep": True}),
    ]
    for method, path, body in changes:
        answer = client.request(method, path, json=body)
        assert answer.status_code == 400
        assert "cannot be written" in answer.json()["error"]
    document.rmdir()
    aside.rename(document)
    assert client.get("/v1/state").json() == before
    files = [("files", (f"{k}.jpg", image)) for k, image in enumerate(images)]
    found = client.post("/v1/predict", files=files).json()["predictions"]
    assert [one["probability"] for one in found] == pytest.approx(answers, abs=1e-6)
    assert client.post("/v1/classes", json={"name": "yellow"}).status_code == 200


def test_requests_side_by_side_share_batches_and_agree(shared, photo):
    images = [photo(colour, 300 + k) for k in range(16) for colour in ("red", "green", "blue")]

    def ask(image):
        answer = shared.client.post("/v1/predict", content=image, headers=JPEG)
        return answer.json()["predictions"][0]["probability"]

    alone = [ask(image) for image in images]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        together = list(pool.map(ask, images))
    np.testing.assert_allclose(together, alone, atol=1e-6)
    text = shared.client.get("/metrics").text
    counts = {
        float(edge): int(count)
        for edge, count in re.findall(r'gpcache_batch_images_bucket{le="(\d+).0"} (\d+)', text)
    }
    assert counts[512] > counts[1]  # some batch held more than one image


def test_more_than_the_queue_holds_is_told_to_come_back(start, photo, filled, monkeypatch):
    monkeypatch.setattr("gpcache.web.encoding.MAX_WAITING", 2)
    running = start()
    filled(running.client, photo, 2)
    image = photo("red", 3, side=900)

    def ask(_):
        return running.client.post("/v1/predict", content=image, headers=JPEG)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(48)))
    codes = {answer.status_code for answer in answers}
    assert codes == {200, 429}
    busy = next(answer for answer in answers if answer.status_code == 429)
    assert int(busy.headers["retry-after"]) >= 1
    assert "try again" in busy.json()["error"]
    assert ask(0).status_code == 200


def test_options_of_an_answer(shared, photo):
    def ask(colour="red", **options):
        answer = shared.client.post(
            "/v1/predict", content=photo(colour, 5), headers=JPEG, params=options
        )
        return answer.json()["predictions"][0]

    assert len(ask(top=2)["probabilities"]) == 2
    assert len(ask(why=3)["why"]) == 3
    assert ask(sets=0)["plausible"] is None
    for error in (0.01, 5e-324):
        assert ask(sets=error)["plausible"] is not None
    unlike = (250, 250, 0)
    assert ask(unlike, reject=0.5)["rejected"]
    assert not ask(unlike, reject=0)["rejected"]
    answer = shared.client.post("/v1/predict?top=0", content=photo("red"), headers=JPEG)
    assert answer.status_code == 422
    assert "top" in answer.json()["error"]


def test_batches_go_on_after_a_restart(start, photo, filled):
    running = start()
    filled(running.client, photo, 3)
    key = running.client.post("/v1/batch", json={"format": "csv"}).json()["id"]
    files = [("files", (f"{k}.jpg", photo("green", 700 + k))) for k in range(6)]
    files.append(("files", ("=bad.jpg", b"nothing")))
    state = running.client.post(f"/v1/batch/{key}/files", files=files[:4]).json()
    assert (state["done"], state["refused"]) == (4, 0)
    start.stop(running)
    client = start().client
    state = client.post(f"/v1/batch/{key}/files", files=files).json()
    assert (state["done"], state["refused"]) == (7, 1)
    lines = client.get(f"/v1/batch/{key}/result").text.splitlines()
    assert len(lines) == 8
    assert lines[0].startswith("image,label,probability")
    assert any(line.startswith("'=bad.jpg") for line in lines)  # no formula
    assert sum(",green," in line for line in lines) == 6
    assert client.get("/v1/batch/" + "0" * 32).status_code == 404
    assert client.get("/v1/batch/..%2Fx/result").status_code == 404


def test_a_batch_tells_files_of_one_name_apart(shared, photo):
    key = shared.client.post("/v1/batch", json={}).json()["id"]
    sent = [
        ("a/1.jpg", photo("red", 1)),
        ("b/1.jpg", photo("blue", 2)),
        ("c/1.jpg", photo("red", 1)),  # a copy in another folder is a row of its own
        ("../../etc/./1.jpg", photo("green", 3)),
        ("C:\\photos\\1.jpg", photo("green", 4)),
        ("1.jpg", photo("blue", 5)),
        ("1.jpg", photo("red", 6)),
        ("1.jpg", photo("red", 6)),
        ("b/2.jpg", b"no image"),
        ("b/2.jpg", b"another one that is none"),
    ]
    files = [("files", one) for one in sent]
    for _ in range(2):  # sent again, nothing is added
        state = shared.client.post(f"/v1/batch/{key}/files", files=files).json()
        assert (state["done"], state["refused"]) == (9, 2)
    text = shared.client.get(f"/v1/batch/{key}/result").text
    rows = [(row["image"], row["label"]) for row in csv.DictReader(io.StringIO(text))]
    assert sorted(rows) == [
        ("1.jpg", "blue"),
        ("1.jpg", "green"),
        ("1.jpg", "red"),
        ("a/1.jpg", "red"),
        ("b/1.jpg", "blue"),
        ("b/2.jpg", ""),
        ("b/2.jpg", ""),
        ("c/1.jpg", "red"),
        ("etc/1.jpg", "green"),
    ]


def test_parquet_holds_the_same(shared, photo):
    parquet = pytest.importorskip("pyarrow.parquet")
    key = shared.client.post("/v1/batch", json={"format": "parquet"}).json()["id"]
    files = [("files", ("a.jpg", photo("blue", 1))), ("files", ("b.jpg", b"nothing"))]
    shared.client.post(f"/v1/batch/{key}/files", files=files)
    table = parquet.read_table(io.BytesIO(shared.client.get(f"/v1/batch/{key}/result").content))
    rows = table.to_pylist()
    assert [row["label"] for row in rows] == ["blue", None]
    assert "not an image" in rows[1]["error"]


@pytest.mark.parametrize("name", ["my pets; touch x", 'it\'s "mine"', "-f", "$(id)", "cats"])
def test_lines_to_copy_name_the_model_and_do_nothing_else(start, encoder, photo, tmp_path, name):
    pairs = [(decode(photo(colour, 1)).image, colour) for colour in ("red", "blue")]
    ImageClassifier(encoder).fit(pairs).save(tmp_path / f"{name}.gpc")
    client = start(tmp_path / "own", model=tmp_path / f"{name}.gpc").client
    lines = client.get("/v1/snippets").json()
    program, command, model, *_ = shlex.split(lines["cli"])
    assert (program, command) == ("gpcache", "predict")
    assert not model.startswith("-")
    assert (tmp_path / model).resolve() == tmp_path / f"{name}.gpc"
    strings = [n.value for n in ast.walk(ast.parse(lines["python"])) if isinstance(n, ast.Constant)]
    assert f"{name}.gpc" in strings


def test_a_damaged_batch_is_a_sentence(start, photo, filled, tmp_path):
    client = start().client
    filled(client, photo, 2)
    key = client.post("/v1/batch", json={}).json()["id"]
    file = tmp_path / "workspace" / "batches" / f"{key}.csv.jsonl"
    whole = file.read_bytes()
    for content in (b"{}\n", b'{"format": "exe"}\n', whole + b"[]\n", whole + b'{"row": 1}'):
        file.write_bytes(content)
        assert client.get(f"/v1/batch/{key}").json()["done"] == 0
        answer = client.get(f"/v1/batch/{key}/result")
        assert answer.status_code == 400
        assert "are damaged" in answer.json()["error"]


def test_the_model_to_take_away(shared):
    card = shared.client.get("/v1/card").text
    accuracy = shared.client.get("/v1/loo").json()["accuracy"]
    assert f"| {accuracy:.1%} |" in card
    lines = shared.client.get("/v1/snippets").json()
    assert "gpcache predict workspace.gpc" in lines["cli"]
    assert shared.address in lines["curl"]
    pytest.importorskip("onnx")
    assert shared.client.get("/v1/export/onnx").content
