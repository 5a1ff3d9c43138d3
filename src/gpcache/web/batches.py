"""Batches on disk: answers line by line as they come, so that a batch can go on after a stop."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpcache.errors import DataError
from gpcache.support.extras import require
from gpcache.support.files import explained_writes, write_atomic

COLUMNS = ("image", "label", "probability", "uncertainty", "familiarity", "rejected", "error")
MOST_BATCHES = 20
_ID = re.compile(r"[0-9a-f]{32}")

Format = Literal["csv", "parquet"]


class MissingBatchError(DataError):
    """There is no such batch; the client gets a 404."""


@dataclass(frozen=True)
class Line:
    """An answer: the hash of the image and the revision of the model, and the row of the table."""

    hash: str
    revision: int
    row: dict[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """What makes it a row of its own: folders hold files of one name, and of one content."""
        return self.row["image"], self.hash


class Batches:
    """The batches of a workspace; used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, form: Format) -> str:
        """A batch without an answer; the oldest beyond a few are deleted."""
        if form == "parquet":
            require("pyarrow", "parquet", purpose="Writing parquet")
        key = secrets.token_hex(16)
        header = json.dumps({"format": form}).encode() + b"\n"
        write_atomic(self._folder / f"{key}.jsonl", header, private=True)
        files = sorted(self._folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MOST_BATCHES]:
            file.unlink(missing_ok=True)
        return key

    def read(self, key: str) -> tuple[Format, list[Line]]:
        """The format and the answers so far; a line that a kill cut off does not count."""
        lines = self._file(key).read_bytes().split(b"\n")
        form: Format = json.loads(lines[0])["format"]
        # Whatever stands after the last line break was never acknowledged.
        return form, [Line(**json.loads(line)) for line in lines[1:-1] if line]

    def append(self, key: str, lines: Sequence[Line]) -> None:
        """Write answers down so that they stay."""
        file = self._file(key)
        text = "".join(json.dumps(line.__dict__) + "\n" for line in lines)
        with explained_writes(file), file.open("r+b") as stream:
            stream.seek(_whole(stream.read()))
            stream.truncate()
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())

    def result(self, key: str) -> tuple[Format, bytes]:
        """The table."""
        form, lines = self.read(key)
        rows = latest(lines)
        return form, _csv(rows) if form == "csv" else _parquet(rows)

    def _file(self, key: str) -> Path:
        file = self._folder / f"{key}.jsonl"
        if not _ID.fullmatch(key) or not file.exists():
            raise MissingBatchError("There is no such batch: begin one with POST /v1/batch.")
        return file


def latest(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The rows of the table: of an image that came twice, its last answer."""
    return list({line.key: line.row for line in lines}.values())


def _whole(content: bytes) -> int:
    """Where the last whole line ends."""
    return content.rfind(b"\n") + 1


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in COLUMNS])
    return stream.getvalue().encode()


def _cell(value: Any) -> Any:
    """A spreadsheet would run a text that begins like a formula."""
    risky = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{value}" if risky else value


def _parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    arrow = require("pyarrow", "parquet", purpose="Writing parquet")
    parquet = require("pyarrow.parquet", "parquet", purpose="Writing parquet")
    texts = dict.fromkeys(("image", "label", "error"), arrow.string())
    kinds = texts | {"rejected": arrow.bool_()}
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in COLUMNS])
    sink = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(list(rows), schema), sink)
    return sink.getvalue()
