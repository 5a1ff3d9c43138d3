"""A full disk is told apart from a mistake, and leaves everything as it was."""

import base64
import errno
import os
from pathlib import Path

import pytest

FULL = Path("/dev/full")
JPEG = {"content-type": "image/jpeg"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_nothing_is_half_done(empty, photo, filled, monkeypatch, code):
    state = filled(empty, photo, 2)

    def no_room(_):
        raise OSError(code, os.strerror(code))

    files = {"files": ("one.jpg", photo("red", 77))}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        answers = [
            empty.post("/v1/examples", data={"label": "red"}, files=files),
            empty.post("/v1/pool", files=files),
            empty.post("/v1/classes", json={"name": "yellow"}),
            empty.post("/v1/undo"),
            empty.post("/v1/batch", json={"format": "csv"}),
        ]
    for answer in answers:
        assert answer.status_code == 507
        assert answer.json()["error"].startswith("The disk is full: ")
    assert empty.get("/v1/state").json() == state
    added = empty.post("/v1/examples", data={"label": "red"}, files=files)
    assert len(added.json()["added"]) == 1


def test_other_faults_of_the_disk_are_sentences_too(empty, monkeypatch):
    def broken(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        answer = empty.post("/v1/classes", json={"name": "yellow"})
    assert answer.status_code == 400
    assert "cannot be written" in answer.json()["error"]


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_uploads_that_wait_on_a_full_disk(shared, photo, monkeypatch):
    """What is too large to wait in memory."""
    image = photo("red", side=600)
    assert len(image) > 65_536
    data = [base64.b64encode(image).decode()]
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": data}
    requests = [
        ("/v1/predict", {"content": image, "headers": JPEG}),
        ("/v1/predict", {"files": {"files": ("a.jpg", image)}}),
        ("/v2/models/workspace/infer", {"json": {"inputs": [tensor]}}),
    ]
    for path, sent in requests:
        with monkeypatch.context() as patch, FULL.open("r+b", buffering=0) as full:
            patch.setattr("tempfile.TemporaryFile", lambda full=full, **_: full)
            answer = shared.client.post(path, **sent)
        assert answer.status_code == 507
        assert answer.json()["error"].startswith("The disk is full: ")
    assert shared.client.post("/v1/predict", content=image, headers=JPEG).status_code == 200
