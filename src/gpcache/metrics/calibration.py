"""Fits a temperature, and a temperature that depends on the entropy.

    p = softmax(z / T · exp(slope · H))        H = entropy of softmax(z / T) over log c

One temperature cannot calibrate both confident and unconfident answers. The slope allows it
(entropy-based scaling: Balanya et al., 2024). The order of the classes never changes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from gpcache.metrics.scales import fit_scales, smoothed_targets

# The slope is pulled to zero with the weight of two rows, because few rows cannot determine it.
SLOPE_PULL = 2.0
SLOPE_ITERATIONS = 50


def fit_temperature(logits: Tensor, labels: Tensor, row_weights: Tensor | None = None) -> float:
    """Fit the temperature of softmax(logits / T) on rows that the model did not learn from.

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Held-out logits.
    labels : Tensor of shape (n,)
        Class numbers.
    row_weights : Tensor of shape (n,), optional
        Weight of each row; equal by default.

    Returns
    -------
    float
        The temperature T > 0 with the least smoothed NLL.

    Examples
    --------
    >>> import torch
    >>> from gpcache.metrics import fit_temperature
    >>> logits = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    >>> fit_temperature(logits, torch.tensor([0, 1, 1])) > 1
    True
    """
    start = logits.new_ones(1)
    scale, _ = fit_scales(logits[None, None], labels, row_weights=row_weights, start=start)
    # A scale of zero means uninformative logits: near-uniform probabilities, but finite.
    return 1.0 / max(float(scale), 1e-6)


class Calibration(NamedTuple):
    """A map from logits to probabilities: a temperature that may depend on the entropy.

    p = softmax(z / T · exp(slope · H)), where H is the entropy of softmax(z / T) divided by log c.
    The order of the classes never changes. The default leaves logits as they are.

    Parameters
    ----------
    temperature : float, default=1.0
        The temperature T.
    slope : float, default=0.0
        How strongly the temperature depends on the entropy.

    Examples
    --------
    >>> import torch
    >>> from gpcache.metrics import Calibration
    >>> Calibration(temperature=2.0).scaled(torch.tensor([4.0, 0.0])).tolist()
    [2.0, 0.0]
    """

    temperature: float = 1.0
    slope: float = 0.0

    def scaled(self, logits: Tensor) -> Tensor:
        """Scale logits so that their softmax gives calibrated probabilities.

        Parameters
        ----------
        logits : Tensor of shape (..., c)
            Logits.

        Returns
        -------
        Tensor of shape (..., c)
            Scaled logits.

        Examples
        --------
        >>> import torch
        >>> from gpcache.metrics import Calibration
        >>> Calibration(temperature=2.0).scaled(torch.tensor([4.0, 0.0])).tolist()
        [2.0, 0.0]
        """
        scaled = logits / self.temperature
        if self.slope == 0 or logits.shape[-1] == 1:
            return scaled
        return scaled * torch.exp(self.slope * _entropy(scaled))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Compute calibrated probabilities.

        Parameters
        ----------
        logits : Tensor of shape (..., c)
            Logits.

        Returns
        -------
        Tensor of shape (..., c)
            Probabilities; each row sums to 1.

        Examples
        --------
        >>> import torch
        >>> from gpcache.metrics import Calibration
        >>> Calibration().probabilities(torch.zeros(2)).tolist()
        [0.5, 0.5]
        """
        return self.scaled(logits).softmax(-1)


def fit_calibration(
    logits: Tensor, labels: Tensor, row_weights: Tensor | None = None
) -> Calibration:
    """Fit temperature and slope on rows that the model did not learn from.

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Held-out logits.
    labels : Tensor of shape (n,)
        Class numbers.
    row_weights : Tensor of shape (n,), optional
        Weight of each row; equal by default.

    Returns
    -------
    Calibration
        The calibration with the least smoothed NLL.

    Examples
    --------
    >>> import torch
    >>> from gpcache.metrics import fit_calibration
    >>> logits = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    >>> fit_calibration(logits, torch.tensor([0, 1, 1])).temperature > 1
    True
    """
    start = Calibration(fit_temperature(logits, labels, row_weights))
    n, c = logits.shape
    if n == 0 or c == 1:
        return start
    rows = logits.detach() if logits.device.type != "mps" else logits.detach().cpu()  # no float64
    rows, targets = rows.double(), smoothed_targets(labels.to(rows.device), c)
    if row_weights is not None:
        targets *= row_weights.to(targets)[:, None]
    mass = targets.sum(1, keepdim=True)

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The loss at (−log temperature, slope), and its gradient."""
        sharpness, slope = values.tolist()
        plain = rows * math.exp(sharpness)
        logs = plain.log_softmax(1)
        probability = logs.exp()
        entropy = -(probability * logs).sum(1, keepdim=True)
        scaled = plain * torch.exp(slope * entropy / math.log(c))
        scaled_logs = scaled.log_softmax(1)
        total = -torch.sum(targets * scaled_logs) / n
        # The scaled logits grow with themselves, and with what the entropy does to their factor.
        outer = ((mass * scaled_logs.exp() - targets) * scaled).sum(1, keepdim=True) / n
        inner = -(probability * (logs + entropy) * plain).sum(1, keepdim=True)
        sharper = torch.sum(outer * (1 + slope * inner / math.log(c)))
        steeper = torch.sum(outer * entropy / math.log(c))
        total, sharper, steeper = torch.stack([total, sharper, steeper]).tolist()
        pull = SLOPE_PULL * slope / n
        return total + pull * slope, np.array([sharper, steeper + 2 * pull])

    before = np.array([-math.log(start.temperature), 0.0])
    optimum = minimize(loss, before, jac=True, method="BFGS", options={"maxiter": SLOPE_ITERATIONS})
    if not (optimum.fun < loss(before)[0] and np.isfinite(optimum.x).all()):  # nothing gained
        return start
    sharpness, slope = optimum.x.tolist()
    return Calibration(math.exp(-sharpness), slope)


def _entropy(scaled: Tensor) -> Tensor:
    """Entropy (..., 1) of softmax(scaled) as a share of that of a uniform answer."""
    logs = scaled.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1, keepdim=True) / math.log(scaled.shape[-1])
