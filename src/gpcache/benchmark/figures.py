"""Figures of results: curves over shots, effects of an option, ranks; and two without results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpcache.benchmark.comparison import (
    SEED,
    Comparison,
    by_attributes,
    comparisons_of,
    shared_columns,
    slug,
    title_of,
    trains,
)
from gpcache.benchmark.rows import Row
from gpcache.benchmark.significance import alike, critical_difference, mean_and_deviation
from gpcache.benchmark.spec import MethodSpec, Spec
from gpcache.benchmark.task import Labelled
from gpcache.model.report import drawing
from gpcache.model.report.drawing import FONT_SIZE, INK, LINE, MUTED, drawable, style_axes
from gpcache.model.report.tsne import embed_2d
from gpcache.similarity import SimilarityProjection

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish; markers for grey print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#1b2430", "#8a8f98")
MARKERS = "osD^vPX*"
_PANEL_WIDTH, _PANEL_HEIGHT, _MOST_ACROSS = 2.5, 2.1, 4
_LEGEND_LINE, _FEWEST_ACROSS = 0.22, 3  # inches; entries of a legend in one row, if they fit
_LEGEND_SIGN, _LETTER = 0.45, 0.078  # inches
_LONGEST_LABEL = 32
_EFFECTS = (("validation_accuracy", "validation", "-"), ("accuracy", "test", "--"))
_TITLES = {"eta": "η, exponent of the variance", "noise": "σ², noise variance"}
# With fewer methods or data sets, ranks mean nothing.
_FEWEST_METHODS, _FEWEST_DATASETS = 3, 3
# The settings of the paper's figure of weight functions.
BETA, POINTS, NOISES = 100.0, 200, (1.0, 100.0)
# More points would take minutes to lay out and cover each other.
MOST_POINTS = 1500


def figures_of(spec: Spec, rows: Iterable[Row]) -> Iterator[tuple[str, Figure]]:
    """Every figure of an experiment by name; each is of one protocol and encoder."""
    comparisons = comparisons_of(spec, rows)
    for (protocol, encoder), group in by_attributes(comparisons, "protocol", "encoder").items():
        name = f"{spec.name}-{slug(protocol, encoder)}"
        if len(group) > 1:
            ran = {label for comparison in group for label in comparison.labels}
            for kind, trained in (("training-free", False), ("trained", True)):
                methods = [m for m in spec.methods if m.label in ran and trains(m) == trained]
                # Methods that differ in one option have separate figures.
                if methods := [m for m in methods if not m.varied] or methods:
                    yield f"{name}-curves-{kind}", curves_figure(group, methods)
        for comparison in group:
            for option in _varied_options(spec, comparison):
                yield f"{name}-{comparison.shots}-{option}", effect_figure(spec, comparison, option)
            ranks, n_ranked = comparison.ranks()
            if len(ranks) >= _FEWEST_METHODS and n_ranked >= _FEWEST_DATASETS:
                yield f"{name}-{comparison.shots}-ranks", ranks_figure(ranks, n_ranked)


def curves_figure(comparisons: Sequence[Comparison], methods: Sequence[MethodSpec]) -> Figure:
    """Accuracy over shots, one panel per data set; bars are the standard deviation over draws.

    The first panel is the mean of the data sets that have all numbers of shots.
    """
    columns = list(dict.fromkeys(column for one in comparisons for column in one.columns))
    shared = shared_columns(comparisons)
    panels = ["mean", *columns] if len(shared) > 1 else columns
    across = min(_MOST_ACROSS, len(panels))
    down = -(-len(panels) // across)
    scale = 1.7 if len(panels) == 1 else 1
    width = _PANEL_WIDTH * across * scale + 0.3
    labels = [drawable(method.label, _LONGEST_LABEL) for method in methods]
    entry = _LEGEND_SIGN + _LETTER * max(map(len, labels))
    beside = max(1, min(max(across, _FEWEST_ACROSS), int(width / entry)))
    legend = _LEGEND_LINE * -(-len(labels) // beside)
    figure = drawing.new_figure(width, _PANEL_HEIGHT * down * scale + legend + 0.3)
    axes = list(figure.subplots(down, across, squeeze=False).ravel())
    for column, (place, panel) in enumerate(zip(axes, panels, strict=False)):
        style_axes(place, x="shots", y="" if column % across else "accuracy, %")
        title = f"mean of {len(shared)}" if panel == "mean" else drawable(title_of(panel))
        place.set_title(title, color=INK, fontsize=FONT_SIZE)
        for number, (method, label) in enumerate(zip(methods, labels, strict=True)):
            points = []
            for one in comparisons:
                mean, name = panel == "mean", method.label
                values = one.means(name, shared) if mean else one.values(name, panel)
                if values:
                    points.append((one.shots, *mean_and_deviation(values)))
            if points:
                _curve(place, points, number, label)
        shots = [comparison.shots for comparison in comparisons]
        place.set_xscale("log", base=2)
        place.set_xticks(shots, [str(one) for one in shots])
        place.minorticks_off()
    for place in axes[len(panels) :]:
        place.remove()
    _legend(figure, axes[: len(panels)], beside)
    return figure


def _curve(axes: Axes, points: Sequence[tuple[int, float, float]], number: int, label: str) -> None:
    shots, means, deviations = map(list, zip(*points, strict=True))
    axes.errorbar(
        shots, means, yerr=[0.0 if math.isnan(one) else one for one in deviations],
        color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)], markersize=3.5,
        linewidth=1.3, elinewidth=0.8, linestyle="-" if number < len(COLOURS) else "--",
        label=label,
    )  # fmt: skip


def effect_figure(spec: Spec, one: Comparison, option: str) -> Figure:
    """Accuracy on the rows that were chosen on, over the values of one option; test dashed."""
    families: dict[str, list[tuple[float, str]]] = {}
    for method in spec.methods:
        if method.label in one.labels and _is_number(method.varied.get(option)):
            point = (float(method.varied[option]), method.label)
            families.setdefault(method.family, []).append(point)
    figure = drawing.new_figure(4.8, 3.6)
    axes = style_axes(figure.add_subplot(), x=_TITLES.get(option, option), y="accuracy, %")
    for number, (family, points) in enumerate(families.items()):
        points.sort(key=lambda point: point[0])
        for name, kind, style in _EFFECTS:
            accuracies = [one.average(label, name) for _, label in points]
            if not all(map(math.isnan, accuracies)):
                label = f"{drawable(family, _LONGEST_LABEL)}, {kind}"
                axes.plot(
                    [value for value, _ in points], accuracies, style,
                    color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
                    markersize=4, linewidth=1.4, label=label,
                )  # fmt: skip
    values = sorted({value for points in families.values() for value, _ in points})
    if values[0] > 0 and values[-1] / values[0] > 20:
        axes.set_xscale("log")
        axes.minorticks_off()
    _legend(figure, [axes], 2)
    return figure


def ranks_figure(ranks: dict[str, float], n_datasets: int) -> Figure:
    """Mean ranks on a line, best left; a bar joins methods that do not differ at 5 % (Nemenyi)."""
    ordered = sorted(ranks, key=lambda label: (ranks[label], label))
    places = np.array([ranks[label] for label in ordered])
    count = len(ordered)
    difference = critical_difference(count, n_datasets)
    runs = alike(places, difference)
    half = (count + 1) // 2
    top = 0.5 + 0.35 * len(runs)
    figure = drawing.new_figure(6.4, 1.4 + 0.16 * len(runs) + 0.24 * half)
    axes = figure.add_subplot()
    axes.set(xlim=(0.4, count + 0.6), ylim=(-(top + 0.75 * half), 1.9))
    axes.axis("off")
    axes.plot([1, count], [0, 0], color=INK, linewidth=1)
    for tick in range(1, count + 1):
        axes.plot([tick, tick], [0, 0.16], color=INK, linewidth=1)
        axes.text(tick, 0.3, str(tick), ha="center", color=MUTED, fontsize=FONT_SIZE - 1)
    axes.plot([1, 1 + difference], [1.25, 1.25], color=MUTED, linewidth=2)
    words = f"critical difference {difference:.2f}, {n_datasets} data sets"
    axes.text(1, 1.45, words, color=MUTED, fontsize=FONT_SIZE - 1)
    for level, (first, last) in enumerate(runs):
        height = -0.3 - 0.3 * level
        ends = [places[first] - 0.05, places[last] + 0.05]
        axes.plot(ends, [height, height], color=COLOURS[0], linewidth=3.5, solid_capstyle="butt")
    for number, (label, place) in enumerate(zip(ordered, places, strict=True)):
        left = number < half
        height = -top - 0.75 * (number if left else count - 1 - number)
        end = 0.9 if left else count + 0.1
        axes.plot([place, place, end], [0, height, height], color=LINE, linewidth=1, zorder=0)
        axes.text(
            end, height, f" {drawable(label, _LONGEST_LABEL)} {place:.2f} ", va="center",
            ha="right" if left else "left", color=INK, fontsize=FONT_SIZE - 1,
        )  # fmt: skip
    return figure


def weight_functions(noise: float, query: float = 0.5) -> tuple[NDArray[Any], ...]:
    """Points x (200,) in [0, 1] and the weight of each for a query: of a plain cache, and of a GP.

    The weights of the cache are κ(query, x) = exp(−β (query − x)²), those of the GP are
    κ(query, X)(K + noise·I)⁻¹.
    """
    x = np.linspace(0, 1, POINTS)
    plain = np.exp(-BETA * (query - x) ** 2)
    covariance = np.exp(-BETA * (x[:, None] - x) ** 2) + noise * np.eye(POINTS)
    return x, plain, np.linalg.solve(covariance, plain)


def weights_figure() -> Figure:
    """The weights of training points around a query, in a cache and a GP, relative to the peak."""
    figure = drawing.new_figure(6.4, 2.9)
    panels = list(figure.subplots(1, 2, sharey=True))
    for axes, noise in zip(panels, NOISES, strict=True):
        style_axes(axes, x="training point", y="weight / its largest" if noise == NOISES[0] else "")
        axes.set_title(f"σ² = {noise:g}", color=INK, fontsize=FONT_SIZE)
        x, plain, weights = weight_functions(noise)
        axes.plot(x, plain / plain.max(), "--", color=COLOURS[1], label="cache (Nadaraya–Watson)")
        axes.plot(x, weights / weights.max(), color=COLOURS[0], label="Gaussian process")
        axes.axvline(0.5, color=MUTED, linewidth=0.8, linestyle=":", label="query")
    _legend(figure, panels, 3)
    return figure


def projection_figure(rows: Labelled, projection: SimilarityProjection) -> Figure:
    """Features before and after the projection, in the colours of their classes."""
    step = -(-len(rows.labels) // MOST_POINTS)
    features = rows.features[::step]
    classes, numbers = np.unique(rows.labels[::step], return_inverse=True)
    colours = np.array(drawing.class_colours(len(classes)))[numbers]
    projected = projection(torch.from_numpy(features).double()).numpy()
    figure = drawing.new_figure(7.2, 3.8)
    panels = zip(figure.subplots(1, 2), ("before", "after"), (features, projected), strict=True)
    for axes, words, shown in panels:
        picture = embed_2d(shown)
        style_axes(axes)
        axes.set(xticks=[], yticks=[])
        title = f"{words} the projection ({picture.method})"
        axes.set_title(title, color=INK, fontsize=FONT_SIZE)
        axes.scatter(*picture.points.T, c=colours, s=7, linewidths=0, alpha=0.85, rasterized=True)
    return figure


def _legend(figure: Figure, axes: Sequence[Axes], across: int) -> None:
    """One legend for all panels, below them."""
    entries: dict[str, Artist] = {}
    for place in axes:
        handles, labels = place.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=across,
        frameon=False, labelcolor=MUTED, fontsize=FONT_SIZE - 1,
    )  # fmt: skip


def _varied_options(spec: Spec, comparison: Comparison) -> list[str]:
    """The options that methods of this comparison vary in numbers, with more than one value."""
    values: dict[str, set[float]] = {}
    for method in spec.methods:
        for option, value in method.varied.items():
            if method.label in comparison.labels and _is_number(value) and option != SEED:
                values.setdefault(option, set()).add(float(value))
    return [option for option, distinct in values.items() if len(distinct) > 1]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
