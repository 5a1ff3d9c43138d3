"""The one training loop: AdamW, cosine per step, shuffled batches, the last epoch counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


def train(
    parameters: Sequence[Tensor],
    logits: Callable[[Tensor], Tensor],
    labels: Tensor,
    training: Training,
    *,
    description: str = "training",
) -> list[float]:
    """Minimise the cross-entropy of logits(rows) against labels (n,); returns the epochs' losses.

    `logits` maps row numbers (b,) to logits (b, c). Nothing is chosen along the way: there is no
    validation here, and no best epoch.
    """
    n = len(labels)
    generator = torch.Generator().manual_seed(training.seed)
    optimiser = torch.optim.AdamW(
        parameters,
        lr=training.learning_rate,
        weight_decay=training.weight_decay,
        eps=training.epsilon,
    )
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
