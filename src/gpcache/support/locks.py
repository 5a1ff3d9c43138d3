"""Locks on folders that several processes may change, with a notice for a process that waits.

The folder itself is locked, so no lock file is left behind. If it is replaced by another one while
a process waits, the new one is locked.
"""

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    with ExitStack() as held:
        while True:
            descriptor = os.open(place, os.O_RDONLY)
            held.callback(os.close, descriptor)
            _wait(descriptor, place)
            if os.path.samestat(os.fstat(descriptor), os.stat(place)):
                break
            held.close()  # another folder has its name now: lock that one
        places.add(place)
        held.callback(places.discard, place)
        yield


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
        held = lock.acquire(timeout=PATIENCE)
    except Timeout:
        warn_of_waiting(place)
        held = lock.acquire()
    with held:
        yield


def warn_of_waiting(place: Path) -> None:
    """Tell the user that another process is changing this folder."""
    warnings.warn(
        f"Waiting for another process that is changing {place.name!r}.",
        RuntimeWarning,
        stacklevel=4,
    )
