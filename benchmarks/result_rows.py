"""What the rows in docs/results/rows say: means over draws, standard errors, ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from pages import table
from row_files import ROWS, read

from gpcache.benchmark.significance import mean_ranks
from gpcache.benchmark.spec import read_spec

SPECS = Path(__file__).resolve().parent / "shared"
Row = dict[str, Any]
NO_VALIDATION, VALIDATION = "no validation", "full validation"
DEFAULT, PAPER = "GPCache", "GPCache as published"
TITLES = {
    "dtd_vitb32": "DTD ViT-B/32, text",
    "caltech101_vitb32": "Caltech ViT-B/32",
    "caltech101_vitb32:text": "Caltech ViT-B/32, 39 classes, text",
    "oxford_pets_vitb32": "Pets ViT-B/32",
    "ucf101_vitb32": "UCF101 ViT-B/32",
    "caltech20": "caltech20 photos, names",
    "trash6": "trash6 photos, names",
    "stanford_cars_vitb32": "Cars ViT-B/32, text",
    "oxford_flowers_vitb32": "Flowers ViT-B/32",
    "dtd_rn50": "DTD RN50",
    "caltech101_vitb16": "Caltech ViT-B/16",
    "caltech101_vitb16:text": "Caltech ViT-B/16, 39 classes, text",
}
ALL = tuple(TITLES)
CHOOSING, REPORTING = ALL[:7], ALL[7:]
GROUPS = {"Reporting data": REPORTING, "Choosing data": CHOOSING}
_PLAIN = ("nll", "seconds", "predict_seconds", "set_size_0.05", "set_size_0.1", "set_size_0.2")
_PLAIN += ("errors_certain", "errors_listed", "n_shots")


class Cell(NamedTuple):
    """A protocol, a data set, and the number of shots."""

    protocol: str
    data: str
    shots: int


class Results:
    """The rows of one spec that are done, by cell and label."""

    def __init__(self, rows: Iterable[Row], order: Sequence[str]) -> None:
        self.rows = [row for row in rows if row["status"] == "done"]
        self._draws: dict[tuple[Cell, str], dict[int, Row]] = defaultdict(dict)
        for row in self.rows:
            cell = Cell(row["protocol"], row["dataset"], row["shots"])
            self._draws[cell, row["label"]][row["seed"]] = row
        ran = {row["label"] for row in self.rows}
        self.labels = [label for label in order if label in ran]

    def draws(self, cell: Cell, label: str) -> list[Row]:
        """The rows of a cell, one for each draw; none if the label did not run on it."""
        return list(self._draws.get((cell, label), {}).values())

    def cells(self, protocol: str, datasets: Sequence[str]) -> list[Cell]:
        """The cells of these data sets that have rows, in order."""
        found = {cell for cell, _ in self._draws if cell.protocol == protocol}
        kept = [cell for cell in found if cell.data in datasets]
        return sorted(kept, key=lambda cell: (datasets.index(cell.data), cell.shots))

    def mean(self, cell: Cell, label: str, name: str = "accuracy") -> float:
        """The mean of a figure over draws, shares in %; NaN if there is none."""
        values = [row.get(name) for row in self.draws(cell, label)]
        found = [value for value in values if value is not None]
        return (1.0 if name in _PLAIN else 100.0) * fmean(found) if found else math.nan

    def error(self, cell: Cell, label: str) -> float:
        """The standard error of the accuracy in points, over draws or over the rows of one test."""
        rows = self.draws(cell, label)
        shares = [row["accuracy"] for row in rows]
        if len(rows) > 1:
            return 100 * float(np.std(shares, ddof=1)) / math.sqrt(len(rows))
        return (
            100 * math.sqrt(shares[0] * (1 - shares[0]) / rows[0]["n_test"]) if rows else math.nan
        )

    def accuracy(self, cell: Cell, label: str) -> str:
        """Mean ± standard error of the accuracy in %; – where there is none."""
        return with_error(self.mean(cell, label), self.error(cell, label))

    def figure(self, cell: Cell, label: str, name: str, digits: int = 1) -> str:
        """The mean of a figure as a table shows it."""
        return shown(self.mean(cell, label, name), digits)

    def ranks(self, cells: Sequence[Cell], labels: Sequence[str]) -> dict[str, float]:
        """The mean rank of each label over cells where all ran, 1 the highest accuracy."""
        scores = np.array([[self.mean(cell, label) for cell in cells] for label in labels])
        return dict(zip(labels, mean_ranks(scores).tolist(), strict=True)) if labels else {}

    def made_by(self) -> str:
        """The versions that made the rows, as a sentence."""
        found = sorted({f"gpcache {row['version']}, source {row['source']}" for row in self.rows})
        return f"Rows: {'; '.join(found) or 'none yet'}."


@cache
def results(spec: str, encoder: str | None = None) -> Results:
    """The rows of a spec, of one encoder if it is given, with the labels in the spec's order."""
    lines = read_spec(SPECS / f"{spec}.toml").methods
    rows = [row for row in read(ROWS / f"{spec}.csv") if encoder in (None, row["encoder"])]
    return Results(rows, [line.label for line in lines])


def shown(value: float, digits: int = 1, *, sign: bool = False) -> str:
    """A number for a table; – where there is none."""
    if math.isnan(value):
        return "–"
    return f"{value + 0.0:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def with_error(mean: float, error: float) -> str:
    """Mean ± standard error."""
    return "–" if math.isnan(mean) else f"{mean:.1f} ± {error:.1f}"


def title(dataset: str) -> str:
    """The name of a data set for readers."""
    return TITLES.get(dataset, dataset)


def by_cell(
    head: Sequence[str],
    cells: Iterable[Cell],
    values: Callable[[Cell], Iterable[object]],
    data: str = "data",
) -> str:
    """A table with a line for each cell: its data, its shots, and these values."""
    lines = ([title(cell.data), cell.shots, *values(cell)] for cell in cells)
    return table([[data, "shots", *head], *lines])
