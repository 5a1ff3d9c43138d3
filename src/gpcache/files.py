"""Files that are whole or not there: atomic writes, checksums, and JSON that is what it says."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from gpcache.errors import DataError, DiskFullError

_BLOCK = 2**20


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write `data` to `path`: a crash leaves the old file or the new one, nothing between."""
    with replacing(path) as place:
        place.write_bytes(data)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary sibling to write to; if all goes well it reaches the disk and takes the name."""
    target = Path(path)
    with explained_writes(target):
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:80]}.", dir=target.parent)
        os.close(descriptor)
        place = Path(name)
        try:
            yield place
            with place.open("rb") as file:
                os.fsync(file.fileno())
            # mkstemp makes private files; the user's own setting is what was asked for.
            place.chmod(0o666 & ~umask())
            os.replace(place, target)
        finally:
            place.unlink(missing_ok=True)
        sync_folder(target.parent)


def make_folder(path: str | Path) -> Path:
    """Make a folder and its parents, or say in one sentence why that cannot be."""
    folder = Path(path)
    with explained_writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def read_json(file: Path, what: str, *, limit: int) -> Any:
    """The content of a JSON file of at most `limit` bytes; `what` it is opens the errors.

    A key given twice in one object is an error: JSON would keep the last and say nothing.
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
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def explained_writes(target: Path) -> Iterator[None]:
    """Turn what the system says about a failed write into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"The disk is full: {str(target)!r} was not written, and what was there before "
                "is untouched."
            ) from None
        raise DataError(f"{str(target)!r} cannot be written: {error.strerror}.") from None


def umask() -> int:
    """The permissions that the user's files do not get."""
    # There is no way to read it but to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where folders can be synced (not on Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
