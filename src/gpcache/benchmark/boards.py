"""Boards: the rows of one protocol, encoder and number of shots, by line and column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from gpcache.benchmark.datasets import catalogue
from gpcache.benchmark.results import DONE, Row, correct_rows, latest
from gpcache.benchmark.significance import mean_and_deviation, mean_ranks
from gpcache.benchmark.spec import MethodSpec, Spec
from gpcache.errors import ProtocolError
from gpcache.methods import registry

# The option that is varied to see what chance does, and has no effect of its own.
SEED = "random_state"


@dataclass(frozen=True)
class Board:
    """Lines and columns (data sets) in order, and the rows of each cell by seed."""

    protocol: str
    encoder: str
    shots: int
    lines: Sequence[str]
    columns: Sequence[str]
    cells: dict[tuple[str, str], dict[int, Row]]

    @classmethod
    def of(cls, rows: Iterable[Row], lines: Sequence[str]) -> Board:
        """The board of rows that were done; those of two protocols do not go on one."""
        done = [row for row in rows if row["status"] == DONE]
        for name in ("protocol", "encoder", "shots"):
            found = list(dict.fromkeys(row[name] for row in done))
            if len(found) != 1:
                raise ProtocolError(
                    f"A table is of one {name}, got {', '.join(map(repr, found)) or 'no rows'}: "
                    "numbers of several do not compare."
                )
        cells: dict[tuple[str, str], dict[int, Row]] = {}
        for row in done:
            cells.setdefault((row["label"], _column(row)), {})[row["seed"]] = row
        ran = {line for line, _ in cells}
        columns = list(dict.fromkeys(column for _, column in cells))
        first = done[0]
        return cls(
            first["protocol"],
            first["encoder"],
            first["shots"],
            [line for line in lines if line in ran],
            columns,
            cells,
        )

    def values(self, line: str, column: str, name: str = "accuracy") -> list[float]:
        """The figure of a cell for each seed; accuracy in percent. None of it where not run."""
        scale = 100 if "accuracy" in name or name == "ece" else 1
        rows = self.cells.get((line, column), {}).values()
        return [scale * row[name] for row in rows if row.get(name) is not None]

    def means(self, line: str, columns: Sequence[str] | None = None) -> list[float]:
        """The mean accuracy over all columns, or some, seed by seed where each has the same."""
        chosen = self.columns if columns is None else columns
        found = [self.cells.get((line, column), {}) for column in chosen]
        if not found or not all(found):
            return []
        seeds = list(found[0])
        if all(list(rows) == seeds for rows in found):
            return [100 * fmean(rows[seed]["accuracy"] for rows in found) for seed in seeds]
        return [100 * fmean(fmean(row["accuracy"] for row in rows.values()) for rows in found)]

    def average(self, line: str, name: str) -> float:
        """The mean of a figure over all cells of a line; NaN where it lacks a column."""
        if not all((line, column) in self.cells for column in self.columns):
            return math.nan
        found = [value for column in self.columns for value in self.values(line, column, name)]
        return fmean(found) if found else math.nan

    def answered(self, lines: Sequence[str]) -> list[list[NDArray[np.float64]]]:
        """For each line and column that all share: the draws' share of right answers, by image."""
        found: list[list[NDArray[np.float64]]] = [[] for _ in lines]
        for column in self.columns:
            seeds = set.intersection(*(set(self.cells.get((line, column), ())) for line in lines))
            if seeds:
                for rows, line in zip(found, lines, strict=True):
                    draws = [correct_rows(self.cells[line, column][seed]) for seed in seeds]
                    rows.append(np.mean(draws, axis=0))
        return found

    def ranks(self) -> tuple[dict[str, float], int]:
        """The mean rank of each line over the columns where all ran, and how many these are.

        Draws of one data set are no further evidence about others: their mean is ranked.
        """
        scores = [
            [fmean(self.values(line, column)) for line in self.lines]
            for column in self.columns
            if all((line, column) in self.cells for line in self.lines)
        ]
        if not scores:
            return {}, 0
        ranks = mean_ranks(np.array(scores).T).tolist()
        return dict(zip(self.lines, ranks, strict=True)), len(scores)


def shared_columns(boards: Sequence[Board]) -> list[str]:
    """The data sets that every board has: means over others would not compare."""
    return [column for column in boards[0].columns if all(column in b.columns for b in boards)]


def boards_of(spec: Spec, rows: Iterable[Row]) -> list[Board]:
    """The boards of what a spec asks for; rows of what it no longer asks for stay out."""
    lines = [method.label for method in spec.methods]
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows_of(spec, rows):
        if row["status"] == DONE:
            groups.setdefault((row["protocol"], row["encoder"], row["shots"]), []).append(row)
    ordered = sorted(groups, key=lambda one: (spec.protocols.index(one[0]), one[1], one[2]))
    return [Board.of(groups[group], lines) for group in ordered]


def rows_of(spec: Spec, rows: Iterable[Row]) -> list[Row]:
    """The last row of each cell that the spec asks for, and of data sets that failed.

    In the order of the spec, whatever came first when several ran at once.
    """
    lines = {method.label for method in spec.methods}

    def asked(row: Row) -> bool:
        return (
            row["protocol"] in spec.protocols
            and row["shots"] in spec.shots
            and row["seed"] in spec.seeds
            and row["label"] in lines
        )

    kept = [row for row in latest(rows) if asked(row) or not row["label"]]
    opened = {(row["reference"], row["encoder"]) for row in kept if row["label"]}
    # A data set that failed once and was opened later is mended.
    wanted = [
        row for row in kept if row["label"] or (row["reference"], row["encoder"]) not in opened
    ]
    place = {reference: number for number, reference in enumerate(spec.datasets)}
    return sorted(wanted, key=lambda row: (place.get(row["reference"], len(place)), row["seed"]))


def shown(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± standard deviation over draws; – where there is nothing."""
    if not values:
        return "–"
    mean, deviation = mean_and_deviation(values)
    text = f"{mean:.{digits}f}"
    return text if math.isnan(deviation) else f"{text} ± {deviation:.{digits}f}"


def title_of(column: str) -> str:
    """What a reader calls a data set."""
    known = catalogue()
    return known[column].title if column in known else column


def trains(line: MethodSpec) -> bool:
    """Whether the line's method is trained."""
    method = registry().get(line.name)
    return method is not None and method.trains


def slug(text: str) -> str:
    """Text for the name of a file."""
    return "".join(letter if letter.isalnum() else "-" for letter in text).strip("-").lower()


def _column(row: Row) -> str:
    own: bool = row["dataset"] == row["test"]
    return row["dataset"] if own else f"{row['dataset']} → {row['test']}"
