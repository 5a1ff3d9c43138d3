"""Manifests: CSV, TSV or parquet tables of paths with labels, splits and groups."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpcache.errors import DataError
from gpcache.images.records import (
    HOW_TO_FOLLOW,
    ClassNames,
    Record,
    Refused,
    Source,
    listed,
    plural,
    readable,
)
from gpcache.support.checks import first_line, is_nan
from gpcache.support.extras import require

COLUMNS = ("path", "label", "split", "group")

# A row's number as a user counts it, and its cells by column.
NumberedRow = tuple[int, dict[str, str]]


def from_manifest(path: str | Path, *, follow: bool = False) -> Source:
    """The images that a table names in `path`; `label`, `split` and `group` are optional columns.

    Relative paths start at the table's folder, and only files below it are read unless `follow`
    is true. An empty label means none.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no manifest {str(path)!r}.")
    source = Source(str(path), ())
    rows = _parquet_rows if file.suffix.lower() == ".parquet" else _text_rows
    base = file.resolve().parent
    names = ClassNames(source.notices)
    known: dict[str, tuple[int, Record]] = {}
    repeated = 0
    for number, cells in rows(file, source):
        record = _record(base, cells, names)
        first, same = known.setdefault(record.name, (number, record))
        if same is not record:
            _check_same(file, same, first, record, number)
            repeated += 1
        elif reason := _refusal(base, record, follow):
            source.refused.append(Refused(record.name, f"{reason} (row {number})"))
    refused = {entry.name for entry in source.refused}
    records = [record for name, (_, record) in sorted(known.items()) if name not in refused]
    if not records:
        raise DataError(
            f"No image of the manifest {str(path)!r} can be read: "
            + (f"{source.refused[0].reason}." if source.refused else "it has no rows.")
        )
    if repeated:
        source.notices.append(f"{plural(repeated, 'row')} that repeat another were merged.")
    source.records, source.total = records, len(records)
    source.classes = names.sorted()
    return source


def _record(base: Path, cells: dict[str, str], names: ClassNames) -> Record:
    # Joining keeps an absolute path as it is.
    place = os.path.normpath(base / cells["path"])
    inside = os.path.relpath(place, base) if Path(place).is_relative_to(base) else place
    return Record(
        readable(inside).replace(os.sep, "/") if cells["path"] else "",
        Path(place),
        names.label(cells.get("label"), repr(cells["path"])),
        cells.get("split") or None,
        cells.get("group") or None,
    )


def _refusal(base: Path, record: Record, follow: bool) -> str | None:
    """Why the file of a row cannot be read, or None."""
    if not record.name:
        return "the path is empty"
    place = Path(str(record.content))
    try:
        if not follow and not place.resolve().is_relative_to(base):
            return f"the path leaves the folder of the manifest ({HOW_TO_FOLLOW})"
        if place.is_dir():
            return "it is a folder, not a file"
        return None if place.exists() else "there is no such file"
    except (OSError, ValueError, RuntimeError):  # too long, a null character, a circle of links
        return "the path cannot be read"


def _check_same(file: Path, first: Record, row: int, record: Record, number: int) -> None:
    """Refuse two rows for one path that differ in label, split or group."""
    for column in COLUMNS[1:]:
        before, value = getattr(first, column), getattr(record, column)
        if value != before:
            raise DataError(
                f"{str(file)!r} names {record.name!r} twice with different {column}s: "
                f"{before!r} in row {row} and {value!r} in row {number}."
            )


def _text_rows(file: Path, source: Source) -> Iterator[NumberedRow]:
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.reader(opened, delimiter=delimiter, skipinitialspace=True, strict=True)
            header = _header(next(reader, []), file, source)
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise DataError(
                        f"Row {reader.line_num} of {str(file)!r} has {plural(len(cells), 'cell')}, "
                        f"but the header has {len(header)}."
                    )
                yield reader.line_num, dict(zip(header, cells, strict=True))
    except UnicodeDecodeError:
        raise DataError(f"{str(file)!r} is not UTF-8 text: save it as UTF-8.") from None
    except csv.Error as error:
        raise DataError(f"Row {reader.line_num} of {str(file)!r} is broken: {error}.") from None
    except OSError as error:
        raise DataError(f"{str(file)!r} cannot be read: {error.strerror}.") from None


def _parquet_rows(file: Path, source: Source) -> Iterator[NumberedRow]:
    parquet = require("pyarrow.parquet", "parquet", purpose="Reading a parquet manifest")
    try:
        with parquet.ParquetFile(file) as table:
            names = table.schema_arrow.names
            used = set(_header(names, file, source)) & set(COLUMNS)
            columns = {name: name.strip().lower() for name in names}
            batches = table.iter_batches(columns=[name for name in names if columns[name] in used])
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield number, {columns[name]: _text(row[name], file, number) for name in row}
    except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
        if isinstance(error, DataError):
            raise
        reason = first_line(error).rstrip(".")
        raise DataError(
            f"{str(file)!r} is not a parquet file that can be read: {reason}."
        ) from None


def _text(value: Any, file: Path, number: int) -> str:
    if is_nan(value):
        raise DataError(f"Row {number} of {str(file)!r} holds NaN: leave the cell empty.")
    return "" if value is None else str(value)


def _header(names: list[str], file: Path, source: Source) -> list[str]:
    """The column names in lower case; adds a notice about unused columns."""
    header = [name.strip().lower() for name in names]
    if "path" not in header:
        actual = f"it has {listed(header, 5)}" if header else "it is empty"
        raise DataError(f"{str(file)!r} needs a header with a column 'path': {actual}.")
    for column in COLUMNS:
        if header.count(column) > 1:
            raise DataError(f"{str(file)!r} has the column {column!r} more than once.")
    if unknown := [name for name in header if name not in COLUMNS]:
        source.notices.append(f"{plural(len(unknown), 'column')} not used: {listed(unknown)}.")
    return header
