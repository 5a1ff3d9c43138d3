"""Probabilities that mean what they say: a temperature that follows the entropy of the answer.

    p = softmax(z / T · exp(slope · H))        H = entropy of softmax(z / T) over log c

One temperature for all makes sure answers too sure when unsure ones are right, or the reverse. The
slope lets both be right at once (entropy-based scaling: Balanya et al., 2024); the order of the
classes never changes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from gpcache.metrics.temperature import doubt_of, fit_temperature

# The slope is pulled to zero as by two rows that say so: few rows cannot tell it.
PULL = 2.0
ITERATIONS = 50


class Calibration(NamedTuple):
    """How logits become probabilities; the default leaves them as they are."""

    temperature: float = 1.0
    slope: float = 0.0

    def scaled(self, logits: Tensor) -> Tensor:
        """Logits (..., c) whose softmax are the probabilities."""
        scaled = logits / self.temperature
        if self.slope == 0 or logits.shape[-1] == 1:
            return scaled
        return scaled * torch.exp(self.slope * _entropy(scaled))

    def probabilities(self, logits: Tensor) -> Tensor:
        """(..., c)."""
        return self.scaled(logits).softmax(-1)


def fit_calibration(
    logits: Tensor, labels: Tensor, row_weights: Tensor | None = None
) -> Calibration:
    """Temperature and slope of the least smoothed NLL on rows (n, c) that were not learned from.

    `row_weights` (n,) say how much each row counts.
    """
    start = Calibration(fit_temperature(logits, labels, row_weights))
    n, c = logits.shape
    if n == 0 or c == 1:
        return start
    rows, targets = logits.detach().double(), _targets(labels, c)
    if row_weights is not None:
        targets = targets * row_weights.to(targets)[:, None]

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The loss at (−log temperature, slope), and its gradient."""
        with torch.enable_grad():
            parameters = torch.tensor(values, dtype=torch.float64, requires_grad=True)
            sharpness, slope = parameters
            scaled = rows * torch.exp(sharpness)
            scaled = scaled * torch.exp(slope * _entropy(scaled))
            fit = -(targets * scaled.log_softmax(1)).sum(1).mean()
            total = fit + PULL * slope.square() / n
            (gradient,) = torch.autograd.grad(total, parameters)
        return float(total.detach()), gradient.numpy()

    before = np.array([-math.log(start.temperature), 0.0])
    found = minimize(loss, before, jac=True, method="BFGS", options={"maxiter": ITERATIONS})
    if not (found.fun < loss(before)[0] and np.isfinite(found.x).all()):  # nothing gained
        return start
    sharpness, slope = found.x.tolist()
    return Calibration(math.exp(-sharpness), slope)


def _entropy(scaled: Tensor) -> Tensor:
    """Entropy (..., 1) of softmax(scaled) as a share of that of a uniform answer."""
    logs = scaled.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1, keepdim=True) / math.log(scaled.shape[-1])


def _targets(labels: Tensor, c: int) -> Tensor:
    """Labels (n,) as rows (n, c), smoothed by the doubt that so many rows leave."""
    doubt = doubt_of(len(labels), c)
    targets = torch.full((len(labels), c), doubt / (c - 1), dtype=torch.float64)
    targets[torch.arange(len(labels)), labels.cpu()] = 1 - doubt
    return targets.to(labels.device)
