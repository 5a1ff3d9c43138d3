"""The published numbers: every table of the paper as data, with its known errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from gpcache.errors import DataError

MEAN = "mean"
DATA = resources.files("gpcache.benchmark") / "data"


@dataclass(frozen=True)
class Note:
    """A remark on a number; a row or column of None stands for all of them.

    An "error" is proved, a "doubt" is not, and a "remark" says how the number was obtained.
    `corrected` is the right number if it is known.
    """

    kind: Literal["error", "doubt", "remark"]
    text: str
    row: str | None = None
    column: str | None = None
    corrected: float | None = None


@dataclass(frozen=True)
class Published:
    """A published table: row name → column name → number, None if none was given.

    Methods and data sets have gpcache's names; `titles` are the printed ones.
    """

    title: str
    source: str
    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, float | None]]
    titles: Mapping[str, str]
    notes: tuple[Note, ...]

    def value(self, row: str, column: str, *, corrected: bool = False) -> float | None:
        """The number as printed, or corrected; None if there is none."""
        notes = self.notes_on(row, column) if corrected else ()
        better = (note.corrected for note in notes if note.corrected is not None)
        return next(better, self.rows.get(row, {}).get(column))

    def notes_on(self, row: str, column: str) -> tuple[Note, ...]:
        """The notes on a cell, including those on its row, its column or the table."""
        return tuple(
            note for note in self.notes if note.row in (None, row) and note.column in (None, column)
        )

    def recomputed_mean(self, row: str, *, corrected: bool = False) -> float | None:
        """The mean of a row's cells, to compare with the one that the table prints.

        None if the table prints no means or the row has gaps.
        """
        cells = [column for column in self.columns if column != MEAN]
        values = [self.value(row, column, corrected=corrected) for column in cells]
        given = [value for value in values if value is not None]
        complete = MEAN in self.columns and len(given) == len(cells)
        return sum(given) / len(given) if complete else None


def experiments() -> tuple[str, ...]:
    """The names of all published tables."""
    names = (file.name for file in DATA.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


@cache
def published(experiment: str) -> Published:
    """The published table of an experiment."""
    known = experiments()
    if experiment not in known:
        raise DataError(
            f"There are no published numbers of {experiment!r}: use {', '.join(known)}."
        )
    content: dict[str, Any] = json.loads((DATA / f"{experiment}.json").read_bytes())
    columns = content["columns"]
    rows = {name: dict(zip(columns, row, strict=True)) for name, row in content["rows"].items()}
    notes = tuple(Note(**note) for note in content["notes"])
    titles = content["titles"] | columns
    return Published(content["title"], content["source"], tuple(columns), rows, titles, notes)
