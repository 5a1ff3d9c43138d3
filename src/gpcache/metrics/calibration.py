"""Fits a temperature, and a temperature that depends on the entropy.

    p = softmax(z / T · exp(slope · H))        H = entropy of softmax(z / T) over log c

One temperature cannot calibrate both confident and unconfident answers. The slope allows it
(entropy-based scaling: Balanya et al., 2024). The order of the classes never changes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.metrics.scales import HALVINGS, fit_scales, smoothed_targets
from gpcache.support.softmax import log_softmax, softmax

# The slope is pulled to zero with the weight of two rows, because few rows cannot determine it.
SLOPE_PULL = 2.0
SLOPE_ITERATIONS = 50
# Fisher scoring ends with a step that gains no more.
TOLERANCE = 1e-12


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
        return softmax(self.scaled(logits))


def fit_calibration(
    logits: Tensor,
    labels: Tensor,
    row_weights: Tensor | None = None,
    start: Calibration | None = None,
    pull: float = 0.0,
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
    start : Calibration, optional
        That of similar rows, which saves time.
    pull : float, default=0.0
        Weight, in rows, of the pull of the temperature to 1: for logits that are calibrated
        already, on few rows.

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
    if start is None:
        start = Calibration(fit_temperature(logits, labels, row_weights))
    n, c = logits.shape
    if n == 0 or c == 1:
        return start
    rows = logits.detach() if logits.device.type != "mps" else logits.detach().cpu()  # no float64
    rows, targets = rows.double(), smoothed_targets(labels.to(rows.device), c)
    if row_weights is not None:
        targets *= row_weights.to(targets)[:, None]
    mass = targets.sum(1, keepdim=True)
    least = mass[:, 0].clamp(min=torch.finfo(mass.dtype).tiny)

    def evaluated(sharpness: float, slope: float) -> list[float]:
        """The loss at (−log temperature, slope), its gradient (2) and Fisher's information (3)."""
        plain = rows * math.exp(sharpness)
        logs = log_softmax(plain)
        probability = logs.exp()
        entropy = -(probability * logs).sum(1, keepdim=True)
        scaled = plain * torch.exp(slope / math.log(c) * entropy)
        scaled_logs = log_softmax(scaled)
        # A value moves the scaled logits of a row by a multiple of themselves: the sharpness also
        # by what the entropy does to their factor.
        inner = (probability * (logs + entropy) * plain).sum(1, keepdim=True)
        growth = torch.cat([math.log(c) - slope * inner, entropy], 1) / math.log(c)
        expected = mass * scaled_logs.exp()
        outer = ((expected - targets) * scaled).sum(1)
        variance = (expected * scaled * scaled).sum(1) - (expected * scaled).sum(1) ** 2 / least
        information = (growth * variance[:, None]).mT @ growth
        total = -torch.sum(targets * scaled_logs)
        numbers = torch.cat([total[None], growth.mT @ outer, information.flatten()]) / n
        loss, sharper, steeper, first, both, _, second = numbers.tolist()
        to_one, to_zero = pull / n, SLOPE_PULL / n
        loss += to_one * sharpness**2 + to_zero * slope**2
        sharper, first = sharper + 2 * to_one * sharpness, first + 2 * to_one
        steeper, second = steeper + 2 * to_zero * slope, second + 2 * to_zero
        return [loss, sharper, steeper, first, both, second]

    best = before = (-math.log(start.temperature), start.slope)
    found = evaluated(*best)
    for _ in range(SLOPE_ITERATIONS):
        loss, sharper, steeper, first, both, second = found
        determinant = max(first * second - both**2, 1e-9 * first * second, 1e-30)
        move = (second * sharper - both * steeper, first * steeper - both * sharper)
        share = 1 / max(determinant, abs(move[0]), abs(move[1]))  # no value moves by more than 1
        for _ in range(HALVINGS):
            there = (best[0] - share * move[0], best[1] - share * move[1])
            found = evaluated(*there)
            if found[0] <= loss:
                break
            share /= 2
        else:
            break
        best = there
        if loss - found[0] <= TOLERANCE:
            break
    if best == before:
        return start
    return Calibration(math.exp(-best[0]), best[1])


def _entropy(scaled: Tensor) -> Tensor:
    """Entropy (..., 1) of softmax(scaled) as a share of that of a uniform answer."""
    logs = log_softmax(scaled)
    return -(logs.exp() * logs).sum(-1, keepdim=True) / math.log(scaled.shape[-1])
