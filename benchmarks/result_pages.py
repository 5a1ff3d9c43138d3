"""Makes the result pages from rows: headline, calibration, similarity, training."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from statistics import fmean

from pages import section, table
from result_rows import (
    CHOOSING,
    DEFAULT,
    GROUPS,
    NO_VALIDATION,
    PAPER,
    REPORTING,
    TITLES,
    VALIDATION,
    Cell,
    Results,
    results,
    shown,
    title,
    with_error,
)

from gpcache import metrics
from gpcache.images.records import plural

NEED_TEXT = ("_vitb32:text", "_vitb16:text", "dtd_vitb32", "stanford_cars", "caltech20", "trash6")
Table = list[list[object]]

DATA = """
**Data**: CLIP features in the usual splits, and photos through `lite`. Defaults were chosen on the
*choosing data*; no default was tuned on the *reporting data*, which were run once. DTD ViT-B/32 and
the photos have five draws of the shots; the other files have one draw for each number of shots.
*text* means that every class has a text vector. Means are never taken over both kinds of data.

**± is a standard error**: over the draws, or, if there is one draw, over the test images.
"""
PROTOCOLS = """
**Protocols**: *no validation*: everything is chosen on the shots. *full validation*:
hyper-parameters are chosen by accuracy on the data set's validation rows. DTD ViT-B/32 and the
photos use training rows that are not shots. Cars has no test rows, so each half of its validation
rows is predicted with values chosen on the other half. scikit-learn's classifiers choose by their
own cross-validation, so they have no second protocol. ECE in %, 15 bins. *seconds* are those of a
fit with its search, on one core; methods that train by steps ran on one H200, so their seconds
cannot be compared with the others.
"""


def has_text(dataset: str) -> bool:
    """Whether the classes of a data set have text."""
    return any(part in dataset for part in NEED_TEXT)


def summary(found: Results, protocol: str, cells: Sequence[Cell]) -> Table:
    """A line for each method that ran on every cell, the highest mean accuracy first."""
    labels = [
        one for one in found.labels if cells and all(found.has(protocol, c, one) for c in cells)
    ]
    ranks = found.ranks(protocol, cells, labels)
    own = "held out" if protocol == NO_VALIDATION else "validation"
    rows: Table = [["method", "accuracy", "rank", "ECE", "NLL", f"{own} − test", "seconds"]]

    def mean(label: str, name: str = "accuracy") -> float:
        return fmean(found.mean(protocol, cell, label, name) for cell in cells)

    for label in sorted(labels, key=mean, reverse=True):
        error = math.sqrt(sum(found.error(protocol, cell, label) ** 2 for cell in cells)) / len(
            cells
        )
        gap = mean(label, f"{own.replace(' ', '_')}_accuracy") - mean(label)
        name = f"**{label}**" if label in (DEFAULT, PAPER) else label
        figures = [shown(ranks[label]), shown(mean(label, "ece")), shown(mean(label, "nll"), 3)]
        seconds = shown(mean(label, "seconds"), 2)
        rows.append(
            [name, with_error(mean(label), error), *figures, shown(gap, sign=True), seconds]
        )
    return rows


def summaries(found: Results, protocol: str, datasets: Sequence[str]) -> list[str]:
    """The summary of the cells with text, and that of the cells without."""
    parts = []
    for words, wanted in (("with text", True), ("without text", False)):
        cells = [one for one in found.cells(protocol, datasets) if has_text(one[0]) == wanted]
        # At one shot nothing is held out, and a few methods have no probabilities.
        many = [cell for cell in cells if cell[1] > 1]
        for few, kept in (("1 shot", [c for c in cells if c[1] == 1]), ("2 to 16 shots", many)):
            if kept:
                names = ", ".join(dict.fromkeys(title(data) for data, _ in kept))
                start = f"**{words.capitalize()}, {few}**: mean of "
                head = f"{start}{plural(len(kept), 'cell')} ({names})."
                parts += [head, table(summary(found, protocol, kept))]
    return parts or ["Not run yet."]


def cell_by_cell(found: Results, datasets: Sequence[str]) -> str:
    """GPCache, the paper's, and the best other method of each protocol, in every cell."""
    head = ["data", "shots", "GPCache", "as published, validation"]
    rows: Table = [[*head, "best other, no validation", "best other, validation"]]
    for cell in found.cells(NO_VALIDATION, datasets):
        others = []
        for protocol in (NO_VALIDATION, VALIDATION):
            names = [n for n in found.labels if n not in (DEFAULT, PAPER) and "GPCache" not in n]
            best = max(names, key=lambda n, p=protocol: _or_low(found.mean(p, cell, n)))
            ran = found.has(protocol, cell, best)
            others.append(f"{found.accuracy(protocol, cell, best)} {best}" if ran else "–")
        lines = ((NO_VALIDATION, DEFAULT), (VALIDATION, PAPER))
        mine = [found.accuracy(protocol, cell, label) for protocol, label in lines]
        rows.append([title(cell[0]), cell[1], *mine, *others])
    return table(rows)


def _or_low(value: float) -> float:
    return -1.0 if math.isnan(value) else value


def headline() -> list[str]:
    """Every method, with and without validation rows; unequal shots, wrong labels; transduction."""
    found = results("headline")
    parts = [DATA, PROTOCOLS, "The full table is [headline.csv](headline.csv)."]
    for heading, datasets in GROUPS.items():
        parts += [f"## {heading}"]
        for protocol in (NO_VALIDATION, VALIDATION):
            parts += [f"### {protocol.capitalize()}", *summaries(found, protocol, datasets)]
        parts += ["### Cell by cell", cell_by_cell(found, datasets)]
    parts += ["## Unequal shots and wrong labels"]
    parts += ["One to sixteen shots a class; or sixteen shots with a tenth of the labels wrong."]
    parts += [_by_method("robust", protocol) for protocol in ("unequal shots", "wrong labels")]
    parts += ["## All test images at once"]
    parts += [
        "A separate protocol, which cannot be compared with the others: the probabilities of each "
        "method are refined by TransCLIP's rule, which sees all test images together, without "
        "labels. It assumes classes of about equal size; those of Caltech are not."
    ]
    return [*parts, _by_method("transductive", "transductive")]


def _by_method(spec: str, protocol: str) -> str:
    """Accuracy of each method of a spec in every cell."""
    found = results(spec)
    rows: Table = [[protocol, "shots", *found.labels]]
    for cell in found.cells(protocol, (*CHOOSING, *REPORTING)):
        values = [found.accuracy(protocol, cell, one) for one in found.labels]
        rows.append([title(cell[0]), cell[1], *values])
    return table(rows)


def headline_csv() -> str:
    """The full table: one line for each protocol, cell and method."""
    found, stream = results("headline"), io.StringIO(newline="")
    names = ("accuracy", "ece", "nll", "seconds", "held_out_accuracy", "validation_accuracy")
    head = ["protocol", "kind", "data", "shots", "method", "draws", "standard_error", *names]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(head)
    for protocol in (NO_VALIDATION, VALIDATION):
        for kind, datasets in GROUPS.items():
            for cell in found.cells(protocol, datasets):
                for label in found.labels:
                    if draws := found.draws(protocol, cell, label):
                        error = f"{found.error(protocol, cell, label):.2f}"
                        means = [found.mean(protocol, cell, label, name) for name in names]
                        texts = ["" if math.isnan(one) else f"{one:.3f}" for one in means]
                        place = [protocol, kind.split()[0].lower(), *cell, label]
                        writer.writerow([*place, len(draws), error, *texts])
    return stream.getvalue()


def calibration() -> list[str]:
    """Calibration of the default, its held-out figures, prediction sets, and rejection."""
    found = results("headline")
    parts = [DATA, PROTOCOLS]
    for heading, datasets in GROUPS.items():
        parts += [f"## ECE of the default: {heading.lower()}", _own_figures(found, datasets)]
    parts += ["## Does the interval of the held-out accuracy hold?", _intervals()]
    parts += ["## Do prediction sets contain the true class as often as promised?", *_coverage()]
    return [*parts, "## Rejecting images of unknown classes", *_rejection()]


def _own_figures(found: Results, datasets: Sequence[str]) -> str:
    head = [
        "data",
        "shots",
        "accuracy",
        "held out",
        "ECE",
        "held-out ECE",
        "ECE of a perfect model",
    ]
    rows: Table = [[*head, "AURC"]]
    names = ("accuracy", "held_out_accuracy", "ece", "held_out_ece", "perfect_ece", "aurc")
    for cell in found.cells(NO_VALIDATION, datasets):
        figures = [shown(found.mean(NO_VALIDATION, cell, DEFAULT, name)) for name in names]
        rows.append([title(cell[0]), cell[1], *figures])
    text = (
        "*held out* is `loo_`: cross-validation on the shots, with everything chosen on the other "
        "folds. At two shots, the held-out models have one shot a class and are weaker than the "
        "final one. The shots of UCF101 are frames of the same videos, and easier than test rows. "
        "AURC in %: the mean error over all shares of images that are answered, lower is better."
    )
    return f"{text}\n\n{table(rows)}"


def _intervals() -> str:
    found = results("coverage")
    rows: Table = [["data", "draws", "held out", "test", "test inside the 95 % interval"]]
    for cell in found.cells(NO_VALIDATION, CHOOSING):
        draws = found.draws(NO_VALIDATION, cell, DEFAULT)
        inside = 0
        for row in draws:
            count = row["held_out_rows"]
            low, high = metrics.wilson_interval(round(row["held_out_accuracy"] * count), count)
            inside += low <= row["accuracy"] <= high
        means = [found.mean(NO_VALIDATION, cell, DEFAULT, name) for name in ("held_out_accuracy",)]
        means.append(found.mean(NO_VALIDATION, cell, DEFAULT))
        share = f"{inside} of {len(draws)}"
        rows.append([f"{title(cell[0])}, {cell[1]} shots", len(draws), *map(shown, means), share])
    return table(rows)


def _coverage() -> list[str]:
    found = results("coverage")
    rows: Table = [["data, 4 shots, 20 draws", "model", "promised", "coverage", "classes in a set"]]
    for cell in found.cells(NO_VALIDATION, CHOOSING):
        for label in found.labels:
            for error in ("0.05", "0.1", "0.2"):
                name = f"coverage_{error}"
                draws = [
                    row[name] for row in found.draws(NO_VALIDATION, cell, label) if name in row
                ]
                if draws:
                    spread = math.sqrt(sum((d - fmean(draws)) ** 2 for d in draws)) / len(draws)
                    size = found.mean(NO_VALIDATION, cell, label, f"set_size_{error}")
                    promised = f"{100 - 100 * float(error):.0f} %"
                    value = with_error(100 * fmean(draws), 100 * spread)
                    rows.append([title(cell[0]), label, promised, value, shown(size)])
    text = (
        "Coverage is the share of test images whose set contains the true class, ± its standard "
        "error over draws. Shots and test images of DTD are both single views."
    )
    return [text, table(rows)]


def _rejection() -> list[str]:
    found = results("rejection")
    head = ["data", "unknown", "shots", "method", "probability", "variance", "both"]
    rows: Table = [[*head, "refused, known", "refused, unknown"]]
    names = ("auroc_probability", "auroc_variance", "auroc_both", "refused_inside")
    datasets = [name for one in TITLES for name in (one, f"{one}:half")]
    for name, shots in found.cells(NO_VALIDATION, datasets):
        data = name.removesuffix(":half")
        cells = [(name, shots)] + [(f"{data}:other-half", shots)] * name.endswith(":half")
        unknown = "half of the classes" if name.endswith(":half") else "other photos"
        for label in found.labels:
            draws = [row for cell in cells for row in found.draws(NO_VALIDATION, cell, label)]
            figures = []
            for figure in (*names, "refused_outside"):
                values = [row[figure] for row in draws if row.get(figure) is not None]
                figures.append(shown(100 * fmean(values) if values else math.nan))
            rows.append([title(data), unknown, shots, label, *figures])
    text = (
        "*Half of the classes*: the model knows one half, and test images of the other half are "
        "unknown; then the other way round. Mean of both, and of five draws for DTD ViT-B/32 and "
        "the photos. *Other photos*: 1,000 unlabelled photos of no class. AUROC in % of scores "
        "that tell known from unknown: the highest probability, the posterior's variance, and both "
        "as one p-value, by which gpcache refuses at 5 %."
    )
    return [text, table(rows)]


def similarity() -> list[str]:
    """The projection beside the modules, and its options."""
    found = results("similarity")
    text = """
How a projection that is learned from unlabelled images changes accuracy: caltech20 photos through
`lite` with class names, hyper-parameters chosen on validation photos. S is learned from 1,000
photos of other scenes, where the paper has 500,000. B, W and C are the paper's modules in its own
settings; the lines with an option change one option of S. Mean ± standard error over the draws.
**With so few photos S does not help**: lines with it are as good as those without it, or worse.
"""
    cells = found.cells(VALIDATION, sorted({row["dataset"] for row in found.rows}))
    rows: Table = [["method", *(f"{shots} shots" for _, shots in cells)]]
    for label in found.labels:
        rows.append([label, *(found.accuracy(VALIDATION, cell, label) for cell in cells)])
    return [text, table(rows)]


def training() -> list[str]:
    """Methods with training compared with the same methods without."""
    found = results("headline")
    pairs = ((PAPER, "GPCache-F as published"), (DEFAULT, "GPCache-F"))
    pairs += (("Tip-Adapter", "Tip-Adapter-F"), ("APE", "APE-T"))
    text = """
Differences in points of test accuracy, trained minus untrained, on stored features: one view of
every image. **GPCache-F adds little without views.** Its queries are its keys, and the process
interpolates its keys: the training loss is near zero before the first step, so there is nothing
left to learn. Three things do help: augmented views of the shots as further queries; a second model
of another kind that is trained separately and weighted on held-out folds (APE-T if there is text);
and, most of all, the softmax likelihood. The untrained default uses it. GPCache-F trains the keys
of a regression, and is therefore worse than GPCache without text.
"""
    parts = [text]
    for protocol in (NO_VALIDATION, VALIDATION):
        rows: Table = [["data", "shots", *(f"{b} − {a}" for a, b in pairs)]]
        for cell in found.cells(protocol, (*CHOOSING, *REPORTING)):
            gaps = [found.mean(protocol, cell, b) - found.mean(protocol, cell, a) for a, b in pairs]
            rows.append([title(cell[0]), cell[1], *(shown(gap, sign=True) for gap in gaps)])
        parts += [f"## {protocol.capitalize()}", table(rows)]
    return [*parts, section("training-step")]
