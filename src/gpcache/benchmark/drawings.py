"""Figures of the paper that need no runs: weights in one dimension, features and a projection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpcache.benchmark.figures import COLOURS
from gpcache.benchmark.protocols import Labelled
from gpcache.model.report.drawing import FONT_SIZE, INK, MUTED, blank, class_colours, dress
from gpcache.model.report.projection import flatten
from gpcache.similarity import SimilarityProjection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The paper's settings of its figure.
BETA, POINTS, NOISES = 100.0, 200, (1.0, 100.0)
# More points would take minutes to lay out and cover each other.
MOST_POINTS = 1500


def weight_functions(noise: float, query: float = 0.5) -> tuple[NDArray[Any], ...]:
    """Points x (200,) in [0, 1] and the weight of each for a query: of a plain cache, and of a GP.

    The cache weighs by κ(query, x) = exp(−β (query − x)²), the GP by κ(query, X)(K + noise·I)⁻¹.
    """
    x = np.linspace(0, 1, POINTS)
    plain = np.exp(-BETA * (query - x) ** 2)
    covariance = np.exp(-BETA * (x[:, None] - x) ** 2) + noise * np.eye(POINTS)
    return x, plain, np.linalg.solve(covariance, plain)


def weights_figure() -> Figure:
    """How a cache and a GP weigh the training points around a query, each relative to its peak."""
    figure = blank(6.4, 2.9)
    for axes, noise in zip(figure.subplots(1, 2, sharey=True), NOISES, strict=True):
        dress(axes, x="training point", y="weight / its largest" if noise == NOISES[0] else "")
        axes.set_title(f"σ² = {noise:g}", color=INK, fontsize=FONT_SIZE)
        x, plain, weighed = weight_functions(noise)
        axes.plot(x, plain / plain.max(), "--", color=COLOURS[1], label="cache (Nadaraya–Watson)")
        axes.plot(x, weighed / weighed.max(), color=COLOURS[0], label="Gaussian process")
        axes.axvline(0.5, color=MUTED, linewidth=0.8, linestyle=":", label="query")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, labelcolor=MUTED,
        fontsize=FONT_SIZE - 1,
    )  # fmt: skip
    return figure


def projection_figure(rows: Labelled, projection: SimilarityProjection) -> Figure:
    """Features before and after the projection, in the colours of their classes."""
    step = -(-len(rows.labels) // MOST_POINTS)
    features = rows.features[::step]
    classes, numbers = np.unique(rows.labels[::step], return_inverse=True)
    colours = np.array(class_colours(len(classes)))[numbers]
    projected = projection(torch.from_numpy(features).double()).numpy()
    figure = blank(7.2, 3.8)
    panels = zip(figure.subplots(1, 2), ("before", "after"), (features, projected), strict=True)
    for axes, words, shown in panels:
        picture = flatten(shown)
        dress(axes)
        axes.set(xticks=[], yticks=[])
        title = f"{words} the projection ({picture.method})"
        axes.set_title(title, color=INK, fontsize=FONT_SIZE)
        axes.scatter(*picture.points.T, c=colours, s=7, linewidths=0, alpha=0.85, rasterized=True)
    return figure
