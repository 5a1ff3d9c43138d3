"""The one training loop: cosine per step, shuffled batches, the last epoch counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpcache.errors import NumericalError
from gpcache.progress import progress_bar


@dataclass(frozen=True)
class Training:
    """How to train; the defaults are those of Tip-Adapter-F and of the paper."""

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    epsilon: float = 1e-4
    seed: int = 0
    optimiser: Literal["adamw", "adam", "sgd"] = "adamw"


def train(
    parameters: Sequence[Tensor],
    logits: Callable[[Tensor], Tensor],
    labels: Tensor,
    training: Training,
    *,
    penalty: Callable[[], Tensor] | None = None,
    description: str = "training",
) -> list[float]:
    """Minimise the cross-entropy of logits(rows) against labels (n,); returns the epochs' losses.

    `logits` maps row numbers (b,) to logits (b, c); `penalty` is added to every step's loss.
    Nothing is chosen along the way: there is no validation here, and no best epoch.
    """
    n = len(labels)
    generator = torch.Generator().manual_seed(training.seed)
    optimiser = _optimiser(parameters, training)
    steps = training.epochs * -(-n // training.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    history = []
    with progress_bar(description, total=steps, unit="step") as bar:
        for _ in range(training.epochs):
            # Summed on the device: reading a loss every step would make the host wait for it.
            total = torch.zeros((), device=labels.device, dtype=torch.float64)
            order = torch.randperm(n, generator=generator).to(labels.device)
            for rows in torch.split(order, training.batch_size):
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
    return history


def _optimiser(parameters: Sequence[Tensor], training: Training) -> torch.optim.Optimizer:
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=decay)
    kind = torch.optim.Adam if training.optimiser == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, weight_decay=decay, eps=training.epsilon)
