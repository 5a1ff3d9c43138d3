"""Atomic writes, checksums, and strict JSON."""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from gpcache.errors import DataError, DiskFullError
from gpcache.support.temporary import copy_access, remove_stale, temporary_sibling


def output_place(path: str | Path) -> Path:
    """The path that an output replaces: the rule for links, devices, pipes and sockets.

    A link is followed, so that its target is replaced and the link stays. Only a regular file or a
    folder may be replaced: anything else is an error.
    """
    place, mode = Path(path), stat.S_IFREG
    with explained_writes(place), suppress(FileNotFoundError):  # new, or what a link will point to
        mode = place.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(
            f"{str(path)!r} is a device, a pipe or a socket and cannot be replaced: give the name "
            "of a file or folder."
        )
    return Path(os.path.realpath(place))


def write_atomic(
    path: str | Path, data: bytes, *, private: bool = False, sweep: bool = True
) -> None:
    """Write `data` to `path`: a crash leaves the old file or the new one, nothing between.

    `private` and `sweep` are those of `replacing`.
    """
    with replacing(path, private=private, sweep=sweep) as place:
        place.write_bytes(data)


@contextmanager
def replacing(path: str | Path, *, private: bool = False, sweep: bool = True) -> Iterator[Path]:
    """Yield a temporary sibling to write to; without an error it is synced and takes the name.

    A file that replaces another keeps its owner, mode and access list. A new file follows the
    user's umask; with `private` only its owner can read it. `sweep` removes temporary files that
    killed writers of this path left.
    """
    target = output_place(path)
    with explained_writes(target):
        if sweep:
            remove_stale(target.parent, target.name)
        hidden = private or target.exists()
        with temporary_sibling(target, 0o600 if hidden else 0o666) as place:
            yield place
            with place.open("rb") as file:
                os.fsync(file.fileno())
            if target.exists():
                copy_access(target, place)
            os.replace(place, target)
        sync_folder(target.parent)


def make_folder(path: str | Path, *, private: bool = False) -> Path:
    """Make a folder and its parents, or say in one sentence why that is not possible.

    With `private` only its owner can read a new folder; its parents follow the user's umask.
    """
    folder = Path(path)
    output_place(folder)
    with explained_writes(folder):
        folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    return folder


def user_cache() -> Path:
    """The folder for what can be computed again: GPCACHE_CACHE, or gpcache in the user's cache."""
    configured = os.environ.get("GPCACHE_CACHE")
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpcache"


def read_json(file: Path, what: str, *, limit: int) -> Any:
    """The content of a JSON file of at most `limit` bytes; errors start with `what` it is.

    A repeated key in one object is an error: Python's parser would keep the last one.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key, value in pairs:
            if key in content:
                raise DataError(f"The {what} {file} holds {shown(key)} more than once.")
            content[key] = value
        return content

    try:
        with file.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise DataError(f"The {what} {file} cannot be read: {error.strerror}.") from None
    if len(data) > limit:
        raise DataError(f"The {what} {file} is larger than {limit // 10**6} MB.")
    try:
        return json.loads(data, object_pairs_hook=unique)
    except DataError:
        raise
    except (ValueError, RecursionError):
        raise DataError(f"The {what} {file} is not JSON.") from None


def sha256(data: bytes) -> str:
    """The checksum of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """The checksum of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def explained_writes(target: Path) -> Iterator[None]:
    """Turn the system's error of a failed write into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"The disk is full: {str(target)!r} was not written, and the file before it is "
                "untouched."
            ) from None
        raise DataError(
            f"{str(target)!r} cannot be written ({error.strerror}): {remedy_of(error)}."
        ) from None


def remedy_of(error: OSError) -> str:
    """What to do about an error of the file system, in the imperative."""
    return _REMEDIES.get(error.errno or 0, "check the disk")


_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.EFBIG: "choose another disk, or raise the limit of file sizes (ulimit -f)",
    errno.EACCES: "give this user access to it",
    errno.EPERM: "give this user access to it",
    errno.EEXIST: "a file has this name, so choose another one",
    errno.ENOTDIR: "a part of the path is a file, so choose another path",
    errno.EISDIR: "it is a folder, so give the name of a file",
    errno.ELOOP: "its links lead in a circle, so choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EROFS: "the disk is read-only, so choose another path",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files (ulimit -n)",
}


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where folders can be synced (not on Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
