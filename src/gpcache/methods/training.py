"""The training loop of all methods: cosine schedule, shuffled batches, the last epoch counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpcache.errors import NumericalError
from gpcache.support.progress import progress_bar
from gpcache.support.threads import take_free_cores

WARM_UP_RATE = 1e-5


@dataclass(frozen=True)
class Schedule:
    """How to train; the defaults are those of Tip-Adapter-F and of the paper.

    For `warm_up_epochs` the learning rate is WARM_UP_RATE; the cosine runs over the epochs after.
    """

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    epsilon: float = 1e-4
    seed: int = 0
    optimiser: Literal["adamw", "adam", "sgd"] = "adamw"
    warm_up_epochs: int = 0


def train(
    parameters: Sequence[Tensor],
    logits: Callable[[Tensor], Tensor],
    labels: Tensor,
    training: Schedule,
    *,
    penalty: Callable[[], Tensor | float] | None = None,
    until: int | None = None,
    after_epoch: Callable[[int], None] | None = None,
    description: str = "training",
) -> list[float]:
    """Minimise the cross-entropy of logits(rows) against labels (n,); returns the epochs' losses.

    `logits` maps row numbers (b,) to logits (b, c); `penalty` is added to every step's loss. The
    schedule is that of all epochs, even if training ends after `until` of them. `after_epoch` gets
    the number of finished epochs, starting with 0. No best epoch is chosen here.
    """
    n = len(labels)
    generator = torch.Generator().manual_seed(training.seed)
    optimiser = _optimiser(parameters, training)
    per_epoch = -(-n // training.batch_size)
    steps = training.epochs * per_epoch
    schedule = _schedule(optimiser, training, steps, training.warm_up_epochs * per_epoch)
    history = []
    last = training.epochs if until is None else until
    with progress_bar(description, total=last * per_epoch, unit="step") as bar:
        if after_epoch is not None:
            after_epoch(0)
        for epoch in range(1, last + 1):
            # Summed on the device: reading a loss every step would make the host wait for it.
            total = torch.zeros((), device=labels.device, dtype=torch.float64)
            order = torch.randperm(n, generator=generator).to(labels.device)
            for rows in torch.split(order, training.batch_size):
                take_free_cores()
                loss = torch.nn.functional.cross_entropy(logits(rows), labels[rows])
                if penalty is not None:
                    loss = loss + penalty()
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
                total += loss.detach().double() * len(rows)
                bar.update()
            history.append(float(total) / n)
            if not torch.isfinite(total):
                raise NumericalError(
                    f"Training diverged in epoch {len(history)}: lower the learning rate "
                    f"({training.learning_rate:g}) or raise the noise."
                )
            if after_epoch is not None:
                after_epoch(epoch)
    return history


def _optimiser(parameters: Sequence[Tensor], training: Schedule) -> torch.optim.Optimizer:
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=decay)
    kind = torch.optim.Adam if training.optimiser == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, weight_decay=decay, eps=training.epsilon)


def _schedule(
    optimiser: torch.optim.Optimizer, training: Schedule, steps: int, warm_up: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """A constant small rate for the first steps, then a cosine that ends at zero."""

    def factor(step: int) -> float:
        if step < warm_up:
            return min(1.0, WARM_UP_RATE / training.learning_rate)
        return (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))) / 2

    return torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
