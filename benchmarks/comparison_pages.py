"""The pages of the comparison on all data: the default beside baselines, and every method."""

from __future__ import annotations

import math
from collections.abc import Iterable
from textwrap import fill

import numpy as np
from comparison_data import SETS, SHOTS
from comparison_methods import BASELINES, DEFAULT, FORMER, METHODS, ROBUST
from comparison_summary import MARGIN, Difference, Results
from pages import table, write_page

GROUPS = {
    "choosing": "Choosing sets: the defaults were chosen on them",
    "reporting": "Reporting sets: no default was chosen on them",
}
DATA = """
**Data**: CLIP features of published splits (Cars has no test split: its validation split is the
test set) and the photo sets caltech20 and trash6 through the encoder `lite`, with class names as
text (prompt "a photo of a {}.") and without. DTD ViT-B/32 and the photos have five draws of the
shots; the other files hold one draw.
"""
PROTOCOL = """
**Protocol**: no validation set. Every method gets the shots and, where there is any, the text.
Hyper-parameters come from cross-validation on the shots, or are shipped. scikit-learn's
estimators run as a user would write them: `LogisticRegressionCV` and a grid search over C for
`LinearSVC` in five stratified folds (fewer where there are fewer shots),
`LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")` (`shrinkage=0.5` at two shots, where
"auto" fails), and one nearest neighbour. At one shot nothing can be cross-validated: there they are
`LogisticRegression(C=10)`, `LinearSVC(C=1)` and the nearest class mean.
"""
ERROR_TEXT = """
± is the standard error of the difference: over the five draws, or over the test rows (paired) where
there is one draw.
"""


def made_by(results: Results, names: Iterable[str]) -> str:
    """The commands, and the commits of the rows that a page shows."""
    commits = sorted({commit for name in names for commit in results.made_by[name]})
    return (
        "`python benchmarks/comparison.py` and then `python benchmarks/comparison.py --render`, "
        f"from rows of commit {', '.join(commits)}"
    )


def shown(value: float, digits: int = 1, *, sign: bool = False) -> str:
    """A figure, or a dash where there is none."""
    if not math.isfinite(value):
        return "–"
    return f"{value:{'+' if sign else ''}.{digits}f}"


def accuracy_and_ece(
    results: Results, data: str, shots: int, name: str, protocol: str = "plain"
) -> str:
    """Accuracy / ECE of a method in a cell, or why there is none."""
    if METHODS[name].needs_text and not SETS[data].text:
        return "needs text"
    if not results.draws(data, shots, name, protocol):
        return "–"
    figures = (results.mean(data, shots, name, key, protocol) for key in ("accuracy", "ece"))
    return " / ".join(shown(figure) for figure in figures)


def count(shots: int) -> str:
    """1 shot, 2 shots."""
    return "1 shot" if shots == 1 else f"{shots} shots"


def wrapped(text: str) -> str:
    """A paragraph in lines of at most a hundred characters."""
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


# The default beside the best baseline.


def default_page(results: Results) -> None:
    """Every cell: the default, the best baseline, the difference."""
    parts = [DATA, PROTOCOL]
    about = (
        f"The best baseline of a cell is the best of {', '.join(BASELINES)} **on the test rows**. "
        "It is picked with hindsight; a user would have to guess it. "
        f'*{FORMER}* is the former default (`likelihood="gaussian"`). ECE has 15 bins. Accuracy '
        "and ECE are in %."
    )
    parts += [wrapped(about), ERROR_TEXT]
    parts += _skipped(results)
    for group, heading in GROUPS.items():
        found = results.differences(group)
        if not found:
            parts += [f"## {heading}", "Not measured yet."]
            continue
        parts += [f"## {heading}", "### Means", _means_text(results, group)]
        parts.append(table(_means(results, group)))
        parts += ["### Every cell", table(_cells(results, found))]
        losses = [one for one in found if one.is_loss]
        heading = (
            f"### Below the best baseline by more than {MARGIN} points and two standard errors"
        )
        parts += [heading, _listed(losses)]
        parts += ["### Below the best baseline at all", _listed([d for d in found if d.points < 0])]
        parts += _robustness(results, group)
    write_page(
        "default",
        "The default against simple baselines, without a validation set",
        *parts,
        made_by=made_by(results, [DEFAULT, FORMER, *BASELINES]),
    )


def _skipped(results: Results) -> list[str]:
    rows = results.skipped()
    if not rows:
        return []
    listed = "; ".join(
        f"{row['method']} on {SETS[row['data']].title}, {count(row['shots'])} ({row['skipped']})"
        for row in rows
    )
    return [wrapped(f"**Given up because a fit took too long**: {listed}.")]


def _means_text(results: Results, group: str) -> str:
    n = len(results.plain_cells(group))
    return wrapped(
        f"{n} cells; each cell counts once. A method is compared with the default on the cells "
        "that it ran on: LP++ and ProKeR need text. ECE is that of the cells where the method has "
        "probabilities."
    )


def _means(results: Results, group: str) -> list[list[object]]:
    rows: list[list[object]] = [
        ["method", "cells", "accuracy", "default there", "default − method", "ECE", "default's ECE"]
    ]
    for name in [DEFAULT, FORMER, *BASELINES]:
        pairs = _pairs(results, group, name, "accuracy")
        if not pairs:
            continue
        theirs, mine = np.mean(pairs, 0)
        ece = _pairs(results, group, name, "ece")
        shown_ece = [shown(value) for value in np.mean(ece, 0)] if ece else ["–", "–"]
        figures = [shown(theirs, 2), shown(mine, 2), shown(mine - theirs, 2, sign=True)]
        rows.append([name, len(pairs), *figures, *shown_ece])
    return rows


def _pairs(results: Results, group: str, name: str, key: str) -> list[tuple[float, float]]:
    """A figure of a method and of the default, in every cell that has both."""
    found = [
        (results.mean(*cell, name, key), results.mean(*cell, DEFAULT, key))
        for cell in results.plain_cells(group)
    ]
    return [pair for pair in found if np.isfinite(pair).all()]


def _cells(results: Results, found: list[Difference]) -> list[list[object]]:
    head = ["data", "shots", "default", "ECE", "best baseline", "its accuracy", "its ECE"]
    rows: list[list[object]] = [[*head, "default − best"]]
    for one in found:
        cell = one.data, one.shots
        rows.append(
            [SETS[one.data].title, one.shots, shown(one.default_accuracy)]
            + [shown(results.mean(*cell, DEFAULT, "ece")), one.best, shown(one.best_accuracy)]
            + [shown(results.mean(*cell, one.best, "ece")) if one.best in METHODS else "–"]
            + [f"{shown(one.points, sign=True)} ± {shown(one.error)}"]
        )
    return rows


def _listed(found: list[Difference]) -> str:
    if not found:
        return "None."
    return "\n".join(
        f"* {SETS[one.data].title}, {count(one.shots)}: {shown(one.points, sign=True)} ± "
        f"{shown(one.error)} ({one.best})"
        for one in sorted(found, key=lambda one: one.points)
    )


def _robustness(results: Results, group: str) -> list[str]:
    texts = {
        "unequal": "### Unequal shots\n\nEach class keeps 1 to 16 of its sixteen shots, drawn with "
        "a seed.",
        "wrong": "### Wrong labels\n\nA tenth of the labels, drawn with a seed, are replaced by "
        "another class.",
    }
    parts = []
    for protocol, text in texts.items():
        found = results.protocol_cells(protocol, group)
        if not found:
            continue
        rows: list[list[object]] = [["data", "shots", *ROBUST, "default − best of the others"]]
        for cell in found:
            figures = [accuracy_and_ece(results, *cell, name, protocol) for name in ROBUST]
            one = results.against(*cell, ROBUST[1:], protocol)
            gap = f"{shown(one.points, sign=True)} ± {shown(one.error)} ({one.best})"
            rows.append([SETS[cell[0]].title, _shots(cell[1], protocol), *figures, gap])
        parts += [f"{text} Cells are accuracy / ECE.", table(rows)]
    return parts


def _shots(shots: int, protocol: str) -> str:
    return "1–16" if protocol == "unequal" else str(shots)


# All methods.


def methods_page(results: Results) -> None:
    """Means, ranks and every cell of all methods."""
    parts = [DATA, PROTOCOL]
    on_gpu = results.on_gpu()
    about = (
        "Cells are accuracy / ECE in %, means over the draws. The figures come from the same rows "
        "as [the default against simple baselines](default.md). For methods with a validation set "
        "see [methods-validation](methods-validation.md); for CALIP, CoOp and TIMO, which need "
        "more than features, [encoder-methods](encoder-methods.md). *fit s* is the mean time of a "
        "fit on one thread of a CPU" + (f", of {', '.join(on_gpu)} on a GPU." if on_gpu else ".")
    )
    parts += [wrapped(about)]
    parts += _skipped(results)
    for group, heading in GROUPS.items():
        found = results.plain_cells(group)
        parts.append(f"## {heading}")
        if not found:
            parts.append("Not measured yet.")
            continue
        ran = [name for name in METHODS if any(results.draws(*cell, name) for cell in found)]
        for with_text in (True, False):
            asked = [c for c in found if SETS[c[0]].text] if with_text else found
            names = [n for n in ran if with_text or not METHODS[n].needs_text]
            title = "Cells with text: all methods"
            if not with_text:
                title = "All cells: methods that do not need text"
            parts += [f"### {title}", *_ranking(results, asked, names)]
        for data in dict.fromkeys(name for name, _ in found):
            parts += [f"### {SETS[data].title}", table(rows_by_shots(results, data, ran))]
    write_page(
        "methods-shared",
        "Every method without a validation set",
        *parts,
        made_by=made_by(results, METHODS),
    )


def _ranking(results: Results, asked: list[tuple[str, int]], names: list[str]) -> list[str]:
    """Mean rank, accuracy, ECE and seconds over the cells in which all methods ran."""
    shared = [cell for cell in asked if all(results.draws(*cell, name) for name in names)]
    if not shared:
        return ["No cell in which all methods ran."]
    accuracy = np.array([[results.mean(*cell, name) for cell in shared] for name in names])
    # Equal accuracies share their rank.
    above = (accuracy[None] > accuracy[:, None]).sum(1)
    equal = (accuracy[None] == accuracy[:, None]).sum(1) - 1
    ranks = (1 + above + equal / 2).mean(1)
    rows: list[list[object]] = [["method", "mean rank", "accuracy", "ECE", "NLL", "fit s"]]
    for i in np.argsort(ranks, kind="stable"):
        figures = [
            float(np.mean([results.mean(*cell, names[i], key) for cell in shared]))
            for key in ("ece", "nll", "fit_s")
        ]
        rows.append(
            [
                names[i],
                shown(float(ranks[i])),
                shown(float(accuracy[i].mean()), 2),
                shown(figures[0]),
            ]
            + [shown(figures[1], 3), shown(figures[2], 2)]
        )
    return [f"Means over the {len(shared)} cells in which all of them ran.", table(rows)]


def rows_by_shots(results: Results, data: str, names: list[str]) -> list[list[object]]:
    """Accuracy / ECE of methods on one data set, a column for each number of shots."""
    shots = [k for k in SHOTS if k in SETS[data].shots]
    rows: list[list[object]] = [["method", *(count(k) for k in shots)]]
    rows += [[name, *(accuracy_and_ece(results, data, k, name) for k in shots)] for name in names]
    return rows
