"""Writes predictions as a table, JSON lines, CSV or parquet, one by one as they come."""

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import typer

from gpcache.cli.output import json_text, percent
from gpcache.errors import DataError
from gpcache.model.answer_tables import COLUMNS, require_parquet, write_csv, write_parquet
from gpcache.model.predictions import Prediction
from gpcache.support.files import replacing
from gpcache.support.names import printable

WHY = ("why", "others_weight", "name_weight")


class Shape(NamedTuple):
    """The content of a row: the `top` classes, plausible ones with `sets`, reasons with `why`."""

    top: int = 1
    sets: bool = False
    why: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns of a table; label and probability come again for each further class."""
        further = (f"{name}_{k}" for k in range(2, self.top + 1) for name in COLUMNS[1:3])
        return [*COLUMNS, *further, *["plausible"] * self.sets, *WHY * self.why]

    def row(self, answer: Prediction) -> dict[str, Any]:
        """The cells of an answer by column."""
        # Answers from text alone have no reasons.
        cells = {"why": [], "others_weight": None, "name_weight": None} | answer.as_dict()
        for k, (label, probability) in enumerate(answer.top(self.top), 1):
            cells |= {f"label_{k}": label, f"probability_{k}": probability}
        return {name: cells[name] for name in self.columns}


def write_answers(
    answers: Iterable[Prediction], form: str, output: Path | None, shape: Shape
) -> None:
    """Write answers as "table", "jsonl", "csv" or "parquet"; a file appears only when complete."""
    if form == "parquet":
        if output is None:
            raise DataError("Parquet cannot be printed: give a file with --output answers.parquet.")
        require_parquet()
        with replacing(output) as place:
            write_parquet((shape.row(answer) for answer in answers), shape.columns, place)
        return
    with _stream(output) as stream:
        if form == "csv":
            rows = (_csv_cells(answer, stream, shape) for answer in answers)
            write_csv(rows, shape.columns, stream)
            return
        for answer in answers:
            text = json_text(answer.as_dict(shape.top)) if form == "jsonl" else None
            stream.write(f"{text or lines(answer, shape.top)}\n")


def lines(answer: Prediction, top: int) -> str:
    """An answer as text, with further classes and reasons on the lines below it."""
    name, nearest = printable(answer.name), printable(answer.nearest)
    shown = [f"{name}  {nearest}  {percent(answer.probability)}"]
    if answer.rejected:
        shown = [f"{name}  I don't know  (unlike the training images; nearest {nearest})"]
    if answer.plausible:
        shown.append(f"    one of: {', '.join(map(printable, answer.plausible))}")
    if top > 1:
        shown += [f"    {percent(p):>8}  {printable(other)}" for other, p in answer.top(top)]
    shown += [
        f"    {neighbour.weight:+8.2f}  {printable(neighbour.name)} ({printable(neighbour.label)})"
        for neighbour in answer.neighbours
    ]
    if answer.others_weight is not None:
        shown.append(f"    {answer.others_weight:+8.2f}  all other training images")
    if answer.name_weight is not None:
        shown.append(f"    {answer.name_weight:+8.2f}  the class name")
    return "\n".join(shown)


def _csv_cells(answer: Prediction, stream: IO[str], shape: Shape) -> dict[str, Any]:
    shown = printable if stream.isatty() else str
    # Lists are written as JSON: a class name may hold any separator.
    row = {
        name: json_text(x) if isinstance(x, list) else x for name, x in shape.row(answer).items()
    }
    return {name: shown(cell) if isinstance(cell, str) else cell for name, cell in row.items()}


@contextmanager
def _stream(output: Path | None) -> Iterator[IO[str]]:
    if output is not None:
        with replacing(output) as place, place.open("w", encoding="utf-8", newline="") as stream:
            yield stream
        return
    # Windows consoles and pipes may not be UTF-8; file names are.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
