"""Held-out figures that were not optimised: for each fold, all is chosen on the other folds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpcache.metrics import fit_calibration

# (number of a setting, rows to fit its weights on) → logits (n, c) of all rows
LogitsAt = Callable[[int, Tensor], Tensor]


def best_without(losses: Tensor, penalties: Tensor, fold: Tensor) -> dict[int, int]:
    """The setting that each fold's rows get: the best of losses (v, n) on all other folds' rows.

    `penalties` (v,) are what each setting is charged beside its mean loss.
    """
    found = {}
    for number in torch.unique(fold).tolist():
        others = losses[:, fold != number]
        found[number] = int((others.mean(1) + penalties).argmin()) if others.numel() else 0
    return found


def cross_fitted(
    logits_at: LogitsAt, settings: dict[int, int], fold: Tensor, labels: Tensor
) -> Tensor:
    """Probabilities (n, c) of held-out rows: weights and calibration come from the other folds."""
    found: Tensor | None = None
    for number, setting in settings.items():
        mine = fold == number
        others = ~mine if bool((~mine).any()) else mine
        logits = logits_at(setting, others)
        calibration = fit_calibration(logits[others], labels[others])
        if found is None:
            found = torch.empty_like(logits)
        found[mine] = calibration.probabilities(logits[mine])
    assert found is not None
    return found
