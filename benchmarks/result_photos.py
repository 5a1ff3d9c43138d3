"""The page of the photos: methods, encoders, wrong labels, and what to label."""

from __future__ import annotations

from pages import table
from result_rows import (
    CHOOSING,
    DEFAULT,
    NO_VALIDATION,
    REPORTING,
    VALIDATION,
    Results,
    results,
    shown,
    title,
)

PHOTOS = ("caltech20", "trash6")
AT_RANDOM, SUGGESTED = "labelled at random", "labelled as suggested"
Table = list[list[object]]

TEXT = """
caltech20 (20 classes of Caltech-101: 400 photos to draw from, 378 to test on) and trash6 (six
materials of TrashNet: 120 and 480) through the encoder `lite`, with class names. Most classes of
caltech20 are ImageNet classes, which the image network of `lite` was trained on; those of trash6
are not. Five draws. The sections below answer other questions, with other draws.
"""
VIEWS = """
The photos themselves instead of stored features: CALIP sees places in a photo, TIMO every prompt,
CoOp learns prompts, and methods that train, GDA and ProKeR see ten views of each shot. Keys are
means of ten views. Three draws, but one at four shots without validation photos. CoOp has 25 epochs
where its paper has 50 at one shot; a dash marks what was not run.
"""
ENCODERS = """
The encoders that ship: class names alone, logistic regression without names, and GPCache. The last
section of this page has the figures with which `lite` was chosen.
"""
ERRORS = """
A tenth of the labels of the shots is wrong (protocol *wrong labels*). *AP*: average precision in %
of the ranking by suspicion; *certain*: labels that `gpcache check` calls almost certainly wrong,
and the share of them that is wrong; *listed*: labels that are certain or worth a look, and the
share of the wrong labels among them that is found. *LogisticRegression* ranks by its
cross-validated probability of the given label, as cleanlab does, and lists labels that it does not
predict. Errors that people make are not random: look-alike classes are harder.
"""
SUGGEST = """
Accuracy in % by the number of labelled photos. They are of any class, from a random three quarters
of the training photos: drawn at random, or chosen by `gpcache suggest` before any label is known.
GPCache with class names, mean ± standard error over ten draws.
"""


def photos() -> list[str]:
    """The results on the photos."""
    found = results("headline")
    parts = [TEXT]
    for protocol in (NO_VALIDATION, VALIDATION):
        for name in PHOTOS:
            parts += [f"## {title(name)}: {protocol}", _by_shots(found, protocol, name)]
    parts += ["## Methods that need the photos", VIEWS]
    for protocol in (NO_VALIDATION, VALIDATION):
        body = _by_shots(results("photos"), protocol, PHOTOS[0])
        parts += [f"### {protocol.capitalize()}", body]
    parts += ["## Encoders", ENCODERS, _encoders()]
    parts += ["## Wrong labels that are found", ERRORS, _errors()]
    return [*parts, "## What to label", SUGGEST, _suggested()]


def _by_shots(found: Results, protocol: str, name: str) -> str:
    """Accuracy and ECE of every method by shots."""
    shots = [cell[1] for cell in found.cells(protocol, (name,))]
    rows: Table = [["accuracy / ECE", *(f"{k} shot{'s' * (k > 1)}" for k in shots)]]
    for label in found.labels:
        values = [
            " / ".join(
                shown(found.mean(protocol, (name, k), label, one)) for one in ("accuracy", "ece")
            )
            for k in shots
        ]
        if any(not value.startswith("–") for value in values):
            rows.append([label, *values])
    return table(rows)


def _encoders() -> str:
    """Accuracy of each encoder by data, method and shots."""
    lines = results("encoders").labels
    rows: Table = [["data", "shots", "encoder", *lines]]
    for cell in results("encoders").cells(NO_VALIDATION, PHOTOS):
        for encoder in ("lite0", "lite"):
            found = results("encoders", encoder)
            values = [found.accuracy(NO_VALIDATION, cell, one) for one in lines]
            rows.append([cell[0], cell[1], f"`{encoder}`", *values])
    return table(rows)


def _errors() -> str:
    """What is found of wrong labels, by data and method."""
    found, protocol = results("label-errors"), "wrong labels"
    head = ["data", "shots", "labels", "by", "AP", "certain", "wrong %", "listed", "found %"]
    rows: Table = [head]
    for cell in found.cells(protocol, (*CHOOSING, *REPORTING)):
        for label in found.labels:
            names = ("ap", "certain", "certain_wrong", "listed", "found")
            figures = [shown(found.mean(protocol, cell, label, f"errors_{one}")) for one in names]
            if label != DEFAULT:
                figures[1] = "–"  # it has no list of certain errors
            count = found.mean(protocol, cell, label, "n_shots")
            rows.append([title(cell[0]), cell[1], f"{count:.0f}", label, *figures])
    return table(rows)


def _suggested() -> str:
    """Accuracy by number of labels, at random and as suggested."""
    found = results("suggest")
    rows: Table = [["data", "labels", AT_RANDOM, SUGGESTED]]
    for cell in found.cells(AT_RANDOM, CHOOSING):
        count = found.mean(AT_RANDOM, cell, DEFAULT, "n_shots")
        values = [found.accuracy(one, cell, DEFAULT) for one in (AT_RANDOM, SUGGESTED)]
        rows.append([title(cell[0]), f"{count:.0f}", *values])
    return table(rows)
