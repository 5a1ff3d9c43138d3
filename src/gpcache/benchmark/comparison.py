"""Results that may be compared: the rows of one protocol, encoder and number of shots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache.benchmark.datasets.catalogue import catalogue
from gpcache.benchmark.peers import known_methods
from gpcache.benchmark.rows import DONE, Row, correct_rows, latest
from gpcache.benchmark.significance import mean_ranks
from gpcache.benchmark.spec import MethodSpec, Spec
from gpcache.errors import ProtocolError

# The option that is varied only to see the effect of chance.
SEED = "random_state"


def setting_of(row: Row) -> tuple[str, str, int]:
    """Protocol, encoder and number of shots of a row."""
    return row["protocol"], row["encoder"], row["shots"]


@dataclass(frozen=True)
class Comparison:
    """Labels of methods and columns (data sets) in order, and the rows of each cell by seed."""

    protocol: str
    encoder: str
    shots: int
    labels: Sequence[str]
    columns: Sequence[str]
    cells: dict[tuple[str, str], dict[int, Row]]

    @classmethod
    def of(cls, rows: Iterable[Row], labels: Sequence[str]) -> Comparison:
        """The comparison of rows that were done; they must be of one protocol."""
        done = [row for row in rows if row["status"] == DONE]
        for name in ("protocol", "encoder", "shots"):
            if len(values := dict.fromkeys(row[name] for row in done)) != 1:
                raise ProtocolError(
                    f"A table has one {name}, got {', '.join(map(repr, values)) or 'no rows'}: "
                    "figures of several cannot be compared."
                )
        cells: dict[tuple[str, str], dict[int, Row]] = {}
        for row in done:
            same_data = row["dataset"] == row["test"]
            column = row["dataset"] if same_data else f"{row['dataset']} → {row['test']}"
            cells.setdefault((row["label"], column), {})[row["seed"]] = row
        kept = [label for label in labels if any(label == ran for ran, _ in cells)]
        columns = list(dict.fromkeys(column for _, column in cells))
        return cls(*setting_of(done[0]), kept, columns, cells)

    @property
    def setting(self) -> tuple[str, str, int]:
        """Protocol, encoder and number of shots."""
        return self.protocol, self.encoder, self.shots

    def values(self, label: str, column: str, name: str = "accuracy") -> list[float]:
        """The figure of a cell for each seed, accuracies in percent; empty if it did not run."""
        scale = 100 if "accuracy" in name or name == "ece" else 1
        rows = self.cells.get((label, column), {}).values()
        return [scale * row[name] for row in rows if row.get(name) is not None]

    def means(self, label: str, columns: Sequence[str] | None = None) -> list[float]:
        """The mean accuracy over the columns (all by default), for each seed if all have the same.

        Empty if the label lacks a column.
        """
        chosen = self.columns if columns is None else columns
        cells = [self.cells.get((label, column), {}) for column in chosen]
        if not cells or not all(cells):
            return []
        seeds = list(cells[0])
        if all(list(rows) == seeds for rows in cells):
            return [100 * fmean(rows[seed]["accuracy"] for rows in cells) for seed in seeds]
        return [100 * fmean(fmean(row["accuracy"] for row in rows.values()) for rows in cells)]

    def average(self, label: str, name: str) -> float:
        """The mean of a figure over all cells of a label; NaN if it lacks a column."""
        if not all((label, column) in self.cells for column in self.columns):
            return math.nan
        values = [value for column in self.columns for value in self.values(label, column, name)]
        return fmean(values) if values else math.nan

    def shares_correct(self, labels: Sequence[str]) -> list[list[NDArray[np.float64]]]:
        """For each label, and each column that all have: each image's share of correct draws."""
        shares_by_label: list[list[NDArray[np.float64]]] = [[] for _ in labels]
        for column in self.columns:
            cells = [self.cells.get((label, column), {}) for label in labels]
            seeds = set.intersection(*map(set, cells))
            for shares, cell in zip(shares_by_label, cells, strict=True) if seeds else ():
                shares.append(np.mean([correct_rows(cell[seed]) for seed in seeds], axis=0))
        return shares_by_label

    def ranks(self) -> tuple[dict[str, float], int]:
        """The mean rank of each label over the columns where all ran, and how many these are.

        The draws of one data set are averaged: they are no evidence about other data sets.
        """
        scores = [
            [fmean(self.values(label, column)) for label in self.labels]
            for column in self.columns
            if all((label, column) in self.cells for label in self.labels)
        ]
        if not scores:
            return {}, 0
        ranks = mean_ranks(np.array(scores).T).tolist()
        return dict(zip(self.labels, ranks, strict=True)), len(scores)


def by_attributes(
    comparisons: Sequence[Comparison], *names: str
) -> dict[tuple[Any, ...], list[Comparison]]:
    """Comparisons by the values of these attributes, in the order in which they first occur."""
    groups: dict[tuple[Any, ...], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(tuple(getattr(comparison, name) for name in names), []).append(comparison)
    return groups


def shared_columns(comparisons: Sequence[Comparison]) -> list[str]:
    """The data sets that all comparisons have; means over others could not be compared."""
    first, *others = comparisons
    return [column for column in first.columns if all(column in one.columns for one in others)]


def comparisons_of(spec: Spec, rows: Iterable[Row]) -> list[Comparison]:
    """The comparisons of a spec; rows that it no longer requests are left out."""
    labels = [method.label for method in spec.methods]
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in requested_rows(spec, rows):
        if row["status"] == DONE:
            groups.setdefault(setting_of(row), []).append(row)
    ordered = sorted(groups, key=lambda one: (spec.protocols.index(one[0]), *one[1:]))
    return [Comparison.of(groups[group], labels) for group in ordered]


def requested_rows(spec: Spec, rows: Iterable[Row]) -> list[Row]:
    """The last row of each cell that the spec requests, and of data sets that failed.

    They are in the order of the spec.
    """
    labels = {method.label for method in spec.methods}

    asked = {"protocol": spec.protocols, "shots": spec.shots, "seed": spec.seeds, "label": labels}

    def requested(row: Row) -> bool:
        return all(row[name] in values for name, values in asked.items())

    kept = [row for row in latest(rows) if requested(row) or not row["label"]]
    # A data set that failed and was opened later is fine.
    opened = {(row["reference"], row["encoder"]) for row in kept if row["label"]}
    kept = [row for row in kept if row["label"] or (row["reference"], row["encoder"]) not in opened]
    place = {reference: number for number, reference in enumerate(spec.datasets)}
    return sorted(kept, key=lambda row: (place.get(row["reference"], len(place)), row["seed"]))


def title_of(column: str) -> str:
    """The title of a data set for readers."""
    known = catalogue()
    return known[column].title if column in known else column


def trains(method: MethodSpec) -> bool:
    """Whether a method is trained."""
    return getattr(known_methods().get(method.name), "trains", False)


def slug(*texts: object) -> str:
    """Texts as a part of a file name."""
    words = ("".join(c if c.isalnum() else "-" for c in str(text)).strip("-") for text in texts)
    return "-".join(words).lower()
