"""Locks on folders: one process at a time, a notice to whoever waits, no trace left."""

import os
import subprocess
import sys
import time
import warnings

import pytest
from filelock import FileLock

from gpcache.support.locks import locked_file, locked_folder

HOLD = """
import sys, time
from gpcache.support.locks import locked_folder
with locked_folder(sys.argv[1]):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(folder, seconds):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder, str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "pets.gpc"
    place.mkdir()
    return place


def test_whoever_comes_second_waits_and_is_told(folder):
    with holder(folder, 3) as process:
        start = time.monotonic()
        with (
            pytest.warns(RuntimeWarning, match="Waiting for another process .* 'pets.gpc'"),
            locked_folder(folder),
        ):
            assert time.monotonic() - start > 1
        assert process.wait() == 0


def test_a_killed_process_holds_nothing(folder):
    with holder(folder, 600) as process:
        process.kill()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with locked_folder(folder):
            pass


def test_the_folder_that_has_the_name_now_is_locked(folder, tmp_path):
    """A model is replaced while another process waits for the old one."""
    with holder(folder, 2):
        folder.rename(tmp_path / "old")
        folder.mkdir()
        with holder(folder, 2) as second:
            start = time.monotonic()
            with pytest.warns(RuntimeWarning), locked_folder(folder):
                assert time.monotonic() - start > 1
            assert second.wait() == 0


def test_a_lock_within_a_lock_does_not_wait(folder):
    with locked_folder(folder), locked_folder(folder):
        pass


def test_nothing_is_left_and_nothing_is_made(folder, tmp_path):
    with locked_folder(folder), locked_folder(tmp_path / "absent"):
        pass
    assert os.listdir(tmp_path) == ["pets.gpc"]
    assert os.listdir(folder) == []


def test_a_lock_file_that_is_held_is_waited_for_with_a_notice(tmp_path):
    lock = FileLock(tmp_path / ".lock", thread_local=False)
    code = (
        "import sys, time; from filelock import FileLock\n"
        "with FileLock(sys.argv[1]): print('held', flush=True); time.sleep(2.5)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / ".lock"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        with (
            pytest.warns(RuntimeWarning, match="is changing 'photos.store'"),
            locked_file(lock, tmp_path / "photos.store"),
        ):
            assert lock.is_locked
