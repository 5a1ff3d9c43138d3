"""Predictions as a table, JSON lines, CSV or parquet: streamed, and whole or not there."""

import csv
import io
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import typer

from gpcache.cli.options import json_text, percent, printable
from gpcache.errors import DataError
from gpcache.model.answers import Prediction
from gpcache.support.extras import require
from gpcache.support.files import replacing

COLUMNS = ("image", "label", "probability", "uncertainty", "familiarity", "rejected")
ROWS = 4096


class Shape(NamedTuple):
    """What a line holds: the `top` classes, with `sets` the plausible ones, with `why` reasons."""

    top: int = 1
    sets: bool = False
    why: bool = False

    @property
    def lists(self) -> list[str]:
        """The columns that hold a list each."""
        return ["plausible"] * self.sets + ["why"] * self.why


def write_text(answers: Iterable[Prediction], form: str, output: Path | None, shape: Shape) -> None:
    """Write a table, JSON lines or CSV, line by line."""
    with _stream(output) as stream:
        if form == "jsonl":
            for answer in answers:
                stream.write(json_text(answer.as_dict(shape.top)) + "\n")
        elif form == "csv":
            _write_csv(answers, stream, shape)
        else:
            for answer in answers:
                stream.write(lines(answer, shape.top))


def lines(answer: Prediction, top: int) -> str:
    """An answer for people, its further classes and its reasons beneath it."""
    label = "I don't know" if answer.rejected else answer.label
    shown = [f"{printable(answer.name)}  {printable(label)}"]
    if answer.rejected:
        shown[0] += f"  (unlike the training images; nearest {printable(answer.label)})"
    else:
        shown[0] += f"  {percent(answer.probability)}"
    if answer.plausible is not None:
        one_of = ", ".join(map(printable, answer.plausible))
        shown.append(f"    one of: {one_of}" if one_of else "    none of the classes suits it")
    if top > 1:
        shown += [f"    {percent(p):>8}  {printable(name)}" for name, p in answer.top(top)]
    shown += [
        f"    {neighbour.weight:+8.2f}  {printable(neighbour.name)} ({printable(neighbour.label)})"
        for neighbour in answer.neighbours
    ]
    return "\n".join(shown) + "\n"


def _columns(shape: Shape) -> list[str]:
    """The columns of a table: label and probability once more for each further class."""
    further = (f"{name}_{k}" for k in range(2, shape.top + 1) for name in COLUMNS[1:3])
    return [*COLUMNS, *further, *shape.lists]


def _row(answer: Prediction, shape: Shape) -> list[Any]:
    found = answer.as_dict()
    further = (value for pair in answer.top(shape.top)[1:] for value in pair)
    # What speaks from text alone has no reasons.
    lists = (found.get(name, []) for name in shape.lists)
    return [*(found[name] for name in COLUMNS), *further, *lists]


def _write_csv(answers: Iterable[Prediction], stream: IO[str], shape: Shape) -> None:
    shown = printable if stream.isatty() else str
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_columns(shape))
    for answer in answers:
        # Lists as JSON: the name of a class may hold any separator.
        row = _row(answer, shape)
        cells = [json_text(cell) if isinstance(cell, list) else cell for cell in row]
        writer.writerow(_cell(shown(cell)) if isinstance(cell, str) else cell for cell in cells)


def _cell(text: str) -> str:
    """A spreadsheet would run a text that begins like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text


def write_parquet(answers: Iterable[Prediction], output: Path | None, shape: Shape) -> None:
    """Write parquet in groups of rows."""
    if output is None:
        raise DataError("Parquet is no text: give a file with --output answers.parquet.")
    arrow = require("pyarrow", "parquet", purpose="Writing parquet")
    parquet = require("pyarrow.parquet", "parquet", purpose="Writing parquet")
    kinds = {"image": arrow.string(), "label": arrow.string(), "rejected": arrow.bool_()}
    kinds["plausible"] = arrow.list_(arrow.string())
    reason = [("name", arrow.string()), ("label", arrow.string()), ("weight", arrow.float64())]
    kinds["why"] = arrow.list_(arrow.struct(reason))
    names = _columns(shape)
    schema = arrow.schema(
        [(name, kinds.get(name.split("_")[0], arrow.float64())) for name in names]
    )
    with replacing(output) as place, parquet.ParquetWriter(place, schema) as writer:
        rows = (dict(zip(names, _row(answer, shape), strict=True)) for answer in answers)
        # itertools.batched comes with Python 3.12.
        while batch := list(itertools.islice(rows, ROWS)):
            writer.write_table(arrow.Table.from_pylist(batch, schema))


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
    with replacing(output) as place, place.open("w", encoding="utf-8", newline="") as stream:
        yield stream
