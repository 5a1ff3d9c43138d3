"""Roofline tasks of a posterior: prediction with variance, and leave-one-out.

Formulas stand beside the tasks: n keys of width d in c classes, m queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from roofline_machine import Task
from torch import Tensor

from gpcache import TextPrior
from gpcache.gp import ExactPrecision
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.kernels import unit_rows
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.search import Choice
from gpcache.support.devices import resolve_dtype

SHOTS = 16
BETA, NOISE = 2.0, 0.1
LEFT_OUT = 20  # refits of the naive leave-one-out that are timed
# Rows around a centre: so wide that classes overlap, and a gradient has something to say.
SPREAD = 9


class Rows:
    """Synthetic unit rows (n, d) around class centres, so times and never accuracies."""

    def __init__(self, n: int, width: int, device: torch.device) -> None:
        self.n, self.width, self.device = n, width, device
        self.classes = n // SHOTS
        self.size = f"n = {n:,}, c = {self.classes:,}, d = {width:,}"
        self.dtype = resolve_dtype("auto", device)  # what the estimators compute in here
        self.precision = str(self.dtype).removeprefix("torch.")
        self.number_bytes = self.dtype.itemsize

    def drawn(self, rows: int, seed: int) -> Tensor:
        """Standard normal rows."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(rows, self.width, generator=generator)
        return drawn.to(self.device, self.dtype)

    @cached_property
    def labels(self) -> Tensor:
        """Class numbers (n,)."""
        return torch.arange(self.classes, device=self.device).repeat_interleave(SHOTS)

    @cached_property
    def text(self) -> Tensor:
        """The class centres (c, d), as a text encoder would know them."""
        return unit_rows(self.drawn(self.classes, 0))

    @cached_property
    def keys(self) -> Tensor:
        """The shots (n, d)."""
        return unit_rows(self.text[self.labels] * self.width**0.5 + SPREAD * self.drawn(self.n, 1))

    @cached_property
    def values(self) -> Tensor:
        """One-hot labels (n, c)."""
        return torch.nn.functional.one_hot(self.labels, self.classes).to(self.dtype)

    def zero_shot(self) -> Tensor:
        """The logits of the shots by their text (n, c)."""
        return 100 * self.keys @ self.text.mT

    def queries(self, count: int) -> Tensor:
        """Other rows (m, d) of the same classes."""
        labels = torch.arange(count, device=self.device) % self.classes
        return unit_rows(self.text[labels] * self.width**0.5 + SPREAD * self.drawn(count, 2))

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.str_], TextPrior]:
        """The shots, their class names, and the text, as a user gives them."""
        names = [f"class {i:04}" for i in range(self.classes)]
        prior = TextPrior(names, self.text.float().cpu().numpy())
        return self.keys.float().cpu().numpy(), np.array(names)[self.labels.cpu().numpy()], prior

    def task(self, name: str, *ways: Any, further: str = "", **options: Any) -> Task:
        """A task on these rows: ours, naive and operations; in their precision unless given."""
        return Task(name, self.size + further, *ways, **{"dtype": self.precision} | options)

    def posterior(self) -> ExactPrecision:
        """The exact posterior of all rows, nothing computed yet."""
        return ExactPrecision(None, self.keys, self.values, beta=BETA, noise=NOISE)


def prediction_tasks(rows: Rows, counts: Sequence[int]) -> Iterator[Task]:
    """Mean and variance of one query and of many, from a factor that is there."""
    n, c, d = rows.n, rows.classes, rows.width
    posterior = rows.posterior()
    posterior.posterior(rows.queries(1))  # factor and solved values are made on first use
    inverse = torch.cholesky_inverse(posterior._factor)
    model = CacheModel(FeatureMap(), posterior, None, Choice(BETA, NOISE, 1.0, 1.0, 1.0))
    for m in counts:
        queries = rows.queries(m)
        yield rows.task(
            "prediction with variance",
            lambda queries=queries: torch.cat(model.posterior(queries), 1),
            partial(naive_posterior, rows, queries, inverse),
            # Kernel rows, the mean, and one triangular solve a query for the variance.
            m * (2 * n * d + 2 * n * c + n**2),
            further=f"; {m:,} {'query' if m == 1 else 'queries'}",
            # Keys, solved values, half a matrix and the queries are read, means written.
            bytes=rows.number_bytes * (n * d + n * c + n**2 / 2 + m * (d + c)),
        )


def naive_posterior(rows: Rows, queries: Tensor, inverse: Tensor) -> Tensor:
    """k P Y and 1 − k P kᵀ as they stand, a block of queries at a time: (m, c + 1)."""
    found = []
    for part in torch.split(queries, 8192):
        cross = torch.exp(-BETA * (1 - part @ rows.keys.mT))
        weights = cross @ inverse
        found.append(torch.cat([weights @ rows.values, 1 - (weights * cross).sum(1)[:, None]], 1))
    return torch.cat(found)


def variance_tasks(rows: Rows, count: int) -> Iterator[Task]:
    """The variance alone, by leading directions, at β = noise = 1 where the default walk starts."""
    n, d = rows.n, rows.width
    posterior = ExactPrecision(None, rows.keys, rows.values, beta=1.0, noise=1.0)
    queries = rows.queries(count)
    posterior.variance(queries[:1], quick=True)  # the directions are found on first use
    quick = posterior._quick
    if quick is None:  # few directions do not carry this kernel
        return
    rank = quick.basis.shape[1]
    yield rows.task(
        "variance within 1 %",
        lambda: posterior.variance(queries, quick=True),
        lambda: posterior.variance(queries),
        # Kernel rows, and their coordinates.
        count * (2 * n * d + 2 * n * rank),
        further=f"; {count:,} queries, {rank:,} directions",
        bytes=rows.number_bytes * (n * d + n * rank + count * d),
    )


def leave_one_out_tasks(rows: Rows) -> Iterator[Task]:
    """All rows left out in turn, from the keys alone."""
    n, device = rows.n, rows.device

    def refitted() -> Tensor:
        found = []
        for i in range(LEFT_OUT):
            kept = torch.arange(n, device=device) != i
            less = ExactPrecision(None, rows.keys[kept], rows.values[kept], beta=BETA, noise=NOISE)
            found.append(less.mean(rows.keys[i : i + 1]))
        return torch.cat(found)

    yield rows.task(
        "leave-one-out",
        lambda: rows.posterior().leave_one_out().mean,
        refitted,
        # Half a Gram matrix, its factor, the factor's inverse (its columns' lengths are the
        # diagonal that is needed), and solved values.
        n**2 * rows.width + 2 / 3 * n**3 + 2 * n**2 * rows.classes,
        bytes=rows.number_bytes * (n * rows.width + n**2 / 2 + 2 * n * rows.classes),
        naive_parts=n / LEFT_OUT,
    )
