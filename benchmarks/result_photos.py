"""The page of the photos: methods, encoders, wrong labels, what to label, and updates."""

from __future__ import annotations

import math
from itertools import product
from statistics import fmean

from pages import table, text
from result_rows import ALL, CHOOSING, DEFAULT, NO_VALIDATION, VALIDATION, results, shown, title

from gpcache.images.records import plural

PHOTOS = ("caltech20", "trash6")
AT_RANDOM, SUGGESTED = "labelled at random", "labelled as suggested"
ADDED = {"one by one": "added one by one", "kept": "added at kept choices"}
BARS = {"accuracy": 0.5, "ECE": 1.0}
Table = list[list[object]]


def photos() -> list[str]:
    """The results on the photos."""
    parts, protocols = [text("photos")], (NO_VALIDATION, VALIDATION)
    for protocol, name in product(protocols, PHOTOS):
        parts += [f"## {title(name)}: {protocol}", _by_shots("headline", protocol, name)]
    parts += ["## Methods that need the photos", text("views")]
    for protocol in protocols:
        parts += [f"### {protocol.capitalize()}", _by_shots("photos", protocol, PHOTOS[0])]
    parts += ["## Encoders", text("encoders"), _encoders()]
    parts += ["## Wrong labels that are found", text("label-errors"), _errors()]
    parts += ["## What to label", text("suggest"), _suggested()]
    return [*parts, "## Photos added one by one", text("updates"), _updates()]


def _by_shots(spec: str, protocol: str, name: str) -> str:
    """Accuracy and ECE of every method of a spec by shots."""
    found = results(spec)
    cells = found.cells(protocol, (name,))
    rows: Table = [["accuracy / ECE", *(plural(cell.shots, "shot") for cell in cells)]]
    for label in found.labels:
        figures = (
            [found.figure(cell, label, one) for one in ("accuracy", "ece")] for cell in cells
        )
        values = [" / ".join(one) for one in figures]
        if any(not value.startswith("–") for value in values):
            rows.append([label, *values])
    return table(rows)


def _encoders() -> str:
    """Accuracy of each encoder by data, method and shots."""
    lines = results("encoders").labels
    rows: Table = [["data", "shots", "encoder", *lines]]
    cells = results("encoders").cells(NO_VALIDATION, PHOTOS)
    for cell, encoder in product(cells, ("lite0", "lite")):
        found = results("encoders", encoder)
        values = [found.accuracy(cell, one) for one in lines]
        rows.append([cell.data, cell.shots, f"`{encoder}`", *values])
    return table(rows)


def _errors() -> str:
    """What is found of wrong labels, by data and method."""
    found = results("label-errors")
    rows: Table = [
        ["data", "shots", "labels", "by", "AP", "certain", "wrong %", "listed", "found %"]
    ]
    for cell, label in product(found.cells("wrong labels", ALL), found.labels):
        names = ("ap", "certain", "certain_wrong", "listed", "found")
        figures = [found.figure(cell, label, f"errors_{one}") for one in names]
        if label != DEFAULT:
            figures[1] = "–"  # it has no list of certain errors
        count = found.figure(cell, label, "n_shots", 0)
        rows.append([title(cell.data), cell.shots, count, label, *figures])
    return table(rows)


def _suggested() -> str:
    """Accuracy by number of labels, at random and as suggested."""
    found = results("suggest")
    rows: Table = [["data", "labels", AT_RANDOM, SUGGESTED]]
    for cell in found.cells(AT_RANDOM, CHOOSING):
        both = (cell, cell._replace(protocol=SUGGESTED))
        values = [found.accuracy(one, DEFAULT) for one in both]
        rows.append([title(cell.data), found.figure(cell, DEFAULT, "n_shots", 0), *values])
    return table(rows)


def _updates() -> str:
    """Accuracy and ECE of a fit of all photos, and of models that they were added to."""
    found = results("updates")
    rows: Table = [["data", "figure", "at once", *ADDED, "one by one − at once", "bar"]]
    for cell, (figure, bar) in product(found.cells(NO_VALIDATION, PHOTOS), BARS.items()):
        name = figure.lower()
        cells = [cell, *(cell._replace(protocol=one) for one in ADDED.values())]
        at_once, one_by_one = (
            {row["seed"]: 100 * row[name] for row in found.draws(one, DEFAULT)} for one in cells[:2]
        )
        gaps = [one_by_one[seed] - at_once[seed] for seed in one_by_one] or [math.nan]
        least, largest = (shown(one(gaps), sign=True) for one in (min, max))
        gap = f"{shown(fmean(gaps), 2, sign=True)} (draws: {least} to {largest})"
        means = [found.figure(one, DEFAULT, name) for one in cells]
        rows.append([cell.data, figure, *means, gap, f"± {bar:g}"])
    return table(rows)
