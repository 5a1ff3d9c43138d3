"""Reads files of a workspace: one that exists but cannot be read is an error, and no damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpcache.errors import GPCacheError
from gpcache.support.files import remedy_of

# What the system says of a file that does not exist.
MISSING = (FileNotFoundError, NotADirectoryError)


class UnreadableError(GPCacheError):
    """A file or folder of the workspace exists but cannot be read: it may be intact."""

    status = 503

    def __init__(self, place: Path, error: OSError) -> None:
        super().__init__(
            f"{str(place)!r} cannot be read ({error.strerror}): {remedy_of(error)}, then try again."
        )


@contextmanager
def explained_reads(place: Path) -> Iterator[None]:
    """Turn the system's error of a failed read into an UnreadableError; `MISSING` ones stay."""
    try:
        yield
    except MISSING:
        raise
    except OSError as error:
        raise UnreadableError(place, error) from None


def read_stored(file: Path) -> bytes:
    """The bytes of a file."""
    with explained_reads(file):
        return file.read_bytes()


def read_if_stored(file: Path) -> bytes | None:
    """The bytes of a file; None if it does not exist."""
    try:
        return read_stored(file)
    except MISSING:
        return None


def check_folder(folder: Path) -> None:
    """Refuse a folder whose files cannot be listed and opened."""
    with explained_reads(folder):
        os.listdir(f"{folder}/.")  # "." is found only by those who may open its files
