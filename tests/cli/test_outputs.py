"""`-o`: an update keeps who may read its file, and a pipe or a device is never replaced."""

import os
import stat

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
REFUSED = "is a device, a pipe or a socket and cannot be replaced"


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


def test_a_model_keeps_its_permissions_through_an_update(run, own_model):
    own_model.chmod(0o750)
    for path in own_model.iterdir():
        path.chmod(0o640)
    before = modes(own_model)
    code, _, err = run("relabel", own_model, "circle/0.png", "square")
    assert code == 0, err
    assert modes(own_model) == before


def test_a_table_keeps_its_permissions(run, model, unseen, tmp_path):
    table = tmp_path / "answers.csv"
    table.write_bytes(b"old")
    table.chmod(0o600)
    run("predict", model, unseen, "--format", "csv", "-o", table)
    assert table.read_bytes().startswith(b"image,")
    assert stat.S_IMODE(table.stat().st_mode) == 0o600


def test_no_command_replaces_a_pipe(mistake, model, shapes, unseen, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    commands = [
        ("predict", model, unseen, "--format", "csv", "-o", pipe),
        ("predict", model, unseen, "--format", "parquet", "-o", pipe),
        ("export", model, "-o", pipe),
        ("fit", shapes, "-o", pipe),
        ("extract", shapes, "-o", pipe),
        ("evaluate", model, unseen, "--report", pipe),
        ("evaluate", model, unseen, "--plots", pipe),
    ]
    for command in commands:
        assert REFUSED in mistake(*command), command
        assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
