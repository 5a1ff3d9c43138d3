"""Atomic writes: the old file or the new one, and one sentence when neither can be."""

import os
import subprocess
import sys

import pytest

from gpcache.errors import DataError
from gpcache.support import temporary
from gpcache.support.files import make_folder, sha256, sha256_of_file, write_atomic


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "file.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_permissions_are_those_of_an_ordinary_file(tmp_path):
    write_atomic(tmp_path / "ours", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(
        DataError, match=r"gone/file' cannot be written \(No such file or directory\): check"
    ):
        write_atomic(tmp_path / "gone" / "file", b"")


def test_a_file_in_the_way_of_a_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be written"):
        make_folder(tmp_path / "file" / "inside")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit on the size of a file")
def test_a_full_disk_is_one_sentence_and_the_old_file_stays(tmp_path):
    """A limit on the size of files stands in for a disk that is full."""
    path = tmp_path / "file"
    write_atomic(path, b"old")
    code = f"""
import errno, os, resource, signal
from gpcache.support import files, temporary
from gpcache.errors import DataError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    files.write_atomic({str(path)!r}, bytes(5000))
except DataError as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "cannot be written (File too large): choose another disk" in result.stdout
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_checksums_are_sha256(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 1_000_000)
    assert sha256_of_file(tmp_path / "file") == sha256(b"abc" * 1_000_000)
    assert sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("folder", [False, True])
def test_an_interrupt_right_after_the_temporary_is_made_leaves_nothing(
    folder, tmp_path, monkeypatch
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(temporary, "_lock", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        temporary.temporary_sibling(tmp_path / "answers.csv", 0o600, folder=folder),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
