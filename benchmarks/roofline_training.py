"""Roofline tasks of training: steps of GPCache-F, and a whole training.

Formulas stand beside the tasks: n keys of width d in c classes, m queries in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from literal import both_logits, gradient, our_logits
from roofline_machine import Task
from roofline_posterior import Rows

from gpcache.gp import ExactPrecision
from gpcache.gp.kernels import unit_rows
from gpcache.methods.training import Schedule, train


class Step:
    """One step of GPCache-F on a batch of views of the shots: the gradient by the keys."""

    def __init__(self, rows: Rows, batch: int) -> None:
        self.rows, self.batch = rows, batch
        # As an augmentation would move them, and far enough that there is something to learn.
        self.views = unit_rows(rows.keys + 1.6 * unit_rows(rows.drawn(rows.n, 3)))
        chosen = torch.randperm(rows.n, generator=torch.Generator().manual_seed(0))[:batch]
        chosen = chosen.to(rows.device)
        queries = self.views[chosen]
        self.given = (rows.keys, queries, rows.values, 100 * queries @ rows.text.mT)
        self.targets = rows.labels[chosen]
        # The precision of the fastest products that a step may use.
        self._floor_dtype = "tf32" if rows.device.type == "cuda" else rows.precision

    def tasks(self, groups: Sequence[int]) -> Iterator[Task]:
        """Steps with so many groups of classes; one group is the exact posterior."""
        rows = self.rows
        for g in groups:
            ours, naive = both_logits(g, rows.labels, rows.classes, rows.dtype)
            ways = ((ours, rows.dtype), (naive, rows.dtype), (naive, torch.float64))
            calls = [partial(gradient, *way, self.targets, *self.given) for way in ways]
            yield rows.task(
                f"GPCache-F step, {'exact' if g == 1 else f'{g} groups'}",
                *calls[:2],
                self._operations(g),
                further=f"; batch {self.batch}",
                bytes=self._bytes(g),
                dtype=self._floor_dtype,
                exact=calls[2],
            )

    def training_tasks(self, epochs: int) -> Iterator[Task]:
        """A whole exact training through the library's loop."""
        rows = self.rows
        steps = epochs * -(-rows.n // Schedule().batch_size)
        text, exact = 100 * self.views @ rows.text.mT, partial(ExactPrecision, None)

        def training() -> object:
            keys = rows.keys.clone().requires_grad_()
            return train(
                [keys],
                lambda some: our_logits(exact, keys, self.views[some], rows.values, text[some]),
                rows.labels,
                Schedule(epochs=epochs),
            )

        (step,) = self.tasks([1])
        yield rows.task(
            f"GPCache-F training, exact, {epochs} epochs",
            training,
            step.naive,
            steps * self._operations(1),
            further=f"; {steps:,} steps",
            bytes=steps * self._bytes(1),
            dtype=self._floor_dtype,
            naive_parts=steps,
        )

    def _operations(self, groups: int) -> float:
        """Forward and backward of all groups together."""
        n, m, c, d = self.rows.n, self.batch, self.rows.classes, self.rows.width
        # In each group: half a Gram matrix and the product of its gradient with the keys, the
        # factor, two solves for the queries and the gradient of the covariance.
        within = 3 * n**2 * d / groups + n**3 / groups**2 / 3 + 6 * n**2 * m / groups
        # Kernel rows and their gradient by the keys; the mean and what returns through it.
        return within + 4 * n * m * d + 4 * n * m * c / groups

    def _bytes(self, groups: int) -> float:
        """Keys and their gradient, and half a covariance and its gradient in each group."""
        n, d = self.rows.n, self.rows.width
        return self.rows.number_bytes * (2 * n * d + n**2 / groups)
