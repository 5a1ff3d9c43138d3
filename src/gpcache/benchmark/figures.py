"""Figures of results: curves over shots, effects of a number, critical differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpcache.benchmark.boards import (
    SEED,
    Board,
    boards_of,
    rows_of,
    shared_columns,
    slug,
    title_of,
    trains,
)
from gpcache.benchmark.results import Row
from gpcache.benchmark.significance import alike, critical_difference, mean_and_deviation
from gpcache.benchmark.spec import MethodSpec, Spec
from gpcache.model.report.drawing import FONT_SIZE, INK, LINE, MUTED, blank, drawable, dress

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which are told apart with any sight; markers for print without colour.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#1b2430", "#8a8f98")
MARKERS = "osD^vPX*"
_PANEL_WIDTH, _PANEL_HEIGHT, _MOST_ACROSS = 2.5, 2.1, 4
_LEGEND_LINE, _FEWEST_ACROSS = 0.22, 3  # inches; entries of a legend beside each other, if they fit
_LEGEND_SIGN, _LETTER = 0.45, 0.078  # inches
_TITLES = {"eta": "η, exponent of the variance", "noise": "σ², noise variance"}
# Fewer lines or data sets say nothing about ranks.
_FEWEST_LINES, _FEWEST_DATASETS = 3, 3


def figures_of(spec: Spec, rows: Iterable[Row]) -> Iterator[tuple[str, Figure]]:
    """Every figure of an experiment by name; each is of one protocol and encoder."""
    boards = boards_of(spec, rows_of(spec, rows))
    places = dict.fromkeys((board.protocol, board.encoder) for board in boards)
    for protocol, encoder in places:
        group = [b for b in boards if (b.protocol, b.encoder) == (protocol, encoder)]
        name = f"{spec.name}-{slug(protocol)}-{slug(encoder)}"
        if len(group) > 1:
            for kind, trained in (("training-free", False), ("trained", True)):
                ran = [line for line in _ran(spec, group) if trains(line) == trained]
                # What differs in one number has figures of its own.
                if lines := [line for line in ran if not line.varied] or ran:
                    yield f"{name}-curves-{kind}", curves_figure(group, lines)
        for board in group:
            for option in _varied(spec, board):
                yield f"{name}-{board.shots}-{option}", effect_figure(spec, board, option)
            ranks, ranked = board.ranks()
            if len(ranks) >= _FEWEST_LINES and ranked >= _FEWEST_DATASETS:
                yield f"{name}-{board.shots}-ranks", ranks_figure(ranks, ranked)


def curves_figure(boards: Sequence[Board], lines: Sequence[MethodSpec]) -> Figure:
    """Accuracy over shots, one panel a data set; bars are draws' deviation.

    First the mean of the data sets that have all numbers of shots.
    """
    columns = list(dict.fromkeys(column for board in boards for column in board.columns))
    shared = shared_columns(boards)
    panels = ["mean", *columns] if len(shared) > 1 else columns
    across = min(_MOST_ACROSS, len(panels))
    down = -(-len(panels) // across)
    scale = 1.7 if len(panels) == 1 else 1
    width = _PANEL_WIDTH * across * scale + 0.3
    entry = _LEGEND_SIGN + _LETTER * max(len(drawable(line.label, 32)) for line in lines)
    beside = max(1, min(max(across, _FEWEST_ACROSS), int(width / entry)))
    legend = _LEGEND_LINE * -(-len(lines) // beside)
    figure = blank(width, _PANEL_HEIGHT * down * scale + legend + 0.3)
    axes = list(figure.subplots(down, across, squeeze=False).ravel())
    for column, (place, panel) in enumerate(zip(axes, panels, strict=False)):
        dress(place, x="shots", y="" if column % across else "accuracy, %")
        title = f"mean of {len(shared)}" if panel == "mean" else drawable(title_of(panel))
        place.set_title(title, color=INK, fontsize=FONT_SIZE)
        for number, line in enumerate(lines):
            points = [
                (board.shots, *mean_and_deviation(values))
                for board in boards
                if (values := _values(board, line.label, panel, shared))
            ]
            if points:
                _curve(place, points, number, drawable(line.label, 32))
        _shots_axis(place, [board.shots for board in boards])
    for place in axes[len(panels) :]:
        place.remove()
    _legend(figure, axes[: len(panels)], beside)
    return figure


def effect_figure(spec: Spec, board: Board, option: str) -> Figure:
    """Accuracy on the rows that were chosen on, over the values of one option; test dashed."""
    families: dict[str, list[tuple[float, MethodSpec]]] = {}
    for line in spec.methods:
        if line.label in board.lines and _is_number(line.varied.get(option)):
            families.setdefault(line.family, []).append((float(line.varied[option]), line))
    figure = blank(4.8, 3.6)
    axes = dress(figure.add_subplot(), x=_TITLES.get(option, option), y="accuracy, %")
    for number, (family, points) in enumerate(families.items()):
        points.sort(key=lambda point: point[0])
        x = [value for value, _ in points]
        for name, style in (("validation_accuracy", "-"), ("accuracy", "--")):
            y = [board.average(line.label, name) for _, line in points]
            if not all(map(math.isnan, y)):
                words = f"{drawable(family, 32)}, {'test' if style == '--' else 'validation'}"
                axes.plot(
                    x, y, style, color=COLOURS[number % len(COLOURS)],
                    marker=MARKERS[number % len(MARKERS)], markersize=4, linewidth=1.4, label=words,
                )  # fmt: skip
    values = sorted({value for points in families.values() for value, _ in points})
    if values[0] > 0 and values[-1] / values[0] > 20:
        axes.set_xscale("log")
        axes.minorticks_off()
    _legend(figure, [axes], 2)
    return figure


def ranks_figure(ranks: dict[str, float], datasets: int) -> Figure:
    """Mean ranks on a line, best left; a bar joins methods that do not differ at 5 % (Nemenyi)."""
    ordered = sorted(ranks, key=lambda line: (ranks[line], line))
    places = np.array([ranks[line] for line in ordered])
    count = len(ordered)
    difference = critical_difference(count, datasets)
    runs = alike(places, difference)
    half = (count + 1) // 2
    top = 0.5 + 0.35 * len(runs)
    figure = blank(6.4, 1.4 + 0.16 * len(runs) + 0.24 * half)
    axes = figure.add_subplot()
    axes.set(xlim=(0.4, count + 0.6), ylim=(-(top + 0.75 * half), 1.9))
    axes.axis("off")
    axes.plot([1, count], [0, 0], color=INK, linewidth=1)
    for tick in range(1, count + 1):
        axes.plot([tick, tick], [0, 0.16], color=INK, linewidth=1)
        axes.text(tick, 0.3, str(tick), ha="center", color=MUTED, fontsize=FONT_SIZE - 1)
    axes.plot([1, 1 + difference], [1.25, 1.25], color=MUTED, linewidth=2)
    words = f"critical difference {difference:.2f}, {datasets} data sets"
    axes.text(1, 1.45, words, color=MUTED, fontsize=FONT_SIZE - 1)
    for level, (first, last) in enumerate(runs):
        height = -0.3 - 0.3 * level
        ends = [places[first] - 0.05, places[last] + 0.05]
        axes.plot(ends, [height, height], color=COLOURS[0], linewidth=3.5, solid_capstyle="butt")
    for number, (line, place) in enumerate(zip(ordered, places, strict=True)):
        left = number < half
        height = -top - 0.75 * (number if left else count - 1 - number)
        end = 0.9 if left else count + 0.1
        axes.plot([place, place, end], [0, height, height], color=LINE, linewidth=1, zorder=0)
        axes.text(
            end, height, f" {drawable(line, 32)} {place:.2f} ", va="center",
            ha="right" if left else "left", color=INK, fontsize=FONT_SIZE - 1,
        )  # fmt: skip
    return figure


def _curve(axes: Axes, points: Sequence[tuple[int, float, float]], number: int, label: str) -> None:
    shots, means, deviations = map(list, zip(*points, strict=True))
    axes.errorbar(
        shots, means, yerr=[0.0 if math.isnan(one) else one for one in deviations],
        color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)], markersize=3.5,
        linewidth=1.3, elinewidth=0.8, linestyle="-" if number < len(COLOURS) else "--",
        label=label,
    )  # fmt: skip


def _values(board: Board, line: str, panel: str, shared: Sequence[str]) -> list[float]:
    return board.means(line, shared) if panel == "mean" else board.values(line, panel)


def _shots_axis(axes: Axes, shots: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(shots, [str(one) for one in shots])
    axes.minorticks_off()


def _legend(figure: Figure, axes: Sequence[Axes], across: int) -> None:
    """One for all panels, below them, where it covers nothing."""
    entries: dict[str, Artist] = {}
    for place in axes:
        handles, labels = place.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=across,
        frameon=False, labelcolor=MUTED, fontsize=FONT_SIZE - 1,
    )  # fmt: skip


def _ran(spec: Spec, boards: Sequence[Board]) -> list[MethodSpec]:
    ran = {line for board in boards for line in board.lines}
    return [line for line in spec.methods if line.label in ran]


def _varied(spec: Spec, board: Board) -> list[str]:
    """The options that lines of this board vary in numbers, with more than one value."""
    values: dict[str, set[float]] = {}
    for line in spec.methods:
        for option, value in line.varied.items():
            if line.label in board.lines and _is_number(value) and option != SEED:
                values.setdefault(option, set()).add(float(value))
    return [option for option, found in values.items() if len(found) > 1]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
