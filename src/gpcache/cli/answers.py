"""Predictions as a table, JSON lines, CSV or parquet: streamed, and whole or not there."""

import csv
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import typer

from gpcache.cli.options import percent, printable
from gpcache.errors import DataError
from gpcache.extras import require
from gpcache.files import explained_writes
from gpcache.prediction import Prediction

COLUMNS = ("image", "label", "probability", "uncertainty", "familiarity", "rejected")
ROWS = 4096


def write_text(answers: Iterable[Prediction], form: str, output: Path | None, top: int) -> None:
    """Write a table, JSON lines or CSV, line by line."""
    with _stream(output) as stream:
        if form == "jsonl":
            for answer in answers:
                stream.write(json.dumps(answer.as_dict(top), ensure_ascii=False) + "\n")
        elif form == "csv":
            _write_csv(answers, stream, top)
        else:
            for answer in answers:
                stream.write(lines(answer, top))


def lines(answer: Prediction, top: int) -> str:
    label = "I don't know" if answer.rejected else answer.label
    shown = [f"{printable(answer.name)}  {printable(label)}"]
    if answer.rejected:
        shown[0] += f"  (unlike the training images; nearest {printable(answer.label)})"
    else:
        shown[0] += f"  {percent(answer.probability)}"
    if top > 1:
        shown += [f"    {percent(p):>8}  {printable(name)}" for name, p in answer.top(top)]
    shown += [
        f"    {neighbour.weight:+8.2f}  {printable(neighbour.name)} ({printable(neighbour.label)})"
        for neighbour in answer.neighbours
    ]
    return "\n".join(shown) + "\n"


def _flat(answer: Prediction, top: int) -> dict[str, Any]:
    """One row of a table: the columns, and label and probability of each further class."""
    row: dict[str, Any] = {name: answer.as_dict()[name] for name in COLUMNS}
    for rank, (name, probability) in enumerate(answer.top(top)[1:], start=2):
        row |= {f"label_{rank}": name, f"probability_{rank}": probability}
    return row


def _write_csv(answers: Iterable[Prediction], stream: IO[str], top: int) -> None:
    writer = None
    for answer in answers:
        row = _flat(answer, top)
        if writer is None:
            writer = csv.DictWriter(stream, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: _no_formula(value) for key, value in row.items()})


def _no_formula(value: Any) -> Any:
    """A spreadsheet would run a text that begins like a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" else value


def write_parquet(answers: Iterable[Prediction], output: Path | None, top: int) -> None:
    """Write parquet in groups of rows."""
    if output is None:
        raise DataError("Parquet is no text: give a file with --output answers.parquet.")
    arrow = require("pyarrow", "parquet", purpose="Writing parquet")
    parquet = require("pyarrow.parquet", "parquet", purpose="Writing parquet")
    with _replacing(output) as place:
        writer: Any = None
        rows: list[dict[str, Any]] = []

        def flush() -> None:
            nonlocal writer, rows
            if rows:
                table = arrow.Table.from_pylist(rows)
                writer = writer or parquet.ParquetWriter(place, table.schema)
                writer.write_table(table.cast(writer.schema))
                rows = []

        for answer in answers:
            rows.append(_flat(answer, top))
            if len(rows) == ROWS:
                flush()
        flush()
        if writer is None:
            raise DataError("There is no answer to write.")
        writer.close()


@contextmanager
def _stream(output: Path | None) -> Iterator[IO[str]]:
    if output is None:
        # Windows consoles and pipes may not be UTF-8; names of files are.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="replace")
        try:
            yield sys.stdout
            sys.stdout.flush()
        except BrokenPipeError:
            # `| head` has seen enough; Python would complain once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        return
    with _replacing(output) as place, place.open("w", encoding="utf-8", newline="") as stream:
        yield stream


@contextmanager
def _replacing(output: Path) -> Iterator[Path]:
    """A temporary sibling that takes the name of `output` if all goes well."""
    with explained_writes(output):
        descriptor, name = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
        os.close(descriptor)
        place = Path(name)
        try:
            yield place
            place.chmod(0o644)
            os.replace(place, output)
        finally:
            place.unlink(missing_ok=True)
