"""Roofline tasks of images without labels: their neighbours, and a similarity projection."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from roofline_machine import Task
from torch import Tensor
from torch.nn.functional import normalize

from gpcache.features.neighbors import nearest
from gpcache.similarity import ProjectionOptions, contrastive_loss
from gpcache.similarity.checkpoint import Progress
from gpcache.similarity.pairs import paired_rows
from gpcache.similarity.projection import identity_weights
from gpcache.similarity.train import _Learner

NEIGHBOURS = 128
CHUNK_BYTES = 2**30  # of the naive search
CLUSTER = 200  # images of a kind: more than an anchor's neighbours


def neighbour_tasks(n: int, width: int, device: torch.device) -> Iterator[Task]:
    """Every row looks for its neighbours among all."""
    generator = torch.Generator().manual_seed(0)
    rows = normalize(torch.randn(n, width, generator=generator), dim=1).to(device)

    def naive() -> Tensor:
        parts = rows.split(max(1, CHUNK_BYTES // (4 * n)))
        return torch.cat([(part @ rows.mT).topk(NEIGHBOURS).values.cpu() for part in parts])

    yield Task(
        "neighbours",
        f"{n:,} rows among themselves, d = {width:,}, k = {NEIGHBOURS}",
        lambda: torch.from_numpy(nearest(rows, k=NEIGHBOURS, device=device)[1]),
        naive,
        n**2 * width,  # half a matrix of similarities
        bytes=4 * n * width + 12 * n * NEIGHBOURS,  # the rows; positions and similarities
        dtype="float32",
    )


def clustered(rows: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Unit features (p, d) around shared centres, and a view of each that lies near it."""
    generator = torch.Generator(device).manual_seed(0)

    def drawn(count: int) -> Tensor:
        return torch.randn(count, dim, generator=generator, device=device)

    centres = drawn(max(1, rows // CLUSTER))
    kinds = torch.randint(len(centres), (rows,), generator=generator, device=device)
    original = normalize(centres[kinds] + drawn(rows), dim=1)
    views = normalize(original + 0.5 * drawn(rows) / dim**0.5, dim=1)
    return original, views


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
