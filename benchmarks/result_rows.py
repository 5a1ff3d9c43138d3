"""What the rows in docs/results/rows say: means over draws, standard errors, ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from row_files import ROWS, read
from scipy.stats import rankdata

from gpcache.benchmark.spec import read_spec

SPECS = Path(__file__).resolve().parent / "shared"
Row = dict[str, Any]
Cell = tuple[str, int]  # data set and shots
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
CHOOSING = tuple(TITLES)[:7]
REPORTING = tuple(TITLES)[7:]
GROUPS = {"Reporting data": REPORTING, "Choosing data": CHOOSING}
_PLAIN = ("nll", "seconds", "predict_seconds", "set_size_0.05", "set_size_0.1", "set_size_0.2")
_PLAIN += ("errors_certain", "errors_listed", "n_shots")


class Results:
    """The rows of one spec that are done, by protocol, data set, shots and label."""

    def __init__(self, rows: Iterable[Row], order: Sequence[str]) -> None:
        self.rows = [row for row in rows if row["status"] == "done"]
        self._cells: dict[tuple[str, str, int, str], dict[int, Row]] = defaultdict(dict)
        for row in self.rows:
            place = row["protocol"], row["dataset"], row["shots"], row["label"]
            self._cells[place][row["seed"]] = row
        ran = {row["label"] for row in self.rows}
        self.labels = [label for label in order if label in ran]

    def draws(self, protocol: str, cell: Cell, label: str) -> list[Row]:
        """The rows of a cell, one for each draw."""
        return list(self._cells.get((protocol, *cell, label), {}).values())

    def cells(self, protocol: str, datasets: Sequence[str]) -> list[Cell]:
        """The cells of these data sets that have rows, in order."""
        found = {(row["dataset"], row["shots"]) for row in self.rows if row["protocol"] == protocol}
        return sorted(
            (cell for cell in found if cell[0] in datasets),
            key=lambda cell: (datasets.index(cell[0]), cell[1]),
        )

    def mean(self, protocol: str, cell: Cell, label: str, name: str = "accuracy") -> float:
        """The mean of a figure over draws, shares in %; NaN if there is none."""
        found = [
            row[name] for row in self.draws(protocol, cell, label) if row.get(name) is not None
        ]
        return (1.0 if name in _PLAIN else 100.0) * fmean(found) if found else math.nan

    def error(self, protocol: str, cell: Cell, label: str) -> float:
        """The standard error of the accuracy in points, over draws or over the rows of one test."""
        rows = self.draws(protocol, cell, label)
        if len(rows) > 1:
            values = [row["accuracy"] for row in rows]
            return 100 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        if not rows:
            return math.nan
        share = rows[0]["accuracy"]
        return 100 * math.sqrt(share * (1 - share) / rows[0]["n_test"])

    def accuracy(self, protocol: str, cell: Cell, label: str) -> str:
        """Mean ± standard error of the accuracy in %; – where there is none."""
        return with_error(self.mean(protocol, cell, label), self.error(protocol, cell, label))

    def has(self, protocol: str, cell: Cell, label: str) -> bool:
        """Whether a label ran on a cell."""
        return bool(self.draws(protocol, cell, label))

    def ranks(
        self, protocol: str, cells: Sequence[Cell], labels: Sequence[str]
    ) -> dict[str, float]:
        """The mean rank of each label over cells where all ran, 1 the highest accuracy."""
        scores = [[self.mean(protocol, cell, label) for label in labels] for cell in cells]
        if not scores:
            return {}
        ranks = np.mean([rankdata([-score for score in row]) for row in scores], axis=0)
        return dict(zip(labels, ranks.tolist(), strict=True))

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
