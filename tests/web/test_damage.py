"""A workspace after a restart, after damage to any of its files, and from an older version."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from gpcache.errors import DataError
from gpcache.web.learner import FEW
from gpcache.web.open_workspace import open_workspace

JPEG = {"Content-Type": "image/jpeg"}
# Between the classes, so that every hyper-parameter counts.
QUERIES = [(120, 100, 60), (90, 90, 90), (60, 110, 110)]


def asked(client, photo):
    """What the model says, and its figures."""
    files = [("files", (f"{k}.jpg", photo(colour, 900 + k))) for k, colour in enumerate(QUERIES)]
    found = client.post("/v1/predict", files=files).json()["predictions"]
    figures = ("probability", "uncertainty", "familiarity")
    told = [[one["label"], *(one[figure] for figure in figures)] for one in found]
    return told, client.get("/v1/loo").json(), client.get("/v1/state").json()["revision"]


def add(client, photo, colour, numbers):
    files = [("files", (f"{colour}{k}.jpg", photo(colour, k))) for k in numbers]
    assert client.post("/v1/examples", data={"label": colour}, files=files).status_code == 200


def test_a_restart_changes_no_answer(start, photo):
    """Beyond a few photos hyper-parameters are kept, which the photos alone do not tell."""
    running = start()
    for colour in ("red", "green", "blue"):
        add(running.client, photo, colour, range(FEW // 3 + 3))
    time.sleep(1)  # a fit in the background may begin
    for number in range(30, 36):
        add(running.client, photo, "red", [number])
    ids = [one["id"] for one in running.client.get("/v1/state").json()["photos"]]
    running.client.patch("/v1/examples", json={"ids": ids[:4], "label": "blue"})
    end = time.monotonic() + 300
    before = asked(running.client, photo)
    while (again := asked(running.client, photo)) != before and time.monotonic() < end:
        before = again
    start.stop(running)
    assert asked(start().client, photo) == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory, encoder, run_server, photo):
    """A workspace with photos, a pool, an undo and a batch; and what it answers."""
    folder = tmp_path_factory.mktemp("whole") / "workspace"
    running = run_server(open_workspace(folder, encoder=encoder))
    for colour in ("red", "green", "blue"):
        add(running.client, photo, colour, range(3))
    batch = running.client.post("/v1/batch", json={"format": "csv"}).json()["id"]
    files = [("files", ("a.jpg", photo("red", 77))), ("files", ("b.jpg", photo("blue", 78)))]
    running.client.post(f"/v1/batch/{batch}/files", files=files)
    told = asked(running.client, photo)
    table = running.client.get(f"/v1/batch/{batch}/result").text
    running.stop()
    return folder, told, batch, files, table


def labelled(table):
    """The images and labels of a table."""
    return sorted(line.split(",")[:2] for line in table.splitlines())


def flipped(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << (place % 8)
    file.write_bytes(data)


def test_a_file_in_place_of_the_model_is_replaced_once(whole, tmp_path, start, photo):
    folder, told, *_ = whole
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=lambda *_: [".lock"])
    shutil.rmtree(copy / "model.gpc")
    (copy / "model.gpc").write_bytes(b"no folder")
    running = start(copy)
    assert "model.gpc" in running.client.get("/v1/state").json()["notices"][0]
    assert asked(running.client, photo)[0] == told[0]
    add(running.client, photo, "red", [50])
    start.stop(running)
    assert (copy / "model.gpc").is_dir()
    assert start(copy).client.get("/v1/state").json()["notices"] == []


@pytest.mark.parametrize(
    "kind",
    ["workspace.json", "workspace-copy.json", "photos", "originals", "model.gpc", "batches"],
)
def test_no_flipped_bit_changes_an_answer_in_silence(whole, kind, tmp_path, start, photo):
    folder, told, batch, files, table = whole
    random = np.random.default_rng(0)
    for number in range(3):
        copy = tmp_path / str(number)
        shutil.copytree(folder, copy, ignore=lambda *_: [".lock"])
        place = copy / kind
        inside = [one for one in sorted(place.rglob("*")) if one.is_file() and one.stat().st_size]
        file = random.choice(inside) if inside else place
        flipped(file, int(random.integers(file.stat().st_size)))
        running = start(copy)
        client, state = running.client, running.client.get("/v1/state").json()
        if kind == "model.gpc":
            assert "model.gpc was damaged" in state["notices"][0]
        elif kind == "photos":
            assert state["notices"] == ["1 damaged photo repaired from the original."]
        elif kind == "workspace.json":
            assert "repaired from its copy" in state["notices"][0]
        else:
            assert state["notices"] == []
        if kind == "originals":
            ids = [one["id"] for one in state["photos"]]
            shown = [client.get(f"/v1/photos/{key}/original") for key in ids]
            wrong = [one for one in shown if one.status_code != 200]
            assert len(wrong) == 1
            assert "original" in wrong[0].json()["error"]
        if kind == "batches":
            damaged = client.get(f"/v1/batch/{batch}/result")
            assert "send the same photos again" in damaged.json()["error"]
            client.post(f"/v1/batch/{batch}/files", files=files)
        assert labelled(client.get(f"/v1/batch/{batch}/result").text) == labelled(table)
        assert asked(client, photo) == told
        start.stop(running)
        assert start(copy).client.get("/v1/state").json()["notices"] == []


def test_a_photo_of_which_nothing_is_left_is_named(whole, tmp_path, start):
    folder, *_ = whole
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=lambda *_: [".lock"])
    document = json.loads((copy / "workspace.json").read_text())
    lost = document["contents"]["photos"][1]
    (copy / "photos" / f"{lost['hash']}.safetensors").write_bytes(b"")
    (copy / "originals" / lost["hash"]).unlink()
    running = start(copy)
    state = running.client.get("/v1/state").json()
    assert state["notices"] == [
        "The pictures of 1 damaged photo are lost, such as 'red1.jpg'; the model keeps what it "
        "learned from them."
    ]
    assert len(state["photos"]) == 9
    start.stop(running)
    (copy / "photos" / f"{lost['hash']}.safetensors").unlink()
    shutil.rmtree(copy / "model.gpc")
    state = start(copy).client.get("/v1/state").json()
    assert state["notices"] == [
        "The photo 'red1.jpg' of the class 'red' is damaged and cannot be repaired: add it again."
    ]
    assert len(state["photos"]) == 8
    assert "red1.jpg" not in [one["name"] for one in state["photos"]]


def test_both_documents_damaged_are_named(whole, encoder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole[0], copy, ignore=lambda *_: [".lock"])
    for name in ("workspace.json", "workspace-copy.json"):
        flipped(copy / name, 900)
    with pytest.raises(DataError, match=r"workspace.json.*workspace-copy.json.*a backup"):
        open_workspace(copy, encoder=encoder)
    for name in ("workspace.json", "workspace-copy.json"):
        (copy / name).unlink()
    with pytest.raises(DataError, match=r"workspace.json.*are missing.*a backup"):
        open_workspace(copy, encoder=encoder)


def test_a_workspace_of_the_last_version_is_brought_up_to_date(whole, tmp_path, start, photo):
    folder, told, *_ = whole
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=lambda *_: [".lock"])
    made_old(copy)
    running = start(copy)
    assert asked(running.client, photo) == told
    start.stop(running)
    assert json.loads((copy / "workspace.json").read_text())["schema"] == 3
    flipped(next((copy / "photos").iterdir()), 300)
    notices = start(copy).client.get("/v1/state").json()["notices"]
    assert "the model keeps what it learned from them" in notices[0]


def made_old(folder: Path) -> None:
    """Take away what workspaces of schema 2 did not have."""
    document = json.loads((folder / "workspace.json").read_text())
    for name in ("sha256", "source", "began_with"):
        del document[name]
    (folder / "workspace.json").write_text(json.dumps(document | {"schema": 2}))
    (folder / "workspace-copy.json").unlink()
    for name in ("model.gpc", "originals"):
        shutil.rmtree(folder / name)
    for file in (folder / "photos").iterdir():
        file.write_bytes(save(load(file.read_bytes())))
