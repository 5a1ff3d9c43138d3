"""The page of the paper's tables and figures, and what can be reproduced here."""

from __future__ import annotations

import math
from itertools import product
from statistics import fmean, stdev

from pages import section, table, text
from result_rows import (
    ALL,
    NO_VALIDATION,
    PAPER,
    REPORTING,
    VALIDATION,
    Cell,
    by_cell,
    results,
    shown,
    title,
)

from gpcache.benchmark.output import paper_specs
from gpcache.benchmark.published import published
from gpcache.benchmark.spec import read_spec

Rows = list[list[object]]
WITH_GROUPS = ("dtd_rn50", "stanford_cars_vitb32")


def paper() -> list[str]:
    """Every table and figure of the paper."""
    parts = [
        text("paper"),
        "## Few-shot: the paper's method on four reporting data sets",
        _few_shot(),
        "## Modules",
        _modules(),
        "## Effect of η and σ²",
        _effects(),
        "## Approximations",
        "Seconds are those of one CPU core; GPCache-F, and 4,096 Fourier features on Cars, "
        "ran on one H200.",
        _approximations(),
        f"{text('groups')}\n{_cost_of_groups()}",
        "## Splits into groups",
        _splits(),
        "## Approximations of the default model",
        text("explicit"),
        _explicit(),
    ]
    return [*parts, section("approximations-gpu")]


def _few_shot() -> str:
    found, paper = results("headline"), published("few_shot")

    def values(cell: Cell) -> list[str]:
        name = cell.data.split("_vitb")[0].removesuffix("_rn50")
        theirs = paper.value("gpcache", name) if cell.shots == 16 else None
        return [found.accuracy(cell, PAPER), "–" if theirs is None else f"{theirs:.2f}"]

    cells = found.cells(VALIDATION, [data for data in REPORTING if ":" not in data])
    return by_cell(["GPCache as published", "published, RN50, 16 shots"], cells, values)


def _modules() -> str:
    found, paper = results("modules"), published("modules")
    cells = found.cells(VALIDATION, ["dtd_vitb32"])
    heads = [f"DTD, {cell.shots} shots, {kind}" for kind in ("free", "trained") for cell in cells]
    rows: Rows = [["module", "published, free / trained", *heads]]
    for name in ("B", "B+W", "B+W+C") if cells else ():
        theirs = [f"{paper.value(name, kind):.2f}" for kind in ("training-free", "trained")]
        labels = (name, f"{name}, trained")
        values = [found.accuracy(cell, label) for label in labels for cell in cells]
        rows.append([name, " / ".join(theirs), *values])
    return table(rows)


def _effects() -> str:
    found = results("hyper-parameters")
    rows: Rows = [["setting", "test accuracy", "accuracy on validation rows"]]
    for label, cell in product(found.labels, found.cells(VALIDATION, ["dtd_vitb32"])):
        own = found.figure(cell, label, "validation_accuracy")
        rows.append([label, found.accuracy(cell, label), own])
    return table(rows)


def _approximations() -> str:
    found = results("approximations")
    cells = found.cells(VALIDATION, WITH_GROUPS)
    heads = (f"{title(cell.data)}: accuracy, seconds" for cell in cells)
    spec, theirs = read_spec(paper_specs()["approximations"]), published("approximations")
    rows_of = {line.label: line.published for line in spec.methods}
    rows: Rows = [["posterior", *heads, "published, ImageNet: accuracy, seconds"]]
    for label in found.labels:
        values = [f"{found.accuracy(c, label)}, {found.figure(c, label, 'seconds')}" for c in cells]
        kind = "trained" if label.startswith("GPCache-F") else "training-free"
        beside = [theirs.value(rows_of.get(label, ""), f"{kind}{s}") for s in ("", " seconds")]
        rows.append([label, *values, "–" if None in beside else f"{beside[0]}, {beside[1]:g}"])
    return table(rows)


def _explicit() -> str:
    """Accuracy, ECE and seconds of features of the default model, beside the exact posterior."""
    found = results("explicit")
    cells = found.cells(NO_VALIDATION, ALL)
    rows: Rows = [["posterior", *(f"{title(cell.data)}: accuracy / ECE / s" for cell in cells)]]
    figures = (("accuracy", 2), ("ece", 2), ("seconds", 1))
    for label in found.labels:
        values = ([found.figure(cell, label, *one) for one in figures] for cell in cells)
        rows.append([label, *map(" / ".join, values)])
    return table(rows)


def _cost_of_groups() -> str:
    """Points that 8 groups cost on Cars, as a sentence."""
    found, cell = results("approximations"), Cell(VALIDATION, "stanford_cars_vitb32", 16)
    labels = ("GPCache, exact", "GPCache, groups, n_groups = 8")
    exact, groups = (found.mean(cell, label) for label in labels)
    gap = shown(exact - groups)
    return "" if gap == "–" else f"On Cars at 16 shots 8 groups cost {gap} points."


def _splits() -> str:
    found = results("group-splits")
    rows: Rows = [["method", "data", "splits", "mean", "deviation", "lowest", "highest"]]
    families: dict[str, list[str]] = {}
    for label in found.labels:
        families.setdefault(label.split(",")[0], []).append(label)
    for (family, labels), cell in product(families.items(), found.cells(VALIDATION, WITH_GROUPS)):
        means = [found.mean(cell, label) for label in labels]
        if values := [value for value in means if not math.isnan(value)]:
            deviation = stdev(values) if len(values) > 1 else math.nan
            figures = (fmean(values), deviation, min(values), max(values))
            rows.append(
                [family, title(cell.data), len(values), *(shown(one, 2) for one in figures)]
            )
    return table(rows)
