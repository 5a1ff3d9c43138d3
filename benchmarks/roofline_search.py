"""Roofline tasks of choosing hyper-parameters: the default fit, and the exact grid of all four.

Formulas stand beside the tasks: n keys of width d in c classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from measuring import once
from roofline_machine import Spent, Task, operations_of
from roofline_posterior import Rows
from torch import Tensor

from gpcache import GPCacheClassifier
from gpcache.gp.sweep import Sweep, SweepPoint
from gpcache.methods.cache import search

# The four parameters of the exact search, over the ranges of the library's own grid.
BETAS = np.geomspace(2.0**-2, 2.0**5, 20).tolist()
NOISES = np.geomspace(1e-3, 1e1, 11).tolist()
ETAS = search.ETAS
ALPHAS = tuple(np.geomspace(0.1, 1e3, 25).tolist())
# The plain grid that a default fit replaces (fit_speed.py): (β, noise) places, η and α.
PLACES = 7 * 5
PLAIN_ETAS, PLAIN_ALPHAS = (0.0, 0.5, 1.0, 2.0), np.geomspace(0.3, 300, 13).tolist()
POINTS = 2  # places of a naive grid that are timed
# What the operations of a posterior are there for.
WORDS = {
    "linalg_cholesky_ex": "factor (`linalg_cholesky_ex`)",
    "cholesky_inverse": "inverse (`cholesky_inverse`)",
    "_linalg_eigh": "eigenvectors (`linalg_eigh`)",
    "mm": "solved values (`mm`)",
    "exp_": "kernel (`exp_`)",
}


def fit_tasks(rows: Rows, *, limit: float | None = None) -> Iterator[Task]:
    """The default fit with text: whitening, search, temperature and held-out report in folds."""
    features, labels, prior = rows.arrays()
    model = GPCacheClassifier.from_options(text_prior=prior, device=rows.device)
    yield rows.task(
        "default fit with search",
        lambda: model.fit(features, labels),
        lambda: naive_grid(rows, [1.0], NOISES[-POINTS:], PLAIN_ETAS, PLAIN_ALPHAS),
        lambda: fit_operations(len(model.search_["beta"]), rows),
        bytes=lambda: fit_bytes(len(model.search_["beta"]), rows),
        naive_parts=PLACES / POINTS,
        note="The naive fit is the plain grid of `fit_speed.py`: raw space, leave-one-out, an "
        f"explicit inverse for each of {PLACES} (β, noise), loops over {len(PLAIN_ETAS)} η and "
        f"{len(PLAIN_ALPHAS)} α; {POINTS} places were timed and multiplied. The operations of the "
        "default fit are those of the settings that its search tried, in four folds, each with "
        "two products with the kernel, and of the last model. Above 8,000 shots the default fit "
        "takes explicit features, so that this floor does not apply.",
        limit=limit,
        reason="The default fit whitens, weighs and calibrates in four folds, and reports figures "
        "that are nested; the plain grid has one space and one figure. At this size both wait for "
        "the start of small operations, of which the default fit has more.",
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


def naive_grid(
    rows: Rows,
    betas: Sequence[float],
    noises: Sequence[float],
    etas: Sequence[float],
    alphas: Sequence[float],
) -> Tensor:
    """The highest leave-one-out accuracy of each (β, noise), found by loops."""
    text, Y, labels = 100 * rows.keys @ rows.text.mT, rows.values, rows.labels
    similarity = rows.keys @ rows.keys.mT
    eye = torch.eye(rows.n, dtype=rows.dtype, device=rows.device)
    found = []
    for beta in betas:
        for noise in noises:
            inverse = torch.linalg.inv(torch.exp(-beta * (1 - similarity)) + noise * eye)
            diagonal = inverse.diagonal()
            mean = Y - (inverse @ Y) / diagonal[:, None]
            variance = (1 / diagonal - noise).clamp(1e-6, 1)
            best = (-math.inf, -math.inf)
            for eta in etas:
                scaled = mean / variance[:, None] ** eta
                for alpha in alphas:
                    logits = text + alpha * (1 + noise) * scaled
                    accuracy = float((logits.argmax(1) == labels).double().mean())
                    nll = float(torch.nn.functional.cross_entropy(logits, labels))
                    best = max(best, (accuracy, -nll))
            found.append(best[0])
    return torch.tensor(found)


class FourParameters:
    """The exact search of β, noise, η and α by leave-one-out, over the whole grid."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._zero_shot = 100 * rows.keys @ rows.text.mT
        # The library's own grid has fewer α; the size that was promised has 25.
        search.ALPHAS = ALPHAS

    def _fused(
        self, beta: float, points: Sequence[SweepPoint], criterion: search.Criterion
    ) -> list[float]:
        """The accuracy of the best (η, α) at one β and every noise."""
        settings, found = search.SearchOptions(gain=1.0, criterion=criterion), []
        given = self._zero_shot, self.rows.labels
        for noise, point in zip(NOISES, points, strict=True):
            held_out = search.CacheOutputs(point.mean, point.variance, *given)
            found.append(search.weigh(held_out, settings, (beta, noise, 1.0)).accuracy)
        return found

    def walked(self, criterion: search.Criterion) -> Tensor:
        """The accuracy of the best (η, α) at every (β, noise)."""
        sweep, found = Sweep(self.rows.keys), []
        for beta in BETAS:
            found += self._fused(beta, sweep.at(self.rows.values, beta, NOISES), criterion)
        return torch.tensor(found)

    def spent(self) -> dict[str, Spent]:
        """Milliseconds of the parts at one β with all its noises, by accuracy and by NLL."""
        rows, beta = self.rows, BETAS[len(BETAS) // 2]
        sweep = Sweep(rows.keys)
        points = sweep.at(rows.values, beta, NOISES)

        def milliseconds(call: Callable[..., object], *arguments: object) -> float:
            return 1e3 * once(lambda: call(*arguments), rows.device)[0]

        similarity = milliseconds(Sweep, rows.keys) / len(BETAS)
        inside = operations_of(lambda: sweep.at(rows.values, beta, NOISES), rows.device)
        parts = [(f"similarity, one of {len(BETAS)} parts", similarity)]
        parts += [(WORDS.get(name, name), spent) for name, spent in inside]
        ways: dict[str, search.Criterion] = {"by accuracy": "accuracy", "by NLL": "nll"}
        return {
            how: [*parts, ("fusion", milliseconds(self._fused, beta, points, criterion))]
            for how, criterion in ways.items()
        }


def search_tasks(four: FourParameters, *, limit: float | None) -> Iterator[Task]:
    """The whole grid, α by a grid of its own or by Newton."""
    rows = four.rows
    n, c, d = rows.n, rows.classes, rows.width
    places, fusions = len(BETAS) * len(NOISES), len(ETAS) * len(ALPHAS)
    ways: dict[search.Criterion, str] = {
        "accuracy": "α on a grid, by accuracy",
        "nll": "α by Newton on the NLL",
    }
    for criterion, how in ways.items():
        yield rows.task(
            f"exact four-parameter search, leave-one-out, {how}",
            partial(four.walked, criterion),
            lambda: naive_grid(rows, BETAS[:1], NOISES[:POINTS], ETAS, ALPHAS),
            # Similarities; then factor, its inverse and solved values; then every logit.
            n**2 * d + places * (2 / 3 * n**3 + 2 * n**2 * c + 2 * n * c * fusions),
            further=f"; {len(BETAS)} β × {len(NOISES)} noise × {len(ETAS)} η × {len(ALPHAS)} α",
            bytes=places * (n**2 / 2 + 2 * n * c) * rows.number_bytes,
            naive_parts=places / POINTS,
            comparable=criterion == "accuracy",
            limit=limit,
            note=f"The naive search inverts explicitly at each of {places} (β, noise) and loops "
            f"over η and α; {POINTS} places were timed and multiplied.",
        )
