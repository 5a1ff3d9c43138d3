"""The plots of a report: confusion, reliability, risk–coverage, feature map, search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache import metrics
from gpcache.errors import DataError
from gpcache.model.evaluation import Evaluation
from gpcache.model.report.content import Report
from gpcache.model.report.drawing import (
    AGAINST,
    FONT_SIZE,
    FOR,
    INK,
    LINE,
    MUTED,
    SURFACE,
    Format,
    blank,
    class_colours,
    drawable,
    dress,
    matplotlib,
    to_file,
)
from gpcache.model.report.projection import Picture, flatten
from gpcache.support.files import make_folder, write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Beyond this many classes their names and numbers would cover the picture.
MOST_NAMED = 40
_MOST_COUNTED = 20
# Beyond this many points a drawing of each is larger than a picture of all.
_MOST_DRAWN = 500
_CURVE_POINTS = 1000
_FEW = 10
_MOST_TICKS = 9


def save_plots(
    report: Report, folder: str | Path, formats: Sequence[Format] = ("png", "svg")
) -> list[Path]:
    """Write each plot that the report has into `folder`, in each format; returns the files."""
    unknown = set(formats) - {"png", "svg"}
    if unknown:
        raise DataError(f"Plots are saved as 'png' or 'svg', got {sorted(unknown)[0]!r}.")
    place = make_folder(folder)
    written = []
    for name, figure in _figures(report):
        for form in formats:
            path = place / f"{name}.{form}"
            write_atomic(path, to_file(figure, form))
            written.append(path)
    return written


def _figures(report: Report) -> Iterator[tuple[str, Figure]]:
    main = report.main
    if main is not None:
        yield "confusion", confusion_figure(main)
        yield "reliability", reliability_figure(main)
        yield "risk-coverage", risk_coverage_figure(report.test, report.held_out)
    if report.embedding is not None:
        names = report.embedding.class_names
        for space, rows in report.embedding.spaces().items():
            picture = flatten(rows)
            yield f"map-{space}", map_figure(picture, report.embedding.labels, names, legend=True)
    surface = None if report.search is None else Surface.of(report.search)
    if surface is not None:
        yield "search", search_figure(surface)


def confusion_figure(evaluation: Evaluation) -> Figure:
    """Truth by answer, each row in shares of its class; names up to forty classes."""
    matrix = evaluation.confusion_matrix()
    classes = len(matrix)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    colours = matplotlib("colors")
    pixels = np.empty((classes, classes, 4))
    pixels[:] = colours.to_rgba(AGAINST)
    pixels[np.diag_indices(classes)] = colours.to_rgba(FOR)
    pixels[..., 3] = shares
    named = classes <= MOST_NAMED
    side = 1.8 + 0.24 * classes if named else 5.2
    figure = blank(max(side, 3.2), max(side, 3.2))
    axes = dress(figure.add_subplot(), x="answer", y="truth")
    axes.grid(False)
    axes.imshow(pixels, interpolation="none")
    axes.set_xticks([])
    axes.set_yticks([])
    if named:
        names = [drawable(name) for name in evaluation.class_names]
        axes.set_xticks(range(classes), names, rotation=90)
        axes.set_yticks(range(classes), names)
    if classes <= _MOST_COUNTED:
        for i, j in np.argwhere(matrix):
            tone = SURFACE if shares[i, j] > 0.5 else INK
            axes.text(j, i, str(matrix[i, j]), ha="center", va="center", color=tone, fontsize=7)
    return figure


def reliability_figure(evaluation: Evaluation) -> Figure:
    """How often answers of a given confidence are right, above how many answers those are."""
    table = metrics.reliability(evaluation.probabilities, evaluation.labels)
    bins = len(table.count)
    filled = table.count > 0
    middle, width = (np.arange(bins) + 0.5) / bins, 0.86 / bins
    figure = blank(4, 4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    dress(upper, y="share of right answers")
    upper.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="ideal")
    # A bar of few images says little and must not look as if it said much.
    for enough, tone in ((table.count >= _FEW, 0.8), (table.count < _FEW, 0.3)):
        rows = filled & enough
        label = "right" if tone > 0.5 else f"right, under {_FEW} images"
        upper.bar(middle[rows], table.accuracy[rows], width, color=FOR, alpha=tone, label=label)
    gap = np.stack([table.accuracy, table.confidence])[:, filled]
    upper.vlines(middle[filled], *gap, color=AGAINST, linewidth=1.4)
    upper.plot(
        middle[filled], gap[1], "_", color=AGAINST, markersize=9, markeredgewidth=2, label="claimed"
    )
    upper.set(xlim=(0, 1), ylim=(0, 1.02))
    _in_percent(upper.yaxis)
    _legend(figure)
    dress(lower, x="confidence", y="images")
    lower.bar(middle, table.count, width, color=MUTED, alpha=0.6)
    for x, count in zip(middle[filled], table.count[filled], strict=True):
        lower.annotate(
            str(count), (x, count), (0, 2), textcoords="offset points", ha="center",
            color=MUTED, fontsize=6.5,
        )  # fmt: skip
    lower.set_ylim(0, 1.3 * table.count.max())
    lower.set_yticks([])
    lower.grid(False)
    _in_percent(lower.xaxis)
    return figure


def risk_coverage_figure(test: Evaluation | None, held_out: Evaluation | None) -> Figure:
    """The share of errors among the answers that are kept when the least confident are refused."""
    figure = blank(4, 4)
    axes = dress(
        figure.add_subplot(),
        x="coverage: share of images answered",
        y="risk: share of wrong answers",
    )
    highest = 0.0
    for evaluation, label, colour, line in (
        (test, "test photos", FOR, "-"),
        (held_out, "training photos, held out", AGAINST, "--"),
    ):
        if evaluation is None:
            continue
        coverage, risk = metrics.risk_coverage(evaluation.confidence, evaluation.correct)
        shown = np.unique(np.linspace(0, len(risk) - 1, _CURVE_POINTS).astype(int))
        marker = "o" if len(risk) == 1 else ""
        axes.plot(coverage[shown], risk[shown], line, marker=marker, color=colour, label=label)
        highest = max(highest, float(risk.max()))
    axes.set(xlim=(0, 1), ylim=(0, 1.08 * highest or 0.1))
    _in_percent(axes.xaxis)
    _in_percent(axes.yaxis)
    _legend(figure)
    return figure


def map_figure(
    picture: Picture, labels: NDArray[np.int64], names: Sequence[str], *, legend: bool = False
) -> Figure:
    """Images as points in their class's colour; up to forty classes are numbered from 1."""
    colours = np.array(class_colours(len(names)))
    named = len(names) <= MOST_NAMED
    figure = blank(6 if legend and named else 4, 4)
    axes = dress(figure.add_subplot())
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(True)
    points: NDArray[Any] = picture.points
    many = len(points) > _MOST_DRAWN
    size = float(np.clip(6000 / len(points), 4, 26))
    axes.scatter(
        points[:, 0],
        points[:, 1],
        c=colours[labels],
        s=size,
        linewidths=0,
        alpha=0.85,
        rasterized=many,
    )
    axes.margins(0.06)
    if not named:
        return figure
    halo = matplotlib("patheffects").withStroke(linewidth=2.5, foreground=SURFACE)
    for number in np.unique(labels):
        x, y = np.median(points[labels == number], axis=0)
        axes.text(
            x, y, str(number + 1), ha="center", va="center", color=INK, weight="bold",
            fontsize=FONT_SIZE - 1, path_effects=[halo],
        )  # fmt: skip
    if legend:
        lines = matplotlib("lines")
        handles = [lines.Line2D([], [], linestyle="", marker="o", color=one) for one in colours]
        words = [f"{number} {drawable(name)}" for number, name in enumerate(names, 1)]
        figure.legend(
            handles, words, loc="outside right upper", frameon=False, labelcolor=INK,
            fontsize=FONT_SIZE - 2 if len(names) > _MOST_COUNTED else FONT_SIZE - 1,
            ncols=1 + (len(names) > _MOST_COUNTED),
        )  # fmt: skip
    return figure


class Surface(NamedTuple):
    """The places (m,) that a search looked at, the best score at each, and the chosen place.

    `other` is what `name` says: the noise of regression, or τ of the softmax likelihood.
    """

    beta: NDArray[np.float64]
    other: NDArray[np.float64]
    score: NDArray[np.float64]
    chosen: tuple[float, float]
    name: Literal["noise", "tau"] = "noise"

    @classmethod
    def of(cls, search: Mapping[str, NDArray[Any]]) -> Surface | None:
        """The surface in the columns of a search; None where there was nothing to choose between.

        At one place other numbers may differ (gain, α, shrinkage): the best of them counts. The
        first row is the choice; where its setting comes again, it was scored once more in another
        way, which cannot be compared with the rest.
        """
        name: Literal["noise", "tau"] = "tau" if "tau" in search else "noise"
        setting = ["beta", name, *(("shrinkage", "offset") if name == "tau" else ())]
        columns = [np.asarray(search[one], dtype=float) for one in (*setting, "score")]
        rows = list(zip(*columns, strict=True))
        again = rows[0][:-1] in [row[:-1] for row in rows[1:]]
        best: dict[tuple[float, float], float] = {}
        for row in rows[1:] if again else rows:
            if np.isfinite(row[-1]):
                best[row[:2]] = min(row[-1], best.get(row[:2], np.inf))
        if len(best) < 2:
            return None
        betas, others = np.array(list(best)).T
        return cls(betas, others, np.array(list(best.values())), rows[0][:2], name)


def search_figure(surface: Surface) -> Figure:
    """Scores over β and noise or τ, the stronger the better; over one if the other is fixed."""
    varied = [name for name in ("beta", "other") if len(np.unique(getattr(surface, name))) > 1]
    other = {"noise": "noise variance", "tau": "τ, variance of the prior"}[surface.name]
    titles = {"beta": "β, sharpness of the kernel", "other": other}
    figure = blank(4.6, 3.6)
    if len(varied) == 1:
        axes = dress(figure.add_subplot(), x=titles[varied[0]], y="score, lower is better")
        x, score = getattr(surface, varied[0]), surface.score
        order = np.argsort(x)
        axes.plot(x[order], score[order], "o-", color=FOR, markersize=5)
        axes.axvline(
            surface.chosen[varied[0] == "other"], color=AGAINST, linewidth=1.5, label="chosen"
        )
        _log_scale(axes, "x", x)
    else:
        axes = dress(figure.add_subplot(), x=titles["beta"], y=titles["other"])
        low, high = surface.score.min(), np.quantile(surface.score, 0.9)
        quality = np.clip((high - surface.score) / max(high - low, 1e-12), 0.06, 1)
        fill = matplotlib("colors").to_rgba_array([FOR] * len(quality), quality)
        axes.scatter(surface.beta, surface.other, s=130, color=fill, edgecolor=LINE)
        axes.plot(
            *surface.chosen, "o", color=AGAINST, markerfacecolor="none", markersize=16,
            markeredgewidth=2, linestyle="", label="chosen",
        )  # fmt: skip
        _log_scale(axes, "x", surface.beta)
        _log_scale(axes, "y", surface.other)
    axes.margins(0.1)
    figure.legend(loc="outside upper left", frameon=False, fontsize=FONT_SIZE - 1, labelcolor=MUTED)
    return figure


def _legend(figure: Figure) -> None:
    """Above the axes, where it covers nothing."""
    figure.legend(
        loc="outside upper left", ncols=2, frameon=False, labelcolor=MUTED, fontsize=FONT_SIZE - 1.5
    )


def _log_scale(axes: Axes, side: Literal["x", "y"], values: NDArray[np.float64]) -> None:
    """A logarithmic axis whose ticks are the values themselves, thinned where there are many."""
    ticks = np.unique(values)
    ticks = ticks[:: -(-len(ticks) // _MOST_TICKS)]
    axes.set(**{f"{side}scale": "log"})
    axes.set(**{f"{side}ticks": ticks, f"{side}ticklabels": [f"{tick:.2g}" for tick in ticks]})
    axes.minorticks_off()


def _in_percent(axis: Any) -> None:
    axis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
