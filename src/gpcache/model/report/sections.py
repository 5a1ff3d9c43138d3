"""The sections of the page that show figures: headline, mistakes, confidence, map, settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache import metrics
from gpcache.model.evaluation import Evaluation, Told
from gpcache.model.report.content import Embedding, Report
from gpcache.model.report.drawing import class_colours, to_page
from gpcache.model.report.markup import (
    bar,
    cell,
    figure,
    name,
    number,
    pairs,
    percent,
    table,
    words,
)
from gpcache.model.report.plots import (
    MOST_NAMED,
    Surface,
    confusion_figure,
    map_figure,
    reliability_figure,
    risk_coverage_figure,
    search_figure,
)
from gpcache.model.report.projection import flatten

_WORST_CONFUSIONS = 20
_BEST_SETTINGS = 10
_MOST_REFUSED = 1000
_COVERAGES = (0.95, 0.9, 0.8)

_MEANINGS = {
    "beta": "β, sharpness of the kernel",
    "noise": "σ², noise variance",
    "tau": "τ, variance of the prior",
    "shrinkage": "shrinkage of the whitening",
    "discriminant": "weight of the linear discriminant",
    "alpha": "α, weight of the photos",
    "eta": "η, exponent of the variance",
    "gain": "gain, trust in the class names",
    "temperature": "temperature of the probabilities",
}
_SPACES = {"features": "As the encoder sees them", "kernel": "As the kernel sees them"}


def headline(report: Report) -> str:
    """The figures of each evaluation, never without data, protocol, interval and count."""
    cards = [
        _card(title, evaluation)
        for title, evaluation in (
            ("Test photos", report.test),
            ("Training photos, each as if unseen", report.held_out),
        )
        if evaluation is not None
    ]
    if not cards:
        cards = [
            '<p class="card">No photo with a known answer was left to measure on: evaluate the '
            "model on test photos, or fit it with at least two photos of each class.</p>"
        ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(title: str, evaluation: Evaluation) -> str:
    low, high = evaluation.interval
    kept = ~evaluation.rejected
    style = f"--low:{low:.4f};--high:{high:.4f};--at:{evaluation.accuracy:.4f}"
    return (
        f'<section class="card"><h2>{title}</h2>'
        f'<p class="accuracy"><strong>{percent(evaluation.accuracy)}</strong> right</p>'
        f'<div class="interval" style="{style}" aria-hidden="true"><i></i><b></b></div>'
        f"<p>95\N{NO-BREAK SPACE}% interval {_interval(low, high)}, {_count(len(evaluation))}</p>"
        + pairs(
            [
                ("ECE", percent(evaluation.ece)),
                ("NLL", f"{evaluation.nll:.3f}"),
                ("“I don’t know”", f"{len(kept) - int(kept.sum())} of {len(kept)}"),
            ]
        )
        + _kept(evaluation, kept)
        + f'<p class="protocol">{words(evaluation.data)}. Protocol: {words(evaluation.protocol)}.'
        "</p></section>"
    )


def _kept(evaluation: Evaluation, kept: NDArray[np.bool_]) -> str:
    """What is right of the answers that the model stands by, where it refused some but not all."""
    if kept.all() or not kept.any():
        return ""
    right, n = int(evaluation.correct[kept].sum()), int(kept.sum())
    interval = _interval(*metrics.wilson_interval(right, n))
    return (
        f"<p>Of the answers it gave, {percent(right / n)} are right ({interval}, {_count(n)}).</p>"
    )


def _interval(low: float, high: float) -> str:
    return f"{100 * low:.1f}–{percent(high)}"


def _source(evaluation: Evaluation) -> str:
    return f"{words(evaluation.data)}, {words(evaluation.protocol)}, {_count(len(evaluation))}"


def _count(n: int) -> str:
    return f"n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{n}"


def mistakes(evaluation: Evaluation) -> str:
    """Confusion matrix, the commonest confusions and the classes, worst first."""
    source = _source(evaluation)
    confusions = evaluation.confusions(_WORST_CONFUSIONS)
    rows = [
        [cell(name(one.truth)), cell(name(one.answer)), cell(str(one.images), one.images)]
        for one in confusions
    ]
    found = (
        table("Commonest confusions", ("truth", "answer", "images"), rows)
        if rows
        else '<p class="note">Not one answer was wrong.</p>'
    )
    scores = sorted(evaluation.per_class(), key=lambda s: (np.isnan(s.recall), s.recall))
    classes = table(
        "Classes, worst recall first",
        ("class", "images", "recall", "precision"),
        (
            [
                cell(name(one.name)),
                cell(str(one.n), one.n),
                cell(bar(one.recall), one.recall),
                cell(bar(one.precision), one.precision),
            ]
            for one in scores
        ),
        sortable=True,
    )
    return (
        f'<p class="note">{source}. Recall is the share of a class’s photos that were named so; '
        "precision the share of photos named so that were.</p>"
        f'<div class="mistakes">{_confusion_matrix(evaluation)}{found}</div>{classes}'
    )


def _confusion_matrix(evaluation: Evaluation) -> str:
    if len(evaluation.class_names) > MOST_NAMED:
        drawing = to_page(
            confusion_figure(evaluation),
            name="confusion",
            alternative="Confusion matrix; its largest entries are in the table of confusions",
        )
        return figure(drawing, "Truth by answer in the order of the classes: blue is right.")
    matrix = evaluation.confusion_matrix()
    names = [name(one) for one in evaluation.class_names]
    plain = [words(one) for one in evaluation.class_names]
    totals = np.maximum(matrix.sum(1), 1)
    head = "".join(f'<th scope="col"><div>{one}</div></th>' for one in names)
    body = []
    for i, row in enumerate(matrix):
        cells = []
        for j, count in enumerate(row):
            if not count:
                cells.append("<td></td>")
                continue
            kind = "right" if i == j else "wrong"
            cells.append(
                f'<td class="{kind}" style="--share:{count / totals[i]:.3f}" '
                f'title="{plain[i]} → {plain[j]}">{count}</td>'
            )
        body.append(f'<tr><th scope="row">{names[i]}</th>{"".join(cells)}</tr>')
    caption = "Truth (rows) by answer (columns); blue is right, orange is wrong"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Confusion matrix">'
        f'<table class="confusion"><caption>{caption}</caption><thead><tr><td></td>{head}</tr>'
        f"</thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def confidence(report: Report, evaluation: Evaluation) -> str:
    """Reliability diagram and risk–coverage curve."""
    reliable = to_page(
        reliability_figure(evaluation),
        name="reliability",
        alternative=f"Reliability diagram, expected calibration error {percent(evaluation.ece)}",
    )
    areas = [
        f"AURC {one.aurc:.4f} ({_source(one)})"
        for one in (report.test, report.held_out)
        if one is not None
    ]
    curve = to_page(
        risk_coverage_figure(report.test, report.held_out),
        name="risk",
        alternative=f"Risk–coverage curve, risk {percent(1 - evaluation.accuracy)} when all images "
        "are answered",
    )
    return (
        '<div class="columns">'
        + figure(
            reliable,
            f"Reliability: where bars end at the dashes, confidence is what it claims. ECE "
            f"{percent(evaluation.ece)}, 15 bins ({_source(evaluation)}).",
        )
        + figure(
            curve,
            f"Risk against coverage: refusing the least confident fifth takes the errors from "
            f"{percent(1 - evaluation.accuracy)} to {percent(1 - evaluation.accuracy_at(0.8))}. "
            f"{'; '.join(areas)}.",
        )
        + "</div>"
        + _doubts(evaluation)
    )


def _doubts(evaluation: Evaluation) -> str:
    """What the confidence is worth where answers may be refused, and how unknown images fare."""
    lines = [
        (f"right among the most confident {percent(share)}", percent(evaluation.accuracy_at(share)))
        for share in _COVERAGES
    ]
    lines += _told("right answers from wrong ones", evaluation.errors_told)
    if evaluation.unknown is not None:
        refused = evaluation.unknown.rejected
        lines.append(("unknown images refused", f"{int(refused.sum())} of {len(refused)}"))
        lines += _told("known images from unknown ones", evaluation.unknown_told)
    return f'<p class="note">{_source(evaluation)}.</p>{pairs(lines)}'


def _told(kinds: str, told: Told | None) -> list[tuple[str, str]]:
    if told is None:
        return []
    figures = f"AUROC {percent(told.auroc)}, FPR95 {percent(told.fpr95)}"
    return [(f"telling {kinds}", figures)]


def feature_map(embedding: Embedding) -> str:
    """The classes in the plane: the encoder's space beside the kernel's."""
    figures = []
    for space, rows in embedding.spaces().items():
        picture = flatten(rows)
        drawing = to_page(
            map_figure(picture, embedding.labels, embedding.class_names),
            name=f"map-{space}",
            alternative=f"Map of {len(rows)} images of {len(embedding.class_names)} classes",
        )
        figures.append(figure(drawing, f"{_SPACES[space]} ({picture.method})."))
    legend = ""
    if len(embedding.class_names) <= MOST_NAMED:
        colours = class_colours(len(embedding.class_names))
        items = "".join(
            f'<li style="--colour:{colour}">{name(one)}</li>'
            for colour, one in zip(colours, embedding.class_names, strict=True)
        )
        legend = f'<ol class="legend" aria-label="Classes of the map">{items}</ol>'
    return (
        f'<p class="note">{words(embedding.data)}, {_count(len(embedding.labels))}. Near means '
        "alike; distances between far groups, and the axes, mean nothing.</p>"
        f'<div class="columns">{"".join(figures)}</div>{legend}'
    )


def settings(chosen: Mapping[str, float], search: Mapping[str, NDArray[Any]] | None) -> str:
    """The numbers in use, and what the search for them saw."""
    parts = [pairs((_MEANINGS.get(key, words(key)), number(at)) for key, at in chosen.items())]
    surface = None if search is None else Surface.of(search)
    if search is None or surface is None:
        parts.append('<p class="note">These numbers were given or shipped, not searched for.</p>')
        return "".join(parts)
    drawing = to_page(
        search_figure(surface),
        name="search",
        alternative=f"Scores of the {len(surface.score)} places that the search looked at",
    )
    tried = len(search["score"])
    caption = (
        f"{tried} settings were scored; the stronger the colour, the better (lower) the score."
    )
    # What every setting shares stands among the numbers in use.
    varied = [key for key, values in search.items() if len(np.unique(values)) > 1]
    others = 1 + np.argsort(search["score"][1:], kind="stable")
    best = [0, *others[: _BEST_SETTINGS - 1]]
    rows = [[cell(number(search[key][i]), float(search[key][i])) for key in varied] for i in best]
    parts.append(
        f'<div class="columns">{figure(drawing, caption)}'
        f"{table('The setting in use, then the best of the others', varied, rows)}</div>"
    )
    return "".join(parts)


def refusals(report: Report) -> str:
    """The files that could not be used, with the reason."""
    rows = [[cell(name(file)), cell(words(why))] for file, why in report.refused[:_MOST_REFUSED]]
    shown = table("Files that were refused", ("file", "reason"), rows)
    more = len(report.refused) - len(rows)
    return shown + (f'<p class="note">And {more} more.</p>' if more else "")
