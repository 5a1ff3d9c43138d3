"""What the rows in docs/results/rows say: means over draws, standard errors, and some tables."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from row_files import ROWS, read

from gpcache import metrics
from gpcache.benchmark.output import paper_specs
from gpcache.benchmark.published import published
from gpcache.benchmark.significance import mean_and_deviation, mean_ranks
from gpcache.benchmark.spec import read_spec
from gpcache.benchmark.table_formats import Table

SPECS = Path(__file__).resolve().parent / "shared"
Row = dict[str, Any]
PROTOCOLS = NO_VALIDATION, VALIDATION = "no validation", "full validation"
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
BASELINES = ("GDA", "LP++", "ProKeR", "Linear probe", "GPCache-F", "LogisticRegressionCV")
BASELINES += ("Linear SVC", "Shrinkage LDA", "1-nearest-neighbour")
PHOTOS, WITH_GROUPS = ("caltech20", "trash6"), ("dtd_rn50", "stanford_cars_vitb32")
HALVES = [name for one in TITLES for name in (one, f"{one}:half")]
SPLIT = re.compile(r"-split\d+$|-classes-\d+$")
A_FEW = (2, 3, 5)
_NO_SHARES = ("nll", "seconds", "set_size_0.05", "set_size_0.1", "set_size_0.2", "n_shots")
_NO_SHARES += ("errors_certain", "errors_listed")


class Cell(NamedTuple):
    """A protocol, a data set, and the number of shots."""

    protocol: str
    data: str
    shots: int

    @property
    def title(self) -> str:
        """The name of the data set for readers."""
        return TITLES[re.sub(r":(half|\d)$", "", self.data)]

    @property
    def has_text(self) -> bool:
        """Whether the classes have text."""
        return self.title.endswith((", text", ", names"))


class Results:
    """The rows of one spec that are done, by cell and label."""

    def __init__(self, rows: Iterable[Row], order: Sequence[str]) -> None:
        rows = [row for row in rows if row["status"] == "done"]
        self._draws: dict[tuple[Cell, str], dict[tuple[str, int], Row]] = defaultdict(dict)
        for row in rows:
            # A model of each half of the classes: the cell is the mean of both. A split is a draw,
            # and so are a few classes.
            data = SPLIT.sub("", row["dataset"].replace(":other-half", ":half"))
            draws = self._draws[Cell(row["protocol"], data, row["shots"]), row["label"]]
            draws[row["dataset"], row["seed"]] = row
        ran = {row["label"] for row in rows}
        self.labels = [label for label in order if label in ran]
        self.made_by = sorted({f"gpcache {row['version']}, source {row['source']}" for row in rows})

    def draws(self, cell: Cell, label: str) -> list[Row]:
        """The rows of a cell, one for each draw; none if the label did not run on it."""
        return list(self._draws.get((cell, label), {}).values())

    def cells(self, protocol: str, datasets: Sequence[str] = ALL) -> list[Cell]:
        """The cells of these data sets that have rows, in order."""
        found = {cell for cell, _ in self._draws if cell.protocol == protocol}
        kept = [cell for cell in found if cell.data in datasets]
        return sorted(kept, key=lambda cell: (datasets.index(cell.data), cell.shots))

    def mean(self, cell: Cell, label: str, name: str = "accuracy") -> float:
        """The mean of a figure over draws, shares in %; NaN if there is none."""
        values = [row.get(name) for row in self.draws(cell, label)]
        found = [value for value in values if value is not None]
        return (1.0 if name in _NO_SHARES else 100.0) * fmean(found) if found else math.nan

    def error(self, cell: Cell, label: str) -> float:
        """The standard error of the accuracy in points, over draws or over the rows of one test."""
        rows = self.draws(cell, label)
        if not rows:
            return math.nan
        share, deviation = mean_and_deviation([row["accuracy"] for row in rows])
        if len(rows) == 1:
            deviation = math.sqrt(share * (1 - share) / rows[0]["n_test"])
        return 100 * deviation / math.sqrt(len(rows))

    def accuracy(self, cell: Cell, label: str) -> str:
        """Mean ± standard error of the accuracy in %; – where there is none."""
        return with_error(self.mean(cell, label), self.error(cell, label))

    def figures(self, cell: Cell, label: str, *names: str, digits: int = 1) -> list[str]:
        """The means of figures as a table shows them."""
        return [shown(self.mean(cell, label, name), digits) for name in names]

    def ran(self, cells: Iterable[Cell]) -> list[str]:
        """The labels that ran on any of the cells."""
        return [label for label in self.labels if any(self.draws(cell, label) for cell in cells)]

    def best(self, cell: Cell, labels: Sequence[str] = ()) -> str:
        """The one with the highest accuracy of these labels, or of all others; "" if none ran."""
        others = [label for label in self.labels if "GPCache" not in label]
        ran = [label for label in labels or others if self.draws(cell, label)]
        return max(ran, key=lambda label: self.mean(cell, label), default="")

    def gaps(self, cell: Cell, label: str, other: Cell, other_label: str, name: str) -> list[float]:
        """The differences of a figure in points, draw by draw: an easy one is easy for both."""
        theirs = self._draws[other, other_label]
        own = self._draws.get((cell, label), {}).items()
        return [100 * (row[name] - theirs[draw][name]) for draw, row in own]


@cache
def results(spec: str, encoder: str | None = None) -> Results:
    """The rows of a spec, of one encoder if it is given, with the labels in the spec's order."""
    lines = read_spec(SPECS / f"{spec}.toml").methods
    rows = [row for row in read(ROWS / f"{spec}.csv") if encoder in (None, row["encoder"])]
    return Results(rows, [line.label for line in lines])


def shown(value: float, digits: int = 1, sign: str = "") -> str:
    """A number for a table; – where there is none."""
    return "–" if math.isnan(value) else f"{value + 0.0:{sign}.{digits}f}".replace("-", "−")


def with_error(mean: float, error: float) -> str:
    """Mean ± standard error."""
    return "–" if math.isnan(mean) else f"{mean:.1f} ± {error:.1f}"


def summary(found: Results, cells: Sequence[Cell]) -> Iterator[list[str]]:
    """A line for each method that ran on every cell, the highest mean accuracy first."""
    labels = [one for one in found.labels if all(found.draws(cell, one) for cell in cells)]
    scores = [[found.mean(cell, label) for cell in cells] for label in labels]
    ranks = dict(zip(labels, mean_ranks(np.array(scores)), strict=True)) if labels else {}
    own = "held_out" if cells[0].protocol == NO_VALIDATION else "validation"
    for label in sorted(labels, key=lambda one: fmean(scores[labels.index(one)]), reverse=True):
        names = ("accuracy", "ece", "nll", f"{own}_accuracy", "seconds")
        means = (fmean(found.mean(cell, label, name) for cell in cells) for name in names)
        accuracy, ece, nll, chosen, seconds = means
        error = math.hypot(*(found.error(cell, label) for cell in cells)) / len(cells)
        name = f"**{label}**" if label in (DEFAULT, PAPER) else label
        figures = [shown(ranks[label]), shown(ece), shown(nll, 3), shown(chosen - accuracy, 1, "+")]
        yield [name, with_error(accuracy, error), *figures, shown(seconds, 2)]


def difference(found: Results, cell: Cell, other: str) -> str:
    """By how much the default is better than another label, with the standard error."""
    gaps = found.gaps(cell, DEFAULT, cell, other, "accuracy")
    mean, deviation = mean_and_deviation(gaps)
    error = deviation / math.sqrt(len(gaps))
    if len(gaps) == 1:
        error = math.hypot(found.error(cell, DEFAULT), found.error(cell, other))
    return f"{shown(mean, 1, '+')} ± {error:.1f}"


def below(found: Results, datasets: Sequence[str]) -> list[tuple[Cell, str]]:
    """Cells in which a baseline is better than the default, and the best; the worst first."""
    lines = []
    for cell in found.cells(NO_VALIDATION, datasets):
        best = found.best(cell, BASELINES)
        if (gap := found.mean(cell, DEFAULT) - found.mean(cell, best)) < 0:
            lines.append((gap, cell, best))
    return [line[1:] for line in sorted(lines, key=lambda one: one[0])]


def few_classes(found: Results, datasets: Sequence[str]) -> Iterator[list[str]]:
    """A line for each kind of data, number of classes and shots: means over data sets and draws."""
    known = found.cells(NO_VALIDATION, [f"{name}:{few}" for name in datasets for few in A_FEW])
    for text, few, shots in product((True, False), A_FEW, sorted({cell.shots for cell in known})):
        cells = [c for c in known if (c.has_text, c.data[-1], c.shots) == (text, str(few), shots)]
        if cells:
            means = {one: fmean(found.mean(cell, one) for cell in cells) for one in found.labels}
            ran = (one for one in BASELINES if not math.isnan(means.get(one, math.nan)))
            best = max(ran, key=means.__getitem__)
            gaps = [
                gap for cell in cells for gap in found.gaps(cell, DEFAULT, cell, best, "accuracy")
            ]
            mean, deviation = mean_and_deviation(gaps)
            place = ["with text" if text else "without", str(few), str(shots)]
            figures = [shown(means[one]) for one in found.labels]
            error = deviation / math.sqrt(len(gaps))
            yield [*place, *figures, best, f"{shown(mean, 1, '+')} ± {error:.1f}"]


def inside(found: Results, cell: Cell) -> int:
    """In how many draws the test accuracy lies in the 95 % interval of the held-out one."""
    count = 0
    for row in found.draws(cell, DEFAULT):
        n = row["held_out_rows"]
        low, high = metrics.wilson_interval(round(row["held_out_accuracy"] * n), n)
        count += low <= row["accuracy"] <= high
    return count


def coverage(found: Results, cell: Cell, label: str, error: str) -> str:
    """The share of sets that hold the true class, with its standard error over draws."""
    draws = [100 * row.get(f"coverage_{error}", math.nan) for row in found.draws(cell, label)]
    return with_error(fmean(draws), float(np.std(draws)) / math.sqrt(len(draws)))


def families(found: Results, cells: Sequence[Cell]) -> Iterator[tuple[str, Cell, list[float]]]:
    """Mean accuracies of the labels that differ only after the comma."""
    names = dict.fromkeys(label.split(",")[0] for label in found.labels)
    for family, cell in product(names, cells):
        means = [found.mean(cell, one) for one in found.labels if one.split(",")[0] == family]
        if values := [value for value in means if not math.isnan(value)]:
            yield family, cell, values


def published_as() -> dict[str, str]:
    """The line of the published table of approximations that belongs to each label."""
    spec = read_spec(paper_specs()["approximations"])
    return {line.label: line.published for line in spec.methods if line.published}


def in_the_paper(table: str, row: str, *columns: str, form: str = ".2f") -> list[str]:
    """Published numbers; – where there is none."""
    found = [published(table).value(row, column) for column in columns]
    return ["–" if value is None else f"{value:{form}}" for value in found]


def headline_csv() -> str:
    """The full table: one line for each protocol, cell and method."""
    found, lines = results("headline"), []
    names = ("accuracy", "ece", "nll", "seconds", "held_out_accuracy", "validation_accuracy")
    head = ["protocol", "kind", "data", "shots", "method", "draws", "standard_error", *names]
    for protocol, (kind, datasets) in product(PROTOCOLS, GROUPS.items()):
        for cell, label in product(found.cells(protocol, datasets), found.labels):
            if draws := found.draws(cell, label):
                means = [found.mean(cell, label, name) for name in names]
                place = [protocol, kind.split()[0].lower(), cell.data, str(cell.shots), label]
                place += [str(len(draws)), f"{found.error(cell, label):.2f}"]
                lines.append(place + ["" if math.isnan(one) else f"{one:.3f}" for one in means])
    return Table("headline", "Every method", head, lines).csv()
