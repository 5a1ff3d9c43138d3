"""Files of a workspace that exist but cannot be read: an error, and nothing is changed."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gpcache.errors import DataError
from gpcache.support.files import sha256
from gpcache.web.open_workspace import open_workspace
from gpcache.web.stored_files import UnreadableError
from gpcache.web.workspace_contents import ClassEntry, Contents, Photo
from gpcache.web.workspace_folder import Document, WorkspaceFolder

SCRIPTS = Path(__file__).parent
# Root may read everything, but not without these capabilities.
CAPABILITIES = "-dac_override,-dac_read_search"


@pytest.fixture(scope="module")
def unprivileged():
    """The beginning of a command that is run without the right to read everything."""
    if not hasattr(os, "geteuid"):
        pytest.skip("this system has no file modes")
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and there is no setpriv")
    return ["setpriv", f"--bounding-set={CAPABILITIES}", f"--inh-caps={CAPABILITIES}"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, encoder, run_server, photo, filled):
    """A workspace of nine photos."""
    folder = tmp_path_factory.mktemp("whole") / "workspace"
    running = run_server(open_workspace(folder, encoder=encoder))
    filled(running.client, photo, 3)
    running.stop()
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "copy", ignore=lambda *_: [".lock"])
    return tmp_path / "copy"


def everything(folder):
    return {str(one): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def test_an_unreadable_file_ends_the_start_and_changes_nothing(copy, unprivileged):
    keys = sorted(one.name for one in (copy / "originals").iterdir())
    photos = [f"photos/{key}.safetensors" for key in keys]
    originals = [f"originals/{key}" for key in keys]
    config = "model.gpc/config.json"
    # A damaged file whose repair needs one that cannot be read.
    (copy / "photos" / f"{keys[1]}.safetensors").write_bytes(b"damaged")
    kinds = {
        f"originals/{keys[0]}": [f"originals/{keys[0]}", photos[0], config],
        config: [config],
        "model.gpc/model.safetensors": ["model.gpc/model.safetensors"],
        photos[0]: [*originals, *photos],
        photos[2]: [photos[2]],
        f"originals/{keys[1]}": [f"originals/{keys[1]}"],
        "workspace.json": ["workspace.json"],
        "workspace-copy.json": ["workspace-copy.json"],
        "photos": ["photos"],
        "originals": ["originals"],
        "batches": ["batches"],
    }
    done = subprocess.run(
        [*unprivileged, sys.executable, SCRIPTS / "open_unreadable.py", copy],
        input=json.dumps([*kinds.values(), []]),
        capture_output=True,
        text=True,
        check=True,
    )
    *answers, last = map(json.loads, done.stdout.splitlines())
    for (kind, sentence, unchanged), wanted in zip(answers, kinds.values(), strict=True):
        assert kind == "UnreadableError", (wanted, sentence)
        assert any(str(copy / name) in sentence for name in wanted)
        assert "(Permission denied): give this user access to it" in sentence
        assert unchanged, wanted
    # With all files readable the damaged photo is repaired.
    assert last == ["", "", False]


def test_the_command_ends_with_2(copy, unprivileged):
    (copy / "workspace.json").chmod(0)
    before = everything(copy)
    ended = subprocess.run(
        [*unprivileged, sys.executable, "-m", "gpcache", "serve", "-w", copy, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 2
    assert "cannot be read (Permission denied)" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert {name: everything(copy)[name] for name in before} == before


@pytest.fixture
def program(copy, unprivileged):
    """A client of a server without the right to read everything."""
    process = subprocess.Popen(
        [*unprivileged, sys.executable, str(SCRIPTS / "program.py"), str(copy)],
        stdout=subprocess.PIPE,
        text=True,
    )
    address, _, token = process.stdout.readline().strip().partition("/?token=")
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=address, headers=headers, timeout=300) as client:
        yield client
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_request_that_meets_an_unreadable_file_changes_nothing(program, copy, photo):
    state = program.get("/v1/state").json()
    batch = program.post("/v1/batch", json={"format": "csv"}).json()["id"]
    sent = {"files": ("a.jpg", photo("red", 77))}
    program.post(f"/v1/batch/{batch}/files", files=sent)
    key = state["photos"][0]["id"]
    requests = [
        ("GET", f"/v1/photos/{key}", {}),
        ("GET", f"/v1/photos/{key}/original", {}),
        ("GET", "/v1/export/model", {}),
        ("GET", f"/v1/batch/{batch}/result", {}),
        ("POST", f"/v1/batch/{batch}/files", {"files": sent}),
        ("PATCH", "/v1/examples", {"json": {"ids": [key], "label": "blue"}}),
    ]
    names = ("photos", "originals", "batches")
    files = [one for name in names for one in (copy / name).iterdir()]
    before = everything(copy)
    for file in files:
        file.chmod(0)
    answers = [program.request(*request, **sent) for *request, sent in requests]
    for file in files:
        file.chmod(0o600)
    for answer, (_, path, _) in zip(answers, requests, strict=True):
        assert answer.status_code == 503, (path, answer.text)
        assert "cannot be read (Permission denied)" in answer.json()["error"]
    assert everything(copy) == before
    assert program.get("/v1/state").json() == state
    for method, path, sent in requests:
        assert program.request(method, path, **sent).status_code == 200


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EACCES, "give this user access to it"),
        (errno.EMFILE, "raise the limit of open files"),
        (errno.EIO, "check the disk"),
    ],
)
def test_the_sentence_says_what_to_do(code, remedy):
    sentence = str(UnreadableError(Path("ws/photos/ab"), OSError(code, os.strerror(code))))
    assert sentence.startswith(f"'ws/photos/ab' cannot be read ({os.strerror(code)}): {remedy}")
    assert sentence.endswith(", then try again.")


def test_an_intact_original_that_cannot_be_decoded_now_is_kept(tmp_path, encoder):
    """For example after the package for HEIC was removed."""
    content = b"an image of an unknown format"
    photo = Photo("p1", "a.heic", "cat", sha256(content))
    folder = WorkspaceFolder(tmp_path)
    folder.put_original(content, photo.hash)
    contents = Contents((ClassEntry("cat"),), {"p1": photo})
    folder.write(Document("tiny", encoder.fingerprint, next_id=2, contents=contents))
    folder.close()
    before = everything(tmp_path)
    with pytest.raises(DataError, match=r"intact original cannot be decoded now .*start again"):
        open_workspace(tmp_path, encoder=encoder)
    assert everything(tmp_path) == before


def test_an_unchanged_workspace_is_opened_on_a_full_disk(copy, encoder, monkeypatch):
    def no_room(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    opened = open_workspace(copy, encoder=encoder)
    opened.folder.close()
    assert len(opened.document.contents.photos) == 9


def test_a_file_is_no_workspace(tmp_path, encoder):
    (tmp_path / "notes.txt").write_text("kept")
    with pytest.raises(DataError, match="is a file: give --workspace a folder"):
        open_workspace(tmp_path / "notes.txt", encoder=encoder)
    assert (tmp_path / "notes.txt").read_text() == "kept"
