"""The pages of the comparison on held-out accuracy and on photos."""

from __future__ import annotations

import math

import numpy as np
from comparison_data import INTERVAL_SHOTS, PHOTO_SETS, SETS, SHOTS
from comparison_methods import DEFAULT, METHODS
from comparison_pages import DATA, GROUPS, made_by, rows_by_shots, shown
from comparison_summary import Results
from pages import table, write_page

from gpcache import metrics


def held_out_page(results: Results) -> None:
    """What `loo_` says beside test, in every cell and in twenty draws."""
    text = """
*Held out* is the accuracy that `fit` prints and `loo_` holds: folds of the shots, with everything
learned again without the held-out fold, at hyper-parameters that the other folds chose. *Test* is
the accuracy on the test rows. At one shot nothing can be held out. At two shots a model with one
shot a class is tested, which is weaker than the model with two. UCF101 is apart: its shots are
frames of the same videos, so held-out shots are easier than test rows.
"""
    parts = [DATA, text, "## In short", table(_gaps(results))]
    for group, heading in GROUPS.items():
        rows = _held_out_rows(results, group)
        parts += [f"## {heading}", table(rows) if len(rows) > 1 else "Not measured yet."]
    parts += ["## Does the interval hold?", *_intervals(results)]
    write_page(
        "held-out",
        "Does the printed accuracy hold?",
        *parts,
        made_by=made_by(results, [DEFAULT]),
    )


def _held_out_rows(results: Results, group: str) -> list[list[object]]:
    rows: list[list[object]] = [
        ["data", "shots", "held out", "test", "held out − test", "held-out ECE", "test ECE"]
    ]
    for cell in results.plain_cells(group):
        held, test = results.mean(*cell, DEFAULT, "loo"), results.mean(*cell, DEFAULT)
        if np.isfinite(held):
            ece = [results.mean(*cell, DEFAULT, key) for key in ("loo_ece", "ece")]
            figures = [shown(held), shown(test), shown(held - test, sign=True)]
            rows.append([SETS[cell[0]].title, cell[1], *figures, *(shown(e) for e in ece)])
    return rows


def _gaps(results: Results) -> list[list[object]]:
    rows: list[list[object]] = [
        ["cells", "number", "mean distance of held out and test", "mean of held out − test"]
    ]
    for group in GROUPS:
        parts: dict[str, list[float]] = {f"{group}, 4 shots and more": [], f"{group}, 2 shots": []}
        parts["UCF101, 4 shots and more"] = []
        for data, shots in results.plain_cells(group):
            gap = results.mean(data, shots, DEFAULT, "loo") - results.mean(data, shots, DEFAULT)
            label = f"{group}, {'2 shots' if shots == 2 else '4 shots and more'}"
            if data.startswith("ucf101") and shots > 2:
                label = "UCF101, 4 shots and more"
            if np.isfinite(gap):
                parts[label].append(gap)
        for label, gaps in parts.items():
            if gaps:
                size, mean = float(np.mean(np.abs(gaps))), float(np.mean(gaps))
                rows.append([label, len(gaps), shown(size, 2), shown(mean, 2, sign=True)])
    return rows


def _intervals(results: Results) -> list[str]:
    rows: list[list[object]] = [["data", "draws", "held out", "test", "test inside the interval"]]
    for data, shots in results.protocol_cells("interval", "choosing"):
        found = results.draws(data, shots, DEFAULT, "interval").values()
        inside = 0
        for row in found:
            low, high = metrics.wilson_interval(round(row["loo"] * row["loo_n"]), row["loo_n"])
            inside += low <= row["accuracy"] <= high
        held, test = (
            results.mean(data, shots, DEFAULT, key, "interval") for key in ("loo", "accuracy")
        )
        rows.append(
            [SETS[data].title, len(found), shown(held), shown(test), f"{inside} of {len(found)}"]
        )
    text = (
        f"Draws of {INTERVAL_SHOTS} photos a class, with names. The interval is the 95 % interval "
        "that `fit` prints beside the held-out accuracy."
    )
    return [text, table(rows)] if len(rows) > 1 else ["Not measured yet."]


def photos_page(results: Results) -> None:
    """The photo sets by themselves: names, no names, and every method."""
    text = """
**Data**: caltech20 (20 classes of Caltech-101: 400 photos to draw from, 378 to test on) and trash6
(six materials of TrashNet: 120 and 480), through the encoder `lite`, prompt "a photo of a {}.".
Most classes of caltech20 are ImageNet classes, which the image network of `lite` was trained on;
those of trash6 are not. The defaults were chosen on both sets.

**Protocol**: no validation set; means over five draws of the shots, ± the standard error over the
draws. *Held out* is what `loo_` says. The other methods are those of [every method without a
validation set](methods-shared.md), from the same rows.
"""
    parts = [text]
    for name in PHOTO_SETS:
        named, plain = f"{name} (names)", f"{name} (no names)"
        if not any(results.draws(named, k, DEFAULT) for k in SHOTS):
            continue
        ran = [m for m in METHODS if any(results.draws(named, k, m) for k in SHOTS)]
        parts += [f"## {name}", "### The default", table(_photo_rows(results, named, plain))]
        parts += ["### With names: accuracy / ECE", table(rows_by_shots(results, named, ran))]
        without = [m for m in ran if METHODS[m].uses_text and not METHODS[m].needs_text]
        parts += ["### Without names: accuracy / ECE"]
        parts += [
            "Methods that use no text are the same as above.",
            table(rows_by_shots(results, plain, without)),
        ]
    write_page(
        "photos",
        "A few photos through `lite`",
        *parts,
        made_by=made_by(results, METHODS),
    )


def _photo_rows(results: Results, named: str, plain: str) -> list[list[object]]:
    head = ["shots", "with names", "NLL", "held out", "without names", "NLL", "held out"]
    rows: list[list[object]] = [[*head, "names − no names"]]
    for shots in SHOTS:
        figures = [_photo_figures(results, data, shots) for data in (named, plain)]
        one, other = (results.draws(data, shots, DEFAULT) for data in (named, plain))
        shared = one.keys() & other.keys()
        gaps = [100 * (one[draw]["accuracy"] - other[draw]["accuracy"]) for draw in shared]
        gap = f"{shown(float(np.mean(gaps)), sign=True)} ± {shown(_error(gaps))}" if gaps else "–"
        rows.append([shots, *figures[0], *figures[1], gap])
    return rows


def _photo_figures(results: Results, data: str, shots: int) -> list[str]:
    draws = [100 * row["accuracy"] for row in results.draws(data, shots, DEFAULT).values()]
    if not draws:
        return ["–"] * 3
    mean = f"{shown(results.mean(data, shots, DEFAULT))} ± {shown(_error(draws))}"
    nll, held = (results.mean(data, shots, DEFAULT, key) for key in ("nll", "loo"))
    return [mean, shown(nll, 3), shown(held)]


def _error(values: list[float]) -> float:
    """The standard error of a mean over draws."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else math.nan
