"""Locks on folders that several processes may change, with a notice for a process that waits.

The folder itself is locked, so no lock file is left behind. If it is replaced by another one while
a process waits, the new one is locked.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import local

from filelock import FileLock, Timeout

try:
    import fcntl
except ImportError:  # Windows has no lock on folders: the last writer wins there
    fcntl = None  # type: ignore[assignment]

# Seconds after which a waiting process prints a notice.
PATIENCE = 1.0
_POLL = 0.05

_held = local()


@contextmanager
def locked_folder(folder: str | Path) -> Iterator[None]:
    """Keep other processes from changing a folder; a folder that does not exist is not locked."""
    place = Path(folder).resolve()
    places: set[Path] = _held.__dict__.setdefault("places", set())
    if fcntl is None or place in places or not place.is_dir():
        yield
        return
    descriptor = _locked(place)
    places.add(place)
    try:
        yield
    finally:
        places.discard(place)
        os.close(descriptor)


def _locked(place: Path) -> int:
    """A descriptor that holds the lock of the folder with this name."""
    while True:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            _wait(descriptor, place)
            if os.path.samestat(os.fstat(descriptor), os.stat(place)):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _wait(descriptor: int, place: Path) -> None:
    start = time.monotonic()
    while time.monotonic() - start < PATIENCE:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_POLL)
    warn_of_waiting(place)
    fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextmanager
def locked_file(lock: FileLock, place: Path) -> Iterator[None]:
    """Hold a lock file; print a notice if it takes longer than a second to get it."""
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        warn_of_waiting(place)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def warn_of_waiting(place: Path) -> None:
    """Tell the user that another process is changing this folder."""
    warnings.warn(
        f"Waiting for another process that is changing {place.name!r}.",
        RuntimeWarning,
        stacklevel=4,
    )
