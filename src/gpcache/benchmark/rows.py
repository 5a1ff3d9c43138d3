"""The file of rows: one JSON line per cell and test set, written at once, found by its key."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from gpcache.errors import DataError
from gpcache.support.files import explained_writes, make_folder, sha256

DONE, NOT_POSSIBLE, FAILED = "done", "not possible", "failed"
Row = dict[str, Any]

# The fields that identify a cell of a table.
_CELL = ("protocol", "encoder", "dataset", "test", "shots", "seed", "label")


def key_of(identity: Mapping[str, Any]) -> str:
    """The key of a row: a hash of everything that determines it."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return sha256(text.encode())


def packed(correct: NDArray[np.bool_]) -> str:
    """Which test rows (n,) were predicted correctly, as text."""
    return np.packbits(correct).tobytes().hex()


def correct_rows(row: Row) -> NDArray[np.bool_]:
    """Which test rows (n,) of a cell were predicted correctly."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(row["correct"]), dtype=np.uint8))
    return bits[: row["n_test"]].astype(bool)


def reason(row: Row) -> str:
    """What did not run and why: a method on a data set, or a data set that did not open."""
    if not row["label"]:
        return f"The data set {row['dataset']} was not opened: {row['why']}"
    return f"{row['label']} on {row['dataset']}: {row['why']}"


class RowFile:
    """The rows of one experiment in an append-only file; the last row of a cell counts."""

    def __init__(self, folder: str | Path, name: str) -> None:
        self.folder = Path(folder)
        self.path = self.folder / f"{name}.jsonl"
        self.notices: list[str] = []
        self._done: dict[str, Row] = {}
        self._latest: dict[tuple[Any, ...], Row] = {}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the file for this run; drop the torn last line of a killed one."""
        make_folder(self.folder)
        try:
            lock = FileLock(self.folder / f".{self.path.name}.lock", timeout=0).acquire()
        except Timeout:
            raise DataError(
                f"Another run is writing {str(self.path)!r}: wait for it, or give another folder."
            ) from None
        with lock:
            self._drop_torn_line()
            self._done = done_rows(self.folder)
            for row in read_rows(self.path):
                self._remember(row)
            yield

    def known(self, key: str) -> Row | None:
        """The row of this key, if this or another experiment in the folder has done it."""
        return self._done.get(key)

    def append(self, row: Row) -> None:
        """Write a row to the disk, unless the last row of its cell says the same."""
        before = self._latest.get(_cell(row))
        if before is not None and _outcome(before) == _outcome(row):
            return
        line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        with explained_writes(self.path), self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        self._remember(row)

    def _remember(self, row: Row) -> None:
        self._latest[_cell(row)] = row
        if row["status"] == DONE:
            self._done[row["key"]] = row

    def _drop_torn_line(self) -> None:
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with explained_writes(self.path), self.path.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())
            self.notices.append(f"The last line of {self.path} was torn; its cell runs again.")


def _cell(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _CELL)


def _outcome(row: Row) -> tuple[Any, ...]:
    return row["key"], row["status"], row.get("why")


def read_rows(path: Path) -> list[Row]:
    """The whole lines of a file of rows, in order; a torn last line is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not {"key", "status", *_CELL} <= set(row):
            raise DataError(
                f"Line {number} of {str(path)!r} is not a row of results: remove this line; its "
                "cell runs again."
            )
        rows.append(row)
    return rows


def done_rows(folder: str | Path) -> dict[str, Row]:
    """The rows that any experiment in the folder has done, by key."""
    rows = (row for path in sorted(Path(folder).glob("*.jsonl")) for row in read_rows(path))
    return {row["key"]: row for row in rows if row["status"] == DONE}


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each cell; cells in the order of their first rows."""
    return list({_cell(row): row for row in rows}.values())
