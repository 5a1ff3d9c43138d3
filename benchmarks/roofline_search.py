"""Roofline tasks of choosing hyper-parameters: the default fit, and the exact grid of all four.

Formulas stand beside the tasks: n keys of width d in c classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from roofline_machine import Task
from roofline_posterior import Rows
from torch import Tensor

from gpcache import GPCacheClassifier
from gpcache.gp.sweep import Sweep
from gpcache.methods.cache import search


class Grid(NamedTuple):
    """The values of β, noise, η and α that are tried."""

    betas: Sequence[float]
    noises: Sequence[float]
    etas: Sequence[float]
    alphas: Sequence[float]

    @property
    def places(self) -> int:
        """How many pairs of β and noise there are."""
        return len(self.betas) * len(self.noises)


# The exact search, over the ranges of the library's own grid.
EXACT = Grid(
    np.geomspace(2.0**-2, 2.0**5, 20).tolist(),
    np.geomspace(1e-3, 1e1, 11).tolist(),
    search.ETAS,
    tuple(np.geomspace(0.1, 1e3, 25).tolist()),
)
# The plain grid that a default fit replaces.
PLAIN = Grid(
    (0.25, 0.5, 1, 2, 4, 8, 16),
    (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    (0.0, 0.5, 1.0, 2.0),
    np.geomspace(0.3, 300, 13).tolist(),
)
POINTS = 2  # places of a naive grid that are timed
Score = Callable[[Tensor, Tensor], Tensor]  # of logits (n, c) and labels (n,)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of right answers."""
    return (logits.argmax(1) == labels).double().mean()


def likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean log-likelihood."""
    return -torch.nn.functional.cross_entropy(logits, labels)


def naive_grid(keys: Tensor, values: Tensor, text: Tensor, score: Score, grid: Grid) -> Tensor:
    """The highest leave-one-out score of each (β, noise), found by loops; text is logits (n, c)."""
    labels, similarity = values.argmax(1), keys @ keys.mT
    eye = torch.eye(len(keys), dtype=keys.dtype, device=keys.device)
    found = []
    for beta in grid.betas:
        for noise in grid.noises:
            inverse = torch.linalg.inv(torch.exp(-beta * (1 - similarity)) + noise * eye)
            diagonal = inverse.diagonal()
            mean = values - (inverse @ values) / diagonal[:, None]
            variance = (1 / diagonal - noise).clamp(1e-6, 1)
            best = -math.inf
            for eta in grid.etas:
                scaled = mean / variance[:, None] ** eta
                for alpha in grid.alphas:
                    logits = text + alpha * (1 + noise) * scaled
                    best = max(best, float(score(logits, labels)))
            found.append(best)
    return torch.tensor(found)


def fit_tasks(rows: Rows) -> Iterator[Task]:
    """The default fit with text: whitening, search, temperature and held-out report in folds."""
    features, labels, prior = rows.arrays()
    model = GPCacheClassifier.from_options(text_prior=prior, device=rows.device)
    part = PLAIN._replace(betas=[1.0], noises=PLAIN.noises[-POINTS:])
    yield rows.task(
        "default fit with search",
        lambda: model.fit(features, labels),
        lambda: naive_grid(rows.keys, rows.values, rows.zero_shot(), likelihood, part),
        lambda: fit_operations(len(model.search_["beta"]), rows),
        bytes=lambda: fit_bytes(len(model.search_["beta"]), rows),
        naive_parts=PLAIN.places / POINTS,
    )


def fit_bytes(looked_at: int, rows: Rows) -> float:
    """Half a similarity matrix read and half a kernel matrix written, setting by setting."""
    return rows.number_bytes * (4 * looked_at * (rows.n * 3 / 4) ** 2 + rows.n**2)


def fit_operations(looked_at: int, rows: Rows) -> float:
    """What the walk in four folds and the last model must compute."""
    n, m, c, d = rows.n * 3 / 4, rows.n / 4, rows.classes, rows.width
    small = min(n, d)
    # Scatter or Gram matrix and its factor; similarities.
    once_a_fold = n * d * small + small**3 / 3 + n**2 * d + 2 * n * m * d
    # Two products with the kernel, and the logits of the held-out rows.
    walk = 4 * (once_a_fold + looked_at * (4 * n**2 * c + 2 * n * m * c))
    small = min(rows.n, d)
    return walk + rows.n * d * (small + rows.n) + small**3 / 3 + 4 * rows.n**2 * c


def walked(rows: Rows, criterion: search.Criterion) -> Tensor:
    """The accuracy of the best (η, α) at every (β, noise), by leave-one-out over the whole grid."""
    settings, sweep = search.SearchOptions(gain=1.0, criterion=criterion), Sweep(rows.keys)
    text, found = rows.zero_shot(), []
    for beta in EXACT.betas:
        points = sweep.at(rows.values, beta, EXACT.noises)
        for noise, point in zip(EXACT.noises, points, strict=True):
            held_out = search.CacheOutputs(point.mean, point.variance, text, rows.labels)
            found.append(search.weigh(held_out, settings, (beta, noise, 1.0)).accuracy)
    return torch.tensor(found)


def search_tasks(rows: Rows) -> Iterator[Task]:
    """The whole grid, α by a grid of its own or by Newton."""
    # The library's own grid has fewer α; the size that was promised has 25.
    search.ALPHAS = EXACT.alphas
    n, c, d = rows.n, rows.classes, rows.width
    places, fusions = EXACT.places, len(EXACT.etas) * len(EXACT.alphas)
    part = EXACT._replace(betas=EXACT.betas[:1], noises=EXACT.noises[:POINTS])
    sizes = zip(map(len, EXACT), ("β", "noise", "η", "α"), strict=True)
    size = " × ".join(f"{count} {name}" for count, name in sizes)
    ways: dict[search.Criterion, tuple[str, Score]] = {
        "accuracy": ("α on a grid, by accuracy", accuracy),
        "nll": ("α by Newton on the NLL", likelihood),
    }
    for criterion, (how, score) in ways.items():
        yield rows.task(
            f"exact four-parameter search, leave-one-out, {how}",
            partial(walked, rows, criterion),
            partial(naive_grid, rows.keys, rows.values, rows.zero_shot(), score, part),
            # Similarities; then factor, its inverse and solved values; then every logit.
            n**2 * d + places * (2 / 3 * n**3 + 2 * n**2 * c + 2 * n * c * fusions),
            further=f"; {size}",
            bytes=places * (n**2 / 2 + 2 * n * c) * rows.number_bytes,
            naive_parts=places / POINTS,
            comparable=criterion == "accuracy",
        )
