"""The published numbers: every table of the paper as data, with what is known to be wrong in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from gpcache.errors import DataError

MEAN = "mean"


@dataclass(frozen=True)
class Note:
    """What to know of a number; a row or column of None stands for all of them.

    An "error" is proved, a "doubt" is not, and a "remark" says how the number came about.
    `corrected` is the right number, where it is known.
    """

    kind: Literal["error", "doubt", "remark"]
    text: str
    row: str | None = None
    column: str | None = None
    corrected: float | None = None


@dataclass(frozen=True)
class Published:
    """A published table: row name → column name → number, None where none was given.

    Methods and data sets have the names that gpcache gives them; `titles` are the printed ones.
    """

    experiment: str
    title: str
    source: str
    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, float | None]]
    titles: Mapping[str, str]
    notes: tuple[Note, ...]

    def value(self, row: str, column: str, *, corrected: bool = False) -> float | None:
        """The number as printed, or as it should be; None where there is none."""
        if corrected:
            for note in self.notes_on(row, column):
                if note.corrected is not None:
                    return note.corrected
        return self.rows.get(row, {}).get(column)

    def notes_on(self, row: str, column: str) -> tuple[Note, ...]:
        """The notes that concern a cell, those on its row, its column or the table too."""
        return tuple(
            note for note in self.notes if note.row in (None, row) and note.column in (None, column)
        )

    def recomputed_mean(self, row: str, *, corrected: bool = False) -> float | None:
        """The mean of a row's cells, to hold against the one that the table prints.

        None where the table prints no means or the row has gaps.
        """
        cells = [column for column in self.columns if column != MEAN]
        values = [self.value(row, column, corrected=corrected) for column in cells]
        given = [value for value in values if value is not None]
        if MEAN not in self.columns or len(given) < len(cells):
            return None
        return sum(given) / len(given)


def experiments() -> tuple[str, ...]:
    """The names of all published tables."""
    files = (resources.files("gpcache.benchmark") / "data").iterdir()
    names = (file.name for file in files)
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def published(experiment: str) -> Published:
    """The published table of an experiment."""
    known = experiments()
    if experiment not in known:
        raise DataError(
            f"There are no published numbers of {experiment!r}: use {', '.join(known)}."
        )
    file = resources.files("gpcache.benchmark") / "data" / f"{experiment}.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    columns = tuple(content["columns"])
    rows = {name: dict(zip(columns, row, strict=True)) for name, row in content["rows"].items()}
    return Published(
        experiment,
        content["title"],
        content["source"],
        columns,
        rows,
        content["titles"] | content["columns"],
        tuple(Note(**note) for note in content["notes"]),
    )
