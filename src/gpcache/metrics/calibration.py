"""Fits scales, a temperature, and a temperature that depends on the entropy.

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

# Penalty on the square of a scale (in units where the logits it multiplies have unit size): no
# effect on real data, but scales stay finite if the rows are separable.
RIDGE = 1e-6
ITERATIONS = 60
HALVINGS = 20
TOLERANCE = 1e-10
NEAR_BOUND = 0.05
# The slope is pulled to zero with the weight of two rows, because few rows cannot determine it.
SLOPE_PULL = 2.0
SLOPE_ITERATIONS = 50


class _ScaleProblem(NamedTuple):
    """e convex problems of k scales each, in units where the directions have unit size."""

    unit: Tensor  # (k, e, n, c)
    offset: Tensor | None  # (n, c)
    centre: Tensor  # (e, k): where the scales are pulled to
    pull: float
    share: Tensor  # (n, 1): the weights of the rows
    inverse_roots: Tensor  # (n,): of these weights
    targets: Tensor  # (n, c): the smoothed labels, times these weights

    def logits(self, scales: Tensor) -> Tensor:
        """(e, n, c) at scales (e, k)."""
        # Element by element, here and below: matrix products this long and thin are slow on a GPU.
        fused = (self.unit * scales.mT[..., None, None]).sum(0)
        return fused if self.offset is None else fused + self.offset

    def evaluated(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        """The loss with the penalty (e,), and the log-probabilities (e, n, c)."""
        logs = self.logits(scales).log_softmax(-1)
        penalty = (scales - self.centre).square().sum(-1)
        return torch.sub(0.5 * self.pull * penalty, (logs * self.targets).sum((-2, -1))), logs

    def derivatives(self, scales: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient (e, k) and Hessian (e, k, k), where the probabilities are these (e, n, c)."""
        weighted = probability * self.share
        slope = (self.unit * (weighted - self.targets)).sum((-2, -1))  # (k, e)
        gradient = torch.add(slope.mT, scales - self.centre, alpha=self.pull)
        weighted = self.unit * weighted
        second = torch.stack([(row * self.unit).sum((-2, -1)) for row in weighted])  # (k, k, e)
        # A row of weight w and expectation m takes away w m² = (w m)² / w.
        expected = (weighted.sum(-1) * self.inverse_roots).transpose(0, 1)  # (e, k, n)
        hessian = torch.baddbmm(second.permute(2, 0, 1), expected, expected.mT, alpha=-1)
        hessian.diagonal(dim1=1, dim2=2).add_(self.pull)
        return gradient, hessian


def fit_scales(
    directions: Tensor,
    labels: Tensor,
    *,
    offset: Tensor | None = None,
    toward: Tensor | None = None,
    pull: float = RIDGE,
    row_weights: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Fit non-negative scales that minimise the smoothed NLL of offset + Σ_k s_k · directions_k.

    The problem is convex. Damped Newton steps with the bound as an active set solve all problems at
    once.

    Parameters
    ----------
    directions : Tensor of shape (k, e, n, c)
        e independent problems with k scales each.
    labels : Tensor of shape (n,)
        Class numbers.
    offset : Tensor of shape (n, c), optional
        Logits that are added without a scale.
    toward : Tensor of shape (k,), optional
        Values that the scales are pulled towards; zero by default.
    pull : float, default=1e-6
        Weight of half the squared distance to `toward`, in units where the directions have unit
        size.
    row_weights : Tensor of shape (n,), optional
        Weight of each row; equal by default.
    start : Tensor of shape (k,), optional
        Where to start: the scales of a similar problem. By default `toward`, or where the
        directions have unit size.

    Returns
    -------
    scales : Tensor of shape (e, k)
        The fitted scales.
    losses : Tensor of shape (e,)
        The smoothed NLL at these scales.

    Examples
    --------
    >>> import torch
    >>> from gpcache.metrics import fit_scales
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    >>> scales, losses = fit_scales(logits[None, None], torch.tensor([0, 1, 1]))
    >>> scales.shape, losses.shape
    (torch.Size([1, 1]), torch.Size([1]))
    """
    k, e, n, c = directions.shape
    # Relative to the largest entry: its own square may be beyond float32.
    tiny = torch.finfo(directions.dtype).tiny
    largest = directions.abs().amax((-2, -1)).clamp(min=tiny)
    size = largest * (directions / largest[..., None, None]).square().mean((-2, -1)).sqrt()
    size = size.clamp(min=tiny)
    unit = directions / size[..., None, None]
    share = unit.new_ones(n) if row_weights is None else row_weights.to(unit)
    share = share / n
    inverse_roots = share.clamp(min=tiny).rsqrt()
    share = share[:, None]
    centre = unit.new_zeros(e, k) if toward is None else toward.to(unit) * size.mT
    targets = _targets(labels, c, unit.dtype) * share
    problem = _ScaleProblem(unit, offset, centre, pull, share, inverse_roots, targets)
    begin = unit.new_ones(e, k) if toward is None else centre
    begin = begin if start is None else start.to(unit) * size.mT
    scales = _minimised(problem, begin)
    return scales / size.mT, smoothed_nll(problem.logits(scales), labels)


def _minimised(problem: _ScaleProblem, scales: Tensor) -> Tensor:
    """The scales (e, k) that minimise the objective, by damped Newton steps from these."""
    value, logs = problem.evaluated(scales)
    # Two losses that differ by less are equal up to rounding: in float32 the last steps would
    # otherwise be halved for nothing.
    rounding = 4 * torch.finfo(scales.dtype).eps
    for _ in range(ITERATIONS):
        step = _newton_step(scales, *problem.derivatives(scales, logs.exp()))
        least = rounding * value.abs()
        for _ in range(HALVINGS):
            proposal = (scales - step).clamp(min=0)
            proposed, proposed_logs = problem.evaluated(proposal)
            worse = ~(proposed <= value + least)
            if not bool(worse.any()):
                break
            step = torch.where(worse[:, None], step / 2, step)
        else:
            # No step of these problems gains: they stay where they are.
            proposal = torch.where(worse[:, None], scales, proposal)
            proposed = torch.where(worse, value, proposed)
            proposed_logs = torch.where(worse[:, None, None], logs, proposed_logs)
        # A step that loses no more than rounding is taken: the gradient knows more than the loss.
        gain = value - proposed
        scales, value, logs = proposal, proposed, proposed_logs
        if bool((gain <= TOLERANCE + least).all()):
            break
    return scales


def _newton_step(scales: Tensor, gradient: Tensor, hessian: Tensor) -> Tensor:
    """H⁻¹ g (e, k) of the scales that are free to move, and the plain gradient of the others.

    A scale near the bound that would shrink is also treated separately (Bertsekas, 1982): a joint
    step of similar directions would get stuck there.
    """
    if not bool((scales > NEAR_BOUND).all()):
        residual = (scales - (scales - gradient).clamp(min=0)).abs().amax(-1, keepdim=True)
        free = (scales > residual.clamp(max=NEAR_BOUND)) | (gradient < 0)
        eye = torch.eye(scales.shape[1], dtype=torch.bool, device=scales.device)
        held = ~(free[:, :, None] & free[:, None, :]) & ~eye
        hessian = hessian.masked_fill(held, 0)
    step: Tensor = torch.linalg.solve(hessian, gradient)
    return step


def doubt_of(n: int, c: int) -> float:
    """Compute the probability of an error after n rows without one: Laplace's 1 / (n + 2).

    Labels are smoothed by it, as Platt (1999) does for two classes. Without smoothing, a few rows
    that are all right would make the next answer certain.

    Parameters
    ----------
    n : int
        Number of rows.
    c : int
        Number of classes.

    Returns
    -------
    float
        The probability; 0 for a single class.

    Examples
    --------
    >>> from gpcache.metrics import doubt_of
    >>> doubt_of(8, 3)
    0.1
    """
    return 1 / (n + 2) if c > 1 else 0.0


def smoothed_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean NLL with labels smoothed by `doubt_of`.

    Parameters
    ----------
    logits : Tensor of shape (..., n, c)
        Logits.
    labels : Tensor of shape (n,)
        Class numbers.

    Returns
    -------
    Tensor of shape (...)
        The mean over rows.

    Examples
    --------
    >>> import torch
    >>> from gpcache.metrics import smoothed_nll
    >>> round(float(smoothed_nll(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))), 3)
    0.693
    """
    return smoothed_losses(logits, labels).mean(-1)


def smoothed_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the loss of each row with labels smoothed by `doubt_of`.

    Parameters
    ----------
    logits : Tensor of shape (..., n, c)
        Logits.
    labels : Tensor of shape (n,)
        Class numbers.

    Returns
    -------
    Tensor of shape (..., n)
        The loss of each row; `smoothed_nll` is their mean.

    Examples
    --------
    >>> import torch
    >>> from gpcache.metrics import smoothed_losses
    >>> smoothed_losses(torch.zeros(2, 2), torch.tensor([0, 1])).shape
    torch.Size([2])
    """
    return logits.logsumexp(-1) - _at_target(logits, labels)


def mean_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean negative log-likelihood of logits.

    Parameters
    ----------
    logits : Tensor of shape (..., n, c)
        Logits.
    labels : Tensor of shape (n,)
        Class numbers.

    Returns
    -------
    Tensor of shape (...)
        The mean over rows.

    Examples
    --------
    >>> import torch
    >>> from gpcache.metrics import mean_nll
    >>> round(float(mean_nll(torch.zeros(2, 4), torch.tensor([0, 3]))), 3)
    1.386
    """
    return (logits.logsumexp(-1) - _at_label(logits, labels)).mean(-1)


def _at_target(values: Tensor, labels: Tensor) -> Tensor:
    """The mean (..., n) of values (..., n, c) under the labels (n,), smoothed by `doubt_of`."""
    n, c = values.shape[-2:]
    if c == 1:
        return values[..., 0]
    # With the mean over all classes instead of the others, the label's share is a little larger.
    return torch.lerp(_at_label(values, labels), values.mean(-1), doubt_of(n, c) * c / (c - 1))


def _at_label(values: Tensor, labels: Tensor) -> Tensor:
    """The entries (..., n) of values (..., n, c) at the labels (n,)."""
    return values.gather(-1, labels[:, None].expand(*values.shape[:-1], 1))[..., 0]


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
    rows, targets = rows.double(), _targets(labels.to(rows.device), c)
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


def _targets(labels: Tensor, c: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Labels (n,) as rows (n, c), smoothed by `doubt_of`."""
    doubt = doubt_of(len(labels), c)
    others = doubt / max(1, c - 1)
    targets = torch.full((len(labels), c), others, dtype=dtype, device=labels.device)
    return targets.scatter_(1, labels[:, None], 1 - doubt)
