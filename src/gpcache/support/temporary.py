"""Temporary files and folders next to an output: locked while in use, removed if abandoned.

A writer that is killed leaves its temporary file behind, but the system drops its lock. The next
writer of the same path removes files that are not locked. A process id in the name would not be
enough: another container or machine that shares the folder has its own process ids.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked and nothing is removed
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".gpcache-tmp"
# The name of a file may have 255 bytes.
_NAME_BYTES = 80
_ACCESS_LISTS = ("system.posix_acl_access", "system.posix_acl_default")


@contextmanager
def temporary_sibling(target: Path, mode: int, *, folder: bool = False) -> Iterator[Path]:
    """A new hidden file, or folder, beside `target`; removed at the end unless it was renamed.

    The user's umask applies to `mode`.
    """
    place = target.with_name(f"{_prefix(target.name)}{secrets.token_hex(16)}{SUFFIX}")
    lock = None
    try:  # from before it is made: an interrupt may come at any moment
        if folder:
            place.mkdir(mode)
        else:
            place.touch(mode, exist_ok=False)
        lock = _lock(place, wait=True)
        if place.exists():
            yield place
            return
    finally:
        remove(place)
        if lock is not None:
            os.close(lock)
    # Another process has removed it as stale before it was locked: try again.
    with temporary_sibling(target, mode, folder=folder) as another:
        yield another


def remove_stale(folder: Path, name: str | None = None, *, suffix: str = SUFFIX) -> None:
    """Remove the temporaries in `folder` that no process holds: of one target, or of all."""
    prefix = "." if name is None else _prefix(name)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            ours = entry.name.startswith(prefix) and entry.name.endswith(suffix)
            if not ours or entry.is_symlink():
                continue
            place = Path(entry.path)
            lock = _lock(place, wait=False)
            if lock is not None:
                remove(place)
                os.close(lock)


def remove(place: Path) -> None:
    """Remove a file or a whole folder, if it exists."""
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def copy_access(source: Path, target: Path) -> None:
    """Give `target` the owner, mode and access list of `source`, as far as this user may."""
    known = source.stat()
    mode = stat.S_IMODE(known.st_mode)
    if not (_chown(target, known.st_uid, known.st_gid) or _chown(target, -1, known.st_gid)):
        # The group has changed: it gets no more access than everybody.
        mode &= ~0o070 | (mode & 0o007) << 3
    if hasattr(os, "setxattr"):
        _copy_attributes(source, target)
    if stat.S_IMODE(target.stat().st_mode) != mode:
        target.chmod(mode)


def _chown(target: Path, user: int, group: int) -> bool:
    if not hasattr(os, "chown"):
        return True
    try:
        os.chown(target, user, group)
    except OSError:
        return False
    return True


def _copy_attributes(source: Path, target: Path) -> None:
    with suppress(OSError):  # a file system without them
        wanted = os.listxattr(source)
        # A folder may give its new files an access list that the replaced file does not have.
        for name in set(os.listxattr(target)) & set(_ACCESS_LISTS) - set(wanted):
            os.removexattr(target, name)
        for name in wanted:
            with suppress(OSError):  # those that only the system may set
                os.setxattr(target, name, os.getxattr(source, name))


def _prefix(name: str) -> str:
    return f".{os.fsdecode(os.fsencode(name)[:_NAME_BYTES])}."


def _lock(place: Path, *, wait: bool) -> int | None:
    """A descriptor that holds the lock of a file or folder; None if it cannot be locked."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
