"""Outputs: who may read them, what they never replace, and what killed writers left behind."""

import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from gpcache.errors import DataError
from gpcache.support.array_folders import save_folder
from gpcache.support.files import make_folder, output_place, replacing, write_atomic
from gpcache.support.temporary import SUFFIX

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may change an owner"
)
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
STRANGER = 54321


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# Who may read it.


@pytest.mark.parametrize("wanted", [0o600, 0o640, 0o664, 0o400])
def test_a_replaced_file_keeps_its_mode(wanted, tmp_path):
    path = tmp_path / "answers.csv"
    path.write_bytes(b"old")
    path.chmod(wanted)
    write_atomic(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", wanted)


def test_a_private_file_and_folder_are_for_their_owner_alone(tmp_path):
    write_atomic(tmp_path / "file", b"", private=True)
    make_folder(tmp_path / "some" / "folder", private=True)
    assert mode(tmp_path / "file") == 0o600
    assert mode(tmp_path / "some" / "folder") == 0o700


def test_nothing_is_readable_before_it_takes_its_name(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"", private=True)
    with replacing(path) as place:
        assert mode(place) == 0o600


def test_a_new_file_follows_the_umask_of_the_moment_and_does_not_set_it(tmp_path, monkeypatch):
    before = os.umask(0o027)
    try:
        # Another thread would write its files under whatever is set here for a moment.
        monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask was set"))
        write_atomic(tmp_path / "file", b"")
        make_folder(tmp_path / "folder")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert mode(tmp_path / "file") == 0o640
    assert mode(tmp_path / "folder") == 0o750


@as_root
def test_a_replaced_file_keeps_its_owner(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    os.chown(path, STRANGER, STRANGER + 1)
    path.chmod(0o640)
    write_atomic(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (STRANGER, STRANGER + 1, 0o640)


@as_root
def test_a_group_that_cannot_be_kept_hands_its_rights_to_no_other(tmp_path):
    """Root's file in a folder of somebody who may not give files to root's group."""
    folder = tmp_path / "shared"
    folder.mkdir()
    os.chown(folder, STRANGER, STRANGER)
    (folder / "file").write_bytes(b"old")
    (folder / "file").chmod(0o664)
    program = f"""
import os
from gpcache.support.files import write_atomic
os.chdir({str(folder)!r})
os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})
write_atomic("file", b"new")
"""
    for parent in (tmp_path, *tmp_path.parents):  # pytest's own folders
        if Path(tempfile.gettempdir()) in parent.parents:
            parent.chmod(mode(parent) | 0o011)
    subprocess.run([sys.executable, "-c", program], check=True)
    found = (folder / "file").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (STRANGER, 0o644)


def access_list(*entries):
    """A POSIX access list as the kernel keeps it: (tag, permissions, id) each."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NOBODY = 2**32 - 1
# Owner rw, one further user r, group -, mask r, others -.
SHARED = access_list(
    (1, 6, NOBODY), (2, 4, STRANGER), (4, 0, NOBODY), (16, 4, NOBODY), (32, 0, NOBODY)
)


def set_attribute(path, name, value):
    try:
        os.setxattr(path, name, value)
    except (OSError, AttributeError) as error:
        pytest.skip(f"no such attributes here: {error}")


def test_a_replaced_file_keeps_its_access_list_and_attributes(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    set_attribute(path, ACCESS, SHARED)
    set_attribute(path, "user.note", b"mine")
    write_atomic(path, b"new")
    assert os.getxattr(path, ACCESS) == SHARED
    assert os.getxattr(path, "user.note") == b"mine"


def test_a_replaced_file_gets_no_access_list_from_its_folder(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    set_attribute(tmp_path, DEFAULT, SHARED)
    write_atomic(path, b"new")
    assert ACCESS not in os.listxattr(path)
    assert mode(path) == 0o640


# What is never replaced.


def special(kind, path):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)  # the path of a socket must be short
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # as /dev/null
        except OSError as error:
            pytest.skip(f"no device can be made here: {error.strerror}")
    return path


def write_model(path):
    save_folder(path, {}, {}, "")


WRITERS = {"file": lambda path: write_atomic(path, b"new"), "folder": make_folder}
WRITERS |= {"model": write_model, "early check": output_place}


@pytest.mark.parametrize("through_a_link", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_a_device_a_pipe_and_a_socket_are_left_alone(
    kind, writer, through_a_link, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    place = special(kind, tmp_path / "special")
    before, path = place.lstat(), place
    if through_a_link:
        path = tmp_path / "link"
        path.symlink_to(place)
    with pytest.raises(DataError, match=r"is a device, a pipe or a socket and cannot .*\.$"):
        WRITERS[writer](path)
    after = place.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert names(tmp_path) == sorted({"special", path.name})


def test_a_link_to_a_file_is_followed_and_stays(tmp_path):
    (tmp_path / "far").mkdir()
    path = tmp_path / "far" / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    (tmp_path / "link").symlink_to("far/file")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (path.read_bytes(), mode(path)) == (b"new", 0o600)


def test_a_link_to_nothing_makes_its_target(tmp_path):
    (tmp_path / "link").symlink_to("file")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("writer", WRITERS)
def test_links_in_a_circle_are_one_sentence(writer, tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(DataError, match=r"one' cannot be written \([^\n]*\): [^\n]*\.$"):
        WRITERS[writer](tmp_path / "one")
    assert names(tmp_path) == ["one", "two"]


# What killed writers left.

WRITER = """
import sys, time
from pathlib import Path
from gpcache.support.files import replacing

with replacing(sys.argv[1]) as place:
    place.write_text("from another process")
    print(place.name, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def writer():
    """Starts another process that is in the middle of writing a file."""
    started = []

    def start(path):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_what_a_killed_writer_left_is_removed_by_the_next_one(writer, tmp_path):
    process, left = writer(tmp_path / "answers.csv")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert names(tmp_path) == [left]
    write_atomic(tmp_path / "answers.csv", b"mine")
    assert names(tmp_path) == ["answers.csv"]


def test_what_a_living_writer_holds_stays(writer, tmp_path):
    path = tmp_path / "answers.csv"
    process, held = writer(path)
    write_atomic(path, b"mine")
    assert names(tmp_path) == [held, "answers.csv"]
    process.communicate("go on\n", timeout=300)
    assert process.returncode == 0
    assert path.read_text() == "from another process"
    assert names(tmp_path) == ["answers.csv"]


def test_files_of_the_users_that_look_alike_stay(tmp_path):
    other = [".answers.csv.original", ".answers.csv.swp", f".other.csv.0123abcd{SUFFIX}"]
    for name in other:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / f".answers.csv.link{SUFFIX}").symlink_to(tmp_path)
    write_atomic(tmp_path / "answers.csv", b"")
    assert names(tmp_path) == sorted([*other, f".answers.csv.link{SUFFIX}", "answers.csv"])


def test_many_writers_of_one_path_do_not_remove_each_others_files(tmp_path):
    path, failures = tmp_path / "file", []

    def write(number):
        for _ in range(30):
            try:
                write_atomic(path, bytes([number]) * 1000)
            except DataError as error:
                failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(set(path.read_bytes())) == 1
    assert names(tmp_path) == ["file"]


def test_the_longest_names_can_be_written(tmp_path):
    for name in ("x" * 255, "🐈" * 63):
        write_atomic(tmp_path / name, b"")
        write_atomic(tmp_path / name, b"")
    assert len(names(tmp_path)) == 2
