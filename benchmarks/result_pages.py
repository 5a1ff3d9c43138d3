"""Makes the result pages from rows: headline, calibration, similarity, training."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from itertools import product
from statistics import fmean, pstdev, stdev

from pages import table, text
from result_rows import (
    ALL,
    CHOOSING,
    DEFAULT,
    GROUPS,
    NO_VALIDATION,
    PAPER,
    TITLES,
    VALIDATION,
    Cell,
    Results,
    by_cell,
    results,
    shown,
    title,
    with_error,
)

from gpcache import metrics
from gpcache.images.records import plural

NEED_TEXT = ("_vitb32:text", "_vitb16:text", "dtd_vitb32", "stanford_cars", "caltech20", "trash6")
Table = list[list[object]]


def has_text(dataset: str) -> bool:
    """Whether the classes of a data set have text."""
    return any(part in dataset for part in NEED_TEXT)


def summary(found: Results, cells: Sequence[Cell]) -> str:
    """A line for each method that ran on every cell, the highest mean accuracy first."""
    labels = [one for one in found.labels if all(found.draws(cell, one) for cell in cells)]
    ranks = found.ranks(cells, labels)
    own = "held out" if cells[0].protocol == NO_VALIDATION else "validation"
    rows: Table = [["method", "accuracy", "rank", "ECE", "NLL", f"{own} − test", "seconds"]]

    def mean(label: str, name: str = "accuracy") -> float:
        return fmean(found.mean(cell, label, name) for cell in cells)

    for label in sorted(labels, key=mean, reverse=True):
        error = math.hypot(*(found.error(cell, label) for cell in cells)) / len(cells)
        gap = mean(label, f"{own.replace(' ', '_')}_accuracy") - mean(label)
        name = f"**{label}**" if label in (DEFAULT, PAPER) else label
        figures = [shown(ranks[label]), shown(mean(label, "ece")), shown(mean(label, "nll"), 3)]
        figures += [shown(gap, sign=True), shown(mean(label, "seconds"), 2)]
        rows.append([name, with_error(mean(label), error), *figures])
    return table(rows)


def summaries(found: Results, protocol: str, datasets: Sequence[str]) -> list[str]:
    """The summary of the cells with text, and that of the cells without."""
    parts = []
    for words, wanted in (("With text", True), ("Without text", False)):
        cells = [one for one in found.cells(protocol, datasets) if has_text(one.data) == wanted]
        # At one shot nothing is held out, and a few methods have no probabilities.
        for few, least, most in (("1 shot", 1, 1), ("2 to 16 shots", 2, 16)):
            if kept := [cell for cell in cells if least <= cell.shots <= most]:
                names = ", ".join(dict.fromkeys(title(cell.data) for cell in kept))
                start = f"**{words}, {few}**: mean of "
                parts += [f"{start}{plural(len(kept), 'cell')} ({names}).", summary(found, kept)]
    return parts or ["Not run yet."]


def cell_by_cell(found: Results, datasets: Sequence[str]) -> str:
    """GPCache, the paper's, and the best other method of each protocol, in every cell."""
    others = [name for name in found.labels if "GPCache" not in name]

    def best_other(cell: Cell) -> str:
        ran = [name for name in others if found.draws(cell, name)]
        best = max(ran, key=lambda name: found.mean(cell, name), default="")
        return f"{found.accuracy(cell, best)} {best}" if best else "–"

    def values(cell: Cell) -> list[str]:
        validated = cell._replace(protocol=VALIDATION)
        mine = [found.accuracy(cell, DEFAULT), found.accuracy(validated, PAPER)]
        return [*mine, best_other(cell), best_other(validated)]

    head = ["GPCache", "as published, validation"]
    head += ["best other, no validation", "best other, validation"]
    return by_cell(head, found.cells(NO_VALIDATION, datasets), values)


BASELINES = ("GDA", "LP++", "ProKeR", "Linear probe", "GPCache-F", "LogisticRegressionCV")
BASELINES += ("Linear SVC", "Shrinkage LDA", "1-nearest-neighbour")


def where_below(found: Results, datasets: Sequence[str]) -> str:
    """The cells where a usual baseline is better than the default, the largest difference first."""
    lines = []
    for cell in found.cells(NO_VALIDATION, datasets):
        ran = [name for name in BASELINES if found.draws(cell, name)]
        best = max(ran, key=lambda name: found.mean(cell, name))
        # Draw by draw, so that an easy draw is easy for both.
        pairs = zip(found.draws(cell, DEFAULT), found.draws(cell, best), strict=True)
        differences = [100 * (one["accuracy"] - other["accuracy"]) for one, other in pairs]
        if (mean := fmean(differences)) >= 0:
            continue
        if (n := len(differences)) > 1:
            error = stdev(differences) / math.sqrt(n)
        else:
            error = math.hypot(found.error(cell, DEFAULT), found.error(cell, best))
        mine, theirs = found.accuracy(cell, DEFAULT), found.accuracy(cell, best)
        difference = f"{shown(mean, sign=True)} ± {error:.1f}"
        lines.append((mean, [title(cell.data), cell.shots, mine, best, theirs, difference]))
    head = ["data", "shots", "GPCache", "best baseline", "its accuracy", "difference"]
    lines.sort(key=lambda one: one[0])
    return table([head, *(line for _, line in lines)]) if lines else "No cell."


def headline() -> list[str]:
    """Every method, with and without validation rows; unequal shots, wrong labels; transduction."""
    found = results("headline")
    parts = [text("data"), text("protocols"), "The full table is [headline.csv](headline.csv)."]
    for heading, datasets in GROUPS.items():
        parts += [f"## {heading}"]
        for protocol in (NO_VALIDATION, VALIDATION):
            parts += [f"### {protocol.capitalize()}", *summaries(found, protocol, datasets)]
        parts += ["### Cell by cell", cell_by_cell(found, datasets)]
        parts += ["### Where a baseline is better", text("below", baselines=", ".join(BASELINES))]
        parts += [where_below(found, datasets)]
    parts += ["## Unequal shots and wrong labels"]
    parts += ["One to sixteen shots a class; or sixteen shots with a tenth of the labels wrong."]
    parts += [_by_method("robust", protocol) for protocol in ("unequal shots", "wrong labels")]
    parts += ["## All test images at once"]
    return [*parts, text("transductive"), _by_method("transductive", "transductive")]


def _by_method(spec: str, protocol: str) -> str:
    """Accuracy of each method of a spec in every cell."""
    found = results(spec)
    cells = found.cells(protocol, ALL)
    return by_cell(
        found.labels, cells, lambda c: (found.accuracy(c, one) for one in found.labels), protocol
    )


def headline_csv() -> str:
    """The full table: one line for each protocol, cell and method."""
    found, stream = results("headline"), io.StringIO(newline="")
    names = ("accuracy", "ece", "nll", "seconds", "held_out_accuracy", "validation_accuracy")
    writer = csv.writer(stream, lineterminator="\n")
    head = ["protocol", "kind", "data", "shots", "method", "draws", "standard_error"]
    writer.writerow([*head, *names])
    for protocol, (kind, datasets) in product((NO_VALIDATION, VALIDATION), GROUPS.items()):
        for cell, label in product(found.cells(protocol, datasets), found.labels):
            if draws := found.draws(cell, label):
                means = [found.mean(cell, label, name) for name in names]
                texts = ["" if math.isnan(one) else f"{one:.3f}" for one in means]
                place = [protocol, kind.split()[0].lower(), cell.data, cell.shots, label]
                writer.writerow([*place, len(draws), f"{found.error(cell, label):.2f}", *texts])
    return stream.getvalue()


def calibration() -> list[str]:
    """Calibration of the default, its held-out figures, prediction sets, and rejection."""
    found = results("headline")
    parts = [text("data"), text("protocols")]
    for heading, datasets in GROUPS.items():
        parts += [f"## ECE of the default: {heading.lower()}", *_own_figures(found, datasets)]
    parts += ["## Does the interval of the held-out accuracy hold?", _intervals()]
    parts += ["## Do prediction sets contain the true class as often as promised?", *_coverage()]
    return [*parts, "## Rejecting images of unknown classes", *_rejection()]


def _own_figures(found: Results, datasets: Sequence[str]) -> list[str]:
    columns = {"accuracy": "accuracy", "held out": "held_out_accuracy", "ECE": "ece"}
    columns |= {"held-out ECE": "held_out_ece", "ECE of a perfect model": "perfect_ece"}
    columns |= {"AURC": "aurc"}
    cells = found.cells(NO_VALIDATION, datasets)
    names = columns.values()
    figures = by_cell(columns, cells, lambda c: (found.figure(c, DEFAULT, name) for name in names))
    return [text("held-out"), figures]


def _intervals() -> str:
    found = results("coverage")
    rows: Table = [["data", "draws", "held out", "test", "test inside the 95 % interval"]]
    for cell in found.cells(NO_VALIDATION, CHOOSING):
        draws = found.draws(cell, DEFAULT)
        inside = 0
        for row in draws:
            count = row["held_out_rows"]
            low, high = metrics.wilson_interval(round(row["held_out_accuracy"] * count), count)
            inside += low <= row["accuracy"] <= high
        means = [found.figure(cell, DEFAULT, name) for name in ("held_out_accuracy", "accuracy")]
        data = f"{title(cell.data)}, {cell.shots} shots"
        rows.append([data, len(draws), *means, f"{inside} of {len(draws)}"])
    return table(rows)


def _coverage() -> list[str]:
    found = results("coverage")
    rows: Table = [["data, 4 shots, 20 draws", "model", "promised", "coverage", "classes in a set"]]
    cells, errors = found.cells(NO_VALIDATION, CHOOSING), ("0.05", "0.1", "0.2")
    for cell, label, error in product(cells, found.labels, errors):
        name = f"coverage_{error}"
        if draws := [100 * row[name] for row in found.draws(cell, label) if name in row]:
            value = with_error(fmean(draws), pstdev(draws) / math.sqrt(len(draws)))
            size = found.figure(cell, label, f"set_size_{error}")
            rows.append([title(cell.data), label, f"{100 - 100 * float(error):.0f} %", value, size])
    return [text("coverage"), table(rows)]


def _rejection() -> list[str]:
    found = results("rejection")
    head = ["data", "unknown", "shots", "method", "probability", "variance", "both"]
    rows: Table = [[*head, "refused, known", "refused, unknown"]]
    names = ("auroc_probability", "auroc_variance", "auroc_both")
    names += ("refused_inside", "refused_outside")
    datasets = [name for one in TITLES for name in (one, f"{one}:half")]
    for cell, label in product(found.cells(NO_VALIDATION, datasets), found.labels):
        data = cell.data.removesuffix(":half")
        draws, unknown = found.draws(cell, label), "other photos"
        if cell.data != data:
            draws += found.draws(cell._replace(data=f"{data}:other-half"), label)
            unknown = "half of the classes"
        figures = []
        for name in names:
            values = [row[name] for row in draws if row.get(name) is not None]
            figures.append(shown(100 * fmean(values) if values else math.nan))
        rows.append([title(data), unknown, cell.shots, label, *figures])
    return [text("rejection"), table(rows)]


def similarity() -> list[str]:
    """The projection beside the modules, and its options."""
    found = results("similarity")
    cells = found.cells(VALIDATION, sorted({row["dataset"] for row in found.rows}))
    head = ["method", *(f"{cell.shots} shots" for cell in cells)]
    lines = ([one, *(found.accuracy(cell, one) for cell in cells)] for one in found.labels)
    return [text("similarity"), table([head, *lines])]


def training() -> list[str]:
    """Methods with training compared with the same methods without."""
    found = results("headline")
    pairs = ((PAPER, "GPCache-F as published"), (DEFAULT, "GPCache-F"))
    pairs += (("Tip-Adapter", "Tip-Adapter-F"), ("APE", "APE-T"))

    def gaps(cell: Cell) -> list[str]:
        means = [(found.mean(cell, one), found.mean(cell, other)) for one, other in pairs]
        return [shown(trained - free, sign=True) for free, trained in means]

    parts, head = [text("training")], [f"{trained} − {free}" for free, trained in pairs]
    for protocol in (NO_VALIDATION, VALIDATION):
        body = by_cell(head, found.cells(protocol, ALL), gaps)
        parts += [f"## {protocol.capitalize()}", body]
    return parts
