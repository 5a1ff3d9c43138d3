"""The plots of a report: confusion, reliability, risk–coverage, feature map, search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from gpcache import metrics
from gpcache.model.evaluation import Evaluation
from gpcache.model.report import drawing as draw
from gpcache.model.report.content import Report
from gpcache.model.report.drawing import Format
from gpcache.model.report.tsne import Points2D, embed_2d
from gpcache.support.files import make_folder, write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The names and counts of more classes than this would cover the picture.
MOST_NAMED = 40
_MOST_COUNTED = 20
# More points than this take less space as pixels than as circles.
_MOST_CIRCLES = 500
_CURVE_POINTS = 1000
_FEW = 10
_MOST_TICKS = 9
_SMALL = draw.FONT_SIZE - 1.5


class Plot(NamedTuple):
    """A figure, the name of its file, and a sentence for people who cannot see it."""

    name: str
    figure: Figure
    alternative: str


def save_plots(report: Report, folder: str | Path) -> list[Path]:
    """Write each plot of the report into `folder`, as PNG and as SVG; returns the files."""
    place = make_folder(folder)
    written = []
    for plot in report_plots(report):
        for form in get_args(Format):
            path = place / f"{plot.name}.{form}"
            write_atomic(path, draw.to_file(plot.figure, form))
            written.append(path)
    return written


def report_plots(report: Report, *, on_page: bool = False) -> Iterator[Plot]:
    """The plots that the report has data for.

    `on_page` leaves out what the page shows as HTML: small confusion matrices, legends of maps.
    """
    main, embedding = report.main, report.embedding
    if main is not None:
        if not on_page or len(main.class_names) > MOST_NAMED:
            alternative = "Confusion matrix; its largest entries are in the table of confusions"
            yield Plot("confusion", confusion_figure(main), alternative)
        alternative = f"Reliability diagram, expected calibration error {main.ece:.1%}"
        yield Plot("reliability", reliability_figure(main), alternative)
        figure = risk_coverage_figure(report.test, report.held_out)
        alternative = f"Risk–coverage curve, risk {1 - main.accuracy:.1%} when all are answered"
        yield Plot("risk-coverage", figure, alternative)
    if embedding is not None:
        names = embedding.class_names
        for space, rows in embedding.spaces().items():
            points = embed_2d(rows)
            figure = map_figure(points, embedding.labels, names, legend=not on_page)
            alternative = f"{points.method} map of {len(rows)} images of {len(names)} classes"
            yield Plot(f"map-{space}", figure, alternative)
    surface = None if report.search is None else Surface.of(report.search)
    if surface is not None:
        alternative = f"Scores of the {len(surface.score)} settings that were tried"
        yield Plot("search", search_figure(surface), alternative)


def confusion_figure(evaluation: Evaluation) -> Figure:
    """Truth by answer, each row as shares of its class; up to forty classes are named."""
    matrix = evaluation.confusion_matrix()
    classes = len(matrix)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    to_rgba = draw.matplotlib("colors").to_rgba
    right = np.eye(classes, dtype=bool)[..., None]
    pixels = np.where(right, to_rgba(draw.FOR), to_rgba(draw.AGAINST))
    pixels[..., 3] = shares
    named = classes <= MOST_NAMED
    side = max(1.8 + 0.24 * classes, 3.2) if named else 5.2
    figure = draw.new_figure(side, side)
    axes = draw.style_axes(figure.add_subplot(), x="predicted class", y="true class")
    axes.grid(False)
    axes.imshow(pixels, interpolation="none")
    names = [draw.drawable(name) for name in evaluation.class_names] if named else []
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    if classes <= _MOST_COUNTED:
        for i, j in np.argwhere(matrix):
            tone = draw.SURFACE if shares[i, j] > 0.5 else draw.INK
            axes.text(j, i, str(matrix[i, j]), ha="center", va="center", color=tone, fontsize=7)
    return figure


def reliability_figure(evaluation: Evaluation) -> Figure:
    """Share of right answers by confidence, above a histogram of the confidence."""
    table = metrics.reliability(evaluation.probabilities, evaluation.labels)
    bins = len(table.count)
    filled = table.count > 0
    middle, width = (np.arange(bins) + 0.5) / bins, 0.86 / bins
    figure = draw.new_figure(4, 4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    draw.style_axes(upper, y="accuracy")
    upper.plot([0, 1], [0, 1], color=draw.MUTED, linewidth=1, linestyle=(0, (4, 3)), label="ideal")
    # Bars of few images are pale: their height is uncertain.
    for enough, label, tone in (
        (table.count >= _FEW, "accuracy", 0.8),
        (table.count < _FEW, f"accuracy, under {_FEW} images", 0.3),
    ):
        rows = filled & enough
        upper.bar(
            middle[rows], table.accuracy[rows], width, color=draw.FOR, alpha=tone, label=label
        )
    accuracy, claimed = table.accuracy[filled], table.confidence[filled]
    upper.vlines(middle[filled], accuracy, claimed, color=draw.AGAINST, linewidth=1.4)
    marks = upper.plot(middle[filled], claimed, "_", color=draw.AGAINST, label="mean confidence")
    marks[0].set(markersize=9, markeredgewidth=2)
    upper.set(xlim=(0, 1), ylim=(0, 1.02))
    _add_legend(figure)
    draw.style_axes(lower, x="confidence", y="images")
    bars = lower.bar(middle[filled], table.count[filled], width, color=draw.MUTED, alpha=0.6)
    lower.bar_label(bars, padding=2, color=draw.MUTED, fontsize=6.5)
    lower.set(ylim=(0, 1.3 * table.count.max()), yticks=[])
    lower.grid(False)
    _in_percent(upper.yaxis, lower.xaxis)
    return figure


def risk_coverage_figure(test: Evaluation | None, held_out: Evaluation | None) -> Figure:
    """Share of wrong answers among those that remain when the least confident are refused."""
    figure = draw.new_figure(4, 4)
    x, y = "coverage: share of images answered", "risk: share of wrong answers"
    axes = draw.style_axes(figure.add_subplot(), x=x, y=y)
    highest = 0.0
    for evaluation, label, colour, line in (
        (test, "test photos", draw.FOR, "-"),
        (held_out, "training photos, held out", draw.AGAINST, "--"),
    ):
        if evaluation is None:
            continue
        coverage, risk = metrics.risk_coverage(evaluation.confidence, evaluation.correct)
        shown = np.unique(np.linspace(0, len(risk) - 1, _CURVE_POINTS).astype(int))
        marker = "o" if len(risk) == 1 else ""
        axes.plot(coverage[shown], risk[shown], line, marker=marker, color=colour, label=label)
        highest = max(highest, float(risk.max()))
    axes.set(xlim=(0, 1), ylim=(0, 1.08 * highest or 0.1))
    _in_percent(axes.xaxis, axes.yaxis)
    _add_legend(figure)
    return figure


def map_figure(
    placed: Points2D, labels: NDArray[np.int64], names: Sequence[str], *, legend: bool = False
) -> Figure:
    """Images as points in the colour of their class; up to forty classes are numbered from 1."""
    points: NDArray[Any] = placed.points
    colours = np.array(draw.class_colours(len(names)))
    named = len(names) <= MOST_NAMED
    figure = draw.new_figure(6 if legend and named else 4, 4)
    axes = draw.style_axes(figure.add_subplot())
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(True)
    size = float(np.clip(6000 / len(points), 4, 26))
    dots = axes.scatter(points[:, 0], points[:, 1], s=size, c=colours[labels], linewidths=0)
    dots.set(alpha=0.85, rasterized=len(points) > _MOST_CIRCLES)
    axes.margins(0.06)
    if not named:
        return figure
    halo = draw.matplotlib("patheffects").withStroke(linewidth=2.5, foreground=draw.SURFACE)
    for number in np.unique(labels):
        x, y = np.median(points[labels == number], axis=0)
        shown = axes.text(x, y, str(number + 1), ha="center", va="center", color=draw.INK)
        shown.set(weight="bold", fontsize=draw.FONT_SIZE - 1, path_effects=[halo])
    if legend:
        circle = draw.matplotlib("lines").Line2D
        many = len(names) > _MOST_COUNTED
        figure.legend(
            [circle([], [], linestyle="", marker="o", color=colour) for colour in colours],
            [f"{number} {draw.drawable(name)}" for number, name in enumerate(names, 1)],
            loc="outside right upper", frameon=False, labelcolor=draw.INK,
            fontsize=draw.FONT_SIZE - 1 - many, ncols=1 + many,
        )  # fmt: skip
    return figure


class Surface(NamedTuple):
    """Settings (m,) that a search tried, the best score of each, and the chosen setting.

    `other` holds the noise of regression, or τ of the softmax likelihood, as `name` says.
    """

    beta: NDArray[np.float64]
    other: NDArray[np.float64]
    score: NDArray[np.float64]
    chosen: tuple[float, float]
    name: str = "noise"

    @classmethod
    def of(cls, search: Mapping[str, NDArray[Any]]) -> Surface | None:
        """The surface in the columns of a search; None if it had nothing to choose between.

        Rows of one β and noise may differ in other hyper-parameters: the best score counts. The
        first row is the choice. If its setting comes again, the first row was scored in another
        way and cannot be compared with the rest.
        """
        name = "tau" if "tau" in search else "noise"
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
        betas, variances = np.array(list(best)).T
        return cls(betas, variances, np.array(list(best.values())), rows[0][:2], name)


def search_figure(surface: Surface) -> Figure:
    """Scores over β and noise or τ; a curve over one of them if the other is fixed."""
    axis_title = {"noise": "noise variance", "tau": "τ, variance of the prior"}[surface.name]
    sides = [("β, sharpness of the kernel", surface.beta), (axis_title, surface.other)]
    varied = [side for side, (_, values) in enumerate(sides) if len(np.unique(values)) > 1]
    figure = draw.new_figure(4.6, 3.6)
    if len(varied) == 1:
        title, x = sides[varied[0]]
        axes = draw.style_axes(figure.add_subplot(), x=title, y="score, lower is better")
        order = np.argsort(x)
        axes.plot(x[order], surface.score[order], "o-", color=draw.FOR, markersize=5)
        axes.axvline(surface.chosen[varied[0]], color=draw.AGAINST, linewidth=1.5, label="chosen")
        _log_scale(axes, "x", x)
    else:
        axes = draw.style_axes(figure.add_subplot(), x=sides[0][0], y=sides[1][0])
        low, high = surface.score.min(), np.quantile(surface.score, 0.9)
        quality = np.clip((high - surface.score) / max(high - low, 1e-12), 0.06, 1)
        fill = draw.matplotlib("colors").to_rgba_array([draw.FOR] * len(quality), quality)
        axes.scatter(surface.beta, surface.other, s=130, color=fill, edgecolor=draw.LINE)
        (ring,) = axes.plot(*surface.chosen, "o", color=draw.AGAINST, linestyle="", label="chosen")
        ring.set(markerfacecolor="none", markersize=16, markeredgewidth=2)
        _log_scale(axes, "x", surface.beta)
        _log_scale(axes, "y", surface.other)
    axes.margins(0.1)
    _add_legend(figure)
    return figure


def _add_legend(figure: Figure) -> None:
    """A legend above the axes, where it covers nothing."""
    figure.legend(
        loc="outside upper left", ncols=2, frameon=False, labelcolor=draw.MUTED, fontsize=_SMALL
    )


def _log_scale(axes: Axes, side: Literal["x", "y"], values: NDArray[np.float64]) -> None:
    """A logarithmic axis; its ticks are the values, at most about nine of them."""
    ticks = np.unique(values)
    ticks = ticks[:: -(-len(ticks) // _MOST_TICKS)]
    axes.set(**{f"{side}scale": "log"})
    axes.set(**{f"{side}ticks": ticks, f"{side}ticklabels": [f"{tick:.2g}" for tick in ticks]})
    axes.minorticks_off()


def _in_percent(*axes: Any) -> None:
    for axis in axes:
        axis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
