"""Roofline tasks of training: steps of GPCache-F, and an epoch of a similarity projection.

Formulas stand beside the tasks: n keys of width d in c classes, m queries in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from roofline_machine import Spent, Task, operations_of
from roofline_posterior import Rows
from similarity_gpu import clustered
from torch import Tensor
from torch.nn.functional import normalize
from training_step import both_logits, gradient, train_exactly

from gpcache.gp.kernels import unit_rows
from gpcache.methods.training import Schedule
from gpcache.similarity import ProjectionOptions, contrastive_loss
from gpcache.similarity.checkpoint import Progress
from gpcache.similarity.pairs import paired_rows
from gpcache.similarity.projection import identity_weights
from gpcache.similarity.train import _Learner


class Step:
    """One step of GPCache-F on a batch of views of the shots: the gradient by the keys."""

    def __init__(self, rows: Rows, batch: int, groups: Sequence[int]) -> None:
        self.rows, self.batch, self.groups = rows, batch, groups
        # As an augmentation would move them, and far enough that there is something to learn.
        self.views = unit_rows(rows.keys + 1.6 * unit_rows(rows.drawn(rows.n, 3)))
        chosen = torch.randperm(rows.n, generator=torch.Generator().manual_seed(0))[:batch]
        chosen = chosen.to(rows.device)
        queries = self.views[chosen]
        given = (rows.keys, queries, rows.values, 100 * queries @ rows.text.mT)
        # The precision of the fastest products that a step may use.
        self.floor_dtype = "tf32" if rows.device.type == "cuda" else rows.precision
        # By the number of groups: through the library, and by explicit inverses and autograd.
        self.ways = {
            g: [
                partial(gradient, logits, rows.dtype, rows.labels[chosen], *given)
                for logits in both_logits(g, rows.labels, rows.classes, rows.dtype)
            ]
            for g in groups
        }

    def operations(self, groups: int) -> float:
        """Forward and backward of all groups together."""
        n, m, c, d = self.rows.n, self.batch, self.rows.classes, self.rows.width
        # In each group: half a Gram matrix and the product of its gradient with the keys, the
        # factor, two solves for the queries and the gradient of the covariance.
        within = 3 * n**2 * d / groups + n**3 / groups**2 / 3 + 6 * n**2 * m / groups
        # Kernel rows and their gradient by the keys; the mean and what returns through it.
        return within + 4 * n * m * d + 4 * n * m * c / groups

    def bytes(self, groups: int) -> float:
        """Keys and their gradient, and half a covariance and its gradient in each group."""
        n, d = self.rows.n, self.rows.width
        return self.rows.number_bytes * (2 * n * d + n**2 / groups)

    def spent(self) -> Spent:
        """Milliseconds by operation of an exact step."""
        return operations_of(self.ways[1][0], self.rows.device)


def step_tasks(step: Step, *, limit: float | None) -> Iterator[Task]:
    """Exact and grouped steps."""
    rows = step.rows
    for n_groups in step.groups:
        name = "exact" if n_groups == 1 else f"{n_groups} groups"
        yield rows.task(
            f"GPCache-F step, {name}",
            *step.ways[n_groups],
            step.operations(n_groups),
            further=f"; batch {step.batch}",
            bytes=step.bytes(n_groups),
            dtype=step.floor_dtype,
            limit=limit if n_groups == 1 else None,
            comparable=False,
            note="The naive step differentiates explicit inverses by autograd, one group after "
            "the other; how far both are from float64 is on the page training.md. The floor of a "
            "step on a GPU is that of TF32 products.",
        )


def epochs_tasks(step: Step, epochs: int, *, limit: float | None) -> Iterator[Task]:
    """A whole exact training through the library's loop."""
    rows = step.rows
    steps = epochs * -(-rows.n // Schedule().batch_size)
    yield rows.task(
        f"GPCache-F training, exact, {epochs} epochs",
        lambda: train_exactly(rows.keys, step.views, rows.labels, rows.values, rows.text, epochs),
        step.ways[1][1],
        steps * step.operations(1),
        further=f"; {steps:,} steps",
        bytes=steps * step.bytes(1),
        dtype=step.floor_dtype,
        naive_parts=steps,
        limit=limit,
        note=f"The naive training is its step times {steps:,}.",
    )


def similarity_tasks(images: int, width: int, device: torch.device) -> Iterator[Task]:
    """An epoch of a projection, once the images to contrast are known."""
    options = ProjectionOptions(epochs=1)
    original, views = paired_rows(*clustered(images, width, device), device)
    start = Progress(identity_weights(width, bottleneck=1, residual=True, seed=0))
    learner = _Learner(original, views, options, start)
    steps, anchors, size = learner.steps, options.batch_size, options.neighbours
    batch = learner.sets[torch.arange(anchors, device=device) * (images // anchors)]
    distinct = len(torch.unique(batch))
    cosines = min(anchors * size**2, distinct**2)  # sets overlap

    yield Task(
        "similarity training, an epoch",
        f"{images:,} images, d = {width:,}; {steps} steps of {anchors} anchors with {size} images",
        lambda: learner.epoch(0, lambda: None),
        lambda: naive_projection_step(original, views[:, 0], batch, options.temperature),
        # Projections of the distinct images of a step, cosines, and the gradients of both.
        steps * (8 * distinct * width**2 + 6 * cosines * width),
        bytes=steps * original.element_size() * 2 * (distinct * width + cosines),
        dtype="float32",
        naive_parts=steps,
        note="The naive epoch projects every image again for each anchor, in float32; one step was "
        "timed and multiplied.",
    )


def naive_projection_step(
    original: Tensor, views: Tensor, sets: Tensor, temperature: float
) -> Tensor:
    """The loss of the sets (b, r) and its gradient, every image projected for each of its sets."""
    matrix = torch.zeros(original.shape[1], original.shape[1], device=original.device)
    matrix.requires_grad_()
    first, second = (
        normalize(rows[sets] @ matrix.mT + rows[sets], dim=-1) for rows in (views, original)
    )
    loss = contrastive_loss(first @ second.mT, temperature=temperature)
    return torch.autograd.grad(loss, matrix)[0]
