"""Learns a similarity projection from features of unlabelled images and of their views.

A step takes b anchors and contrasts the r images of each: 4·b·r·d² operations to project them, as
many for the gradient, and 6·b·r²·d for their similarities and the gradients of those.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpcache.errors import NumericalError
from gpcache.similarity.checkpoint import Checkpoint, Progress
from gpcache.similarity.contrast import contrastive_loss, cosines_of_sets, nearest_sets, random_sets
from gpcache.similarity.options import ProjectionOptions
from gpcache.similarity.pairs import paired_rows
from gpcache.similarity.projection import SimilarityProjection, identity_weights, linear_map
from gpcache.support.devices import ensure_memory, resolve_device
from gpcache.support.progress import progress_bar

# Rows of a step that are alive at once, counted on a GPU: gathered, projected, scaled to length
# one, and the gradients of the last two, for originals and views.
_LIVE_ROWS = 12


def learn_projection(
    original: Any,
    views: Any,
    *,
    options: ProjectionOptions | None = None,
    checkpoint: Checkpoint | None = None,
    device: str | torch.device = "auto",
) -> tuple[SimilarityProjection, list[float]]:
    """Learn a similarity projection from features of unlabelled images and of their views.

    Parameters
    ----------
    original : array of shape (p, d)
        Features of the images.
    views : array of shape (p, d) or (p, v, d)
        Features of augmented views of the same images, in the same order. In each epoch every image
        shows one of its views.
    options : ProjectionOptions, optional
        How to learn.
    checkpoint : Checkpoint, optional
        Where to keep the progress: a run that was stopped continues after its last complete epoch,
        with the same result.
    device : str or torch.device, default="auto"
        Device to compute on.

    Returns
    -------
    projection : SimilarityProjection
        The projection, on the CPU.
    history : list of float
        Mean loss of an image in each epoch.

    Raises
    ------
    NumericalError
        If the loss diverges.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.similarity import ProjectionOptions, learn_projection
    >>> rng = np.random.default_rng(0)
    >>> images = rng.normal(size=(40, 8))
    >>> views = images + 0.1 * rng.normal(size=(40, 8))
    >>> options = ProjectionOptions(neighbours=8, batch_size=16, epochs=1)
    >>> projection, history = learn_projection(images, views, options=options, device="cpu")
    >>> projection.dim, len(history)
    (8, 1)
    """
    options = options or ProjectionOptions()
    image_rows, view_rows = paired_rows(original, views, resolve_device(device))
    _ensure_memory(image_rows, options)
    key = "" if checkpoint is None else _key(image_rows, view_rows, options)
    progress = None if checkpoint is None else checkpoint.read(key)
    if progress is None:
        progress = Progress(
            identity_weights(
                image_rows.shape[1],
                bottleneck=options.bottleneck,
                residual=options.residual,
                seed=options.seed,
            )
        )
    learner = _Learner(image_rows, view_rows, options, progress)
    epochs = range(len(progress.history), options.epochs)
    # In full float32: an H200 takes 1.9 times as long for a step as in TF32, which torch can only
    # allow for the whole process. Callers may: torch.set_float32_matmul_precision("high").
    with progress_bar("Similarity", total=learner.steps * len(epochs), unit="step") as bar:
        for epoch in epochs:
            loss = learner.epoch(epoch, bar.update)
            if not math.isfinite(loss):
                raise NumericalError(
                    f"Learning the projection diverged in epoch {epoch + 1}: lower the learning "
                    f"rate ({options.learning_rate:g})."
                )
            progress = learner.progress([*progress.history, loss])
            if checkpoint is not None:
                checkpoint.write(key, progress)
    _warn_of_collapse(progress.history, options)
    weights = tuple(weight.cpu() for weight in progress.weights)
    return SimilarityProjection(weights, options.residual), progress.history


class _Learner:
    """Features on one device, the weights, and their optimiser."""

    def __init__(
        self, original: Tensor, views: Tensor, options: ProjectionOptions, progress: Progress
    ) -> None:
        self.original, self.options = original, options
        self.count = views.shape[1]
        self.views = views.flatten(0, 1)
        # Neighbours overlap: on a CPU each row is projected once. On a GPU the product is
        # cheap, and summing the gradients of shared rows has no fixed order.
        self.shared = original.device.type == "cpu"
        self.steps = -(-len(original) // options.batch_size)  # of an epoch
        device = original.device
        self.weights = tuple(
            weight.to(device, copy=True).requires_grad_() for weight in progress.weights
        )
        self.optimiser = torch.optim.SGD(
            self.weights,
            lr=options.learning_rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
        )
        for weight, momentum in zip(self.weights, progress.momenta, strict=False):
            self.optimiser.state[weight]["momentum_buffer"] = momentum.to(device, copy=True)

    @cached_property
    def sets(self) -> Tensor:
        """The images to contrast with each anchor, found once for all epochs."""
        return nearest_sets(self.original, self.options.neighbours)

    def epoch(self, epoch: int, stepped: Callable[[], object]) -> float:
        """Train on all images once; returns the mean loss of an image."""
        options, images = self.options, len(self.original)
        # A new generator for each epoch: continuing there needs no earlier state.
        generator = np.random.default_rng([options.seed, epoch])
        drawn = generator.permutation(images), generator.integers(self.count, size=images)
        order, shown = (torch.from_numpy(one).to(self.original.device) for one in drawn)
        # Summed on the device: reading a loss every step would make the host wait for it.
        total = torch.zeros((), dtype=torch.float64, device=self.original.device)
        for step, anchors in enumerate(torch.split(order, options.batch_size)):
            self._set_rate(epoch * self.steps + step)
            loss = self._loss(self._sets_of(anchors, generator), shown)
            self.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()
            total += loss.detach().double() * len(anchors)
            stepped()
        return float(total) / images / (options.neighbours if options.reduction == "sum" else 1)

    def progress(self, history: list[float]) -> Progress:
        """The state for a checkpoint."""
        states = (self.optimiser.state[weight].get("momentum_buffer") for weight in self.weights)
        momenta = tuple(momentum for momentum in states if momentum is not None)
        return Progress(tuple(weight.detach() for weight in self.weights), momenta, history)

    def _loss(self, sets: Tensor, shown: Tensor) -> Tensor:
        options = self.options
        matrix = linear_map(self.weights, residual=options.residual).mT

        def projected(features: Tensor, rows: Tensor) -> Tensor:
            return torch.nn.functional.normalize(features[rows] @ matrix, dim=-1)

        if self.shared:
            rows, places = torch.unique(sets, return_inverse=True)
            views = projected(self.views, rows * self.count + shown[rows])
            cosines = cosines_of_sets(views, projected(self.original, rows), places)
        else:
            views = projected(self.views, sets * self.count + shown[sets])
            cosines = views @ projected(self.original, sets).mT
        return contrastive_loss(
            cosines, temperature=options.temperature, reduction=options.reduction
        )

    def _sets_of(self, anchors: Tensor, generator: np.random.Generator) -> Tensor:
        if self.options.hard_mining:
            return self.sets[anchors]
        return random_sets(anchors, len(self.original), self.options.neighbours, generator)

    def _set_rate(self, step: int) -> None:
        """The learning rate along a cosine from its start to zero."""
        done = step / (self.steps * self.options.epochs)
        for group in self.optimiser.param_groups:
            group["lr"] = self.options.learning_rate * (1 + math.cos(math.pi * done)) / 2


def _warn_of_collapse(history: list[float], options: ProjectionOptions) -> None:
    """Warn if too large steps have made all images alike."""
    chance = math.log(options.neighbours)
    if history[-1] > max(0.99 * chance, history[0]):
        warnings.warn(
            f"The projection collapsed: its loss ended at {history[-1]:.2f}, the chance level "
            f"({chance:.2f}), so all images look alike to it. Lower the learning rate "
            f"({options.learning_rate:g}) or use more images.",
            stacklevel=3,
        )


def _ensure_memory(original: Tensor, options: ProjectionOptions) -> None:
    images, dim = original.shape
    step = 4 * _LIVE_ROWS * options.batch_size * options.neighbours * dim
    lists = 8 * images * options.neighbours if options.hard_mining else 0
    ensure_memory(
        step + lists,
        original.device,
        what=f"Learning a projection from {images:,} images",
        remedy="Use a smaller batch_size, fewer neighbours or fewer images.",
    )


def _key(original: Tensor, views: Tensor, options: ProjectionOptions) -> str:
    """A key of these features and these options, for a checkpoint."""
    digest = hashlib.sha256(json.dumps(asdict(options), sort_keys=True).encode())
    for rows in (original, views):
        digest.update(str(tuple(rows.shape)).encode())
        digest.update(rows.cpu().contiguous().numpy().data)
    return digest.hexdigest()
