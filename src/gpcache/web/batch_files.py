"""Batches on disk: answers line by line as they come, so that a batch can go on after a stop."""

from __future__ import annotations

import csv
import io
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from gpcache.errors import DataError
from gpcache.support.extras import require
from gpcache.support.files import explained_writes, write_atomic

COLUMNS = (
    "image", "label", "probability", "uncertainty", "familiarity", "rejected", "nearest", "error"
)  # fmt: skip
MAX_BATCHES = 20
_ID = re.compile(r"[0-9a-f]{32}")

TableFormat = Literal["csv", "parquet"]


class MissingBatchError(DataError):
    """There is no such batch; the client gets a 404."""


class BatchHeader(BaseModel):
    """The first line of a batch."""

    format: TableFormat


class BatchLine(BaseModel):
    """An answer: the hash of the image, the revision of the model, and the row of the table."""

    hash: str
    revision: int
    row: dict[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """What makes it a row of its own: folders hold files of one name, and of one content."""
        return self.row["image"], self.hash


class BatchFiles:
    """The batches of a workspace; used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, table: TableFormat) -> str:
        """A batch without an answer; the oldest beyond a few are deleted."""
        if table == "parquet":
            require("pyarrow", "parquet", purpose="Writing parquet")
        key = secrets.token_hex(16)
        write_atomic(
            self._folder / f"{key}.jsonl", _lines([BatchHeader(format=table)]), private=True
        )
        files = sorted(self._folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MAX_BATCHES]:
            file.unlink(missing_ok=True)
        return key

    def read(self, key: str) -> tuple[TableFormat, list[BatchLine]]:
        """The format and the answers so far; a line that a kill cut off does not count."""
        file = self._file(key)
        # Whatever stands after the last line break was never acknowledged.
        header, *lines = file.read_bytes().split(b"\n")[:-1] or [b""]
        try:
            table = BatchHeader.model_validate_json(header).format
            return table, [BatchLine.model_validate_json(line) for line in lines if line]
        except ValidationError:
            raise DataError(
                f"{str(file)!r} is damaged: begin another batch with POST /v1/batch."
            ) from None

    def append(self, key: str, lines: Sequence[BatchLine]) -> None:
        """Write answers down so that they stay."""
        file = self._file(key)
        with explained_writes(file), file.open("r+b") as stream:
            stream.seek(stream.read().rfind(b"\n") + 1)
            stream.truncate()
            stream.write(_lines(lines))
            stream.flush()
            os.fsync(stream.fileno())

    def result(self, key: str) -> tuple[TableFormat, bytes]:
        """The table."""
        table, lines = self.read(key)
        rows = latest_rows(lines)
        return table, _csv(rows) if table == "csv" else _parquet(rows)

    def _file(self, key: str) -> Path:
        file = self._folder / f"{key}.jsonl"
        if not _ID.fullmatch(key) or not file.exists():
            raise MissingBatchError("There is no such batch: begin one with POST /v1/batch.")
        return file


def latest_rows(lines: Sequence[BatchLine]) -> list[dict[str, Any]]:
    """The rows of the table: of an image that came twice, its last answer."""
    return list({line.key: line.row for line in lines}.values())


def _lines(models: Iterable[BaseModel]) -> bytes:
    return "".join(f"{model.model_dump_json()}\n" for model in models).encode()


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return stream.getvalue().encode()


def _cell(value: Any) -> Any:
    """A spreadsheet would run a text that begins like a formula."""
    risky = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{value}" if risky else value


def _parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    arrow = require("pyarrow", "parquet", purpose="Writing parquet")
    parquet = require("pyarrow.parquet", "parquet", purpose="Writing parquet")
    texts = dict.fromkeys(("image", "label", "nearest", "error"), arrow.string())
    kinds = texts | {"rejected": arrow.bool_()}
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in COLUMNS])
    sink = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(list(rows), schema), sink)
    return sink.getvalue()
