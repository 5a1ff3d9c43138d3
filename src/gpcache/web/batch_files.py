"""Batches on disk: answers are written line by line, so a batch can continue after a stop."""

from __future__ import annotations

import io
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from gpcache.errors import DataError
from gpcache.model.answer_tables import COLUMNS, require_parquet, write_csv, write_parquet
from gpcache.support.files import explained_writes, write_atomic
from gpcache.support.seals import UNSEALED, is_sealed, seal
from gpcache.web.stored_files import read_stored

MAX_BATCHES = 20
_ID = re.compile(r"[0-9a-f]{32}")

TableFormat = Literal["csv", "parquet"]


class MissingBatchError(DataError):
    """There is no such batch."""

    status = 404


class BatchLine(BaseModel):
    """An answer: the hash of the image, the revision of the model, and the row of the table."""

    sha256: str = UNSEALED
    hash: str
    revision: int
    row: dict[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """The identity of a row: files of several folders may have equal names or contents."""
        return self.row["image"], self.hash


class BatchFiles:
    """The batches of a workspace; used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, table: TableFormat) -> str:
        """Start a batch; only the latest few batches are kept."""
        if table == "parquet":
            require_parquet()
        key = secrets.token_hex(16)
        write_atomic(self._folder / f"{key}.{table}.jsonl", b"", private=True)
        files = sorted(self._folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MAX_BATCHES]:
            file.unlink(missing_ok=True)
        return key

    def read(self, key: str) -> tuple[TableFormat, list[BatchLine]]:
        """The format and the answers so far, without damaged or incomplete ones."""
        file = self._file(key)
        return self._table(file), self._lines(file)[0]

    def append(self, key: str, lines: Sequence[BatchLine]) -> None:
        """Write answers to the disk."""
        file = self._file(key)
        known, damaged = self._lines(file)
        if damaged:
            write_atomic(file, _lines(known), private=True)
        with explained_writes(file), file.open("ab") as stream:
            stream.write(_lines(lines))
            stream.flush()
            os.fsync(stream.fileno())

    def result(self, key: str) -> tuple[TableFormat, bytes]:
        """The table."""
        file = self._file(key)
        table, (lines, damaged) = self._table(file), self._lines(file)
        if damaged:
            raise DataError(
                f"The answers in {file.name!r} are damaged or incomplete ({damaged}): send the "
                "same photos again to complete them."
            )
        rows, columns = latest_rows(lines), [*COLUMNS, "error"]
        if table == "csv":
            text = io.StringIO(newline="")
            write_csv(rows, columns, text)
            return table, text.getvalue().encode()
        stream = io.BytesIO()
        write_parquet(rows, columns, stream)
        return table, stream.getvalue()

    def _file(self, key: str) -> Path:
        files = list(self._folder.glob(f"{key}.*.jsonl")) if _ID.fullmatch(key) else []
        if not files:
            raise MissingBatchError("There is no such batch: start one with POST /v1/batch.")
        return files[0]

    def _table(self, file: Path) -> TableFormat:
        return "parquet" if file.name.endswith(".parquet.jsonl") else "csv"

    def _lines(self, file: Path) -> tuple[list[BatchLine], int]:
        """The complete lines, and the number of others."""
        lines = [line for line in read_stored(file).split(b"\n") if line]
        whole = [line for line in lines if is_sealed(line)]
        return [BatchLine.model_validate_json(line) for line in whole], len(lines) - len(whole)


def latest_rows(lines: Sequence[BatchLine]) -> list[dict[str, Any]]:
    """The rows of the table, with the last answer of each image."""
    return list({line.key: line.row for line in lines}.values())


def _lines(lines: Iterable[BatchLine]) -> bytes:
    fresh = (line.model_copy(update={"sha256": UNSEALED}) for line in lines)
    return b"".join(seal(line.model_dump_json().encode()) + b"\n" for line in fresh)
