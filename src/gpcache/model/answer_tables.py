"""Tables of answers: CSV that no spreadsheet runs as formulas, and parquet."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gpcache.support.extras import require

COLUMNS = ("image", "label", "probability", "uncertainty", "familiarity", "rejected", "nearest")
# Rows of a parquet table that are in memory at once.
ROWS = 4096

Row = Mapping[str, Any]


def write_csv(rows: Iterable[Row], columns: Sequence[str], stream: IO[str]) -> None:
    """Write the columns of rows; a value that a row does not have is empty."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(_cell(row.get(name)) for name in columns)


def _cell(value: Any) -> Any:
    """A value that no spreadsheet runs as a formula."""
    risky = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{value}" if risky else value


def require_parquet() -> None:
    """Say in a sentence if parquet cannot be written."""
    require("pyarrow.parquet", "parquet", purpose="Writing parquet")


def write_parquet(rows: Iterable[Row], columns: Sequence[str], target: Path | IO[bytes]) -> None:
    """Write the columns of rows; a value that a row does not have is null."""
    arrow = require("pyarrow", "parquet", purpose="Writing parquet")
    parquet = require("pyarrow.parquet", "parquet", purpose="Writing parquet")
    text, number = arrow.string(), arrow.float64()
    reason = arrow.struct([("name", text), ("label", text), ("weight", number)])
    kinds = dict.fromkeys(("image", "label", "nearest", "error"), text)
    kinds |= {"rejected": arrow.bool_(), "plausible": arrow.list_(text)}
    kinds |= {"why": arrow.list_(reason)}
    # label_2 is of the kind of label.
    schema = arrow.schema([(name, kinds.get(name.split("_")[0], number)) for name in columns])
    remaining = iter(rows)
    with parquet.ParquetWriter(target, schema) as writer:
        # itertools.batched comes with Python 3.12.
        while batch := list(itertools.islice(remaining, ROWS)):
            writer.write_table(arrow.Table.from_pylist(batch, schema))
