"""From logits to calibrated probabilities: scales, a temperature, and one that follows entropy.

    p = softmax(z / T · exp(slope · H))        H = entropy of softmax(z / T) over log c

One temperature for all makes sure answers too sure when unsure ones are right, or the reverse. The
slope lets both be right at once (entropy-based scaling: Balanya et al., 2024); the order of the
classes never changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

# A scale is pulled towards zero by this much of its square (in units where the logits it multiplies
# have unit size): invisible on real data, and finite where the rows are separable.
RIDGE = 1e-6
ITERATIONS = 60
HALVINGS = 20
TOLERANCE = 1e-10
NEAR_BOUND = 0.05
# The slope is pulled to zero as by two rows that say so: few rows cannot tell it.
SLOPE_PULL = 2.0
SLOPE_ITERATIONS = 50


@dataclass(frozen=True)
class _ScaleProblem:
    """e convex problems of k scales each, in units where the directions have unit size."""

    unit: Tensor  # (k, e, n, c)
    labels: Tensor  # (n,)
    offset: Tensor | None  # (n, c)
    centre: Tensor  # (e, k): where the scales are pulled to
    pull: float
    share: Tensor  # (n,): the weights of the rows

    def logits(self, scales: Tensor) -> Tensor:
        """(e, n, c) at scales (e, k)."""
        # Element by element, here and below: a GPU is slow at products so thin and long.
        fused = (self.unit * scales.mT[..., None, None]).sum(0)
        return fused if self.offset is None else fused + self.offset

    def objective(self, scales: Tensor) -> Tensor:
        """The loss and the penalty (e,)."""
        loss = (smoothed_losses(self.logits(scales), self.labels) * self.share).sum(-1)
        return loss + 0.5 * self.pull * (scales - self.centre).square().sum(-1)

    def at_target(self) -> Tensor:
        """The directions (k, e, n) at the smoothed labels."""
        n, c = self.unit.shape[-2:]
        at_label = self.unit[..., torch.arange(n, device=self.labels.device), self.labels]
        doubt = doubt_of(n, c)
        if c == 1:
            return (1 - doubt) * at_label
        return (1 - doubt) * at_label + doubt * (self.unit.sum(-1) - at_label) / (c - 1)

    def derivatives(self, scales: Tensor, at_target: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient (e, k) and Hessian (e, k, k)."""
        probability = self.logits(scales).softmax(-1)
        expected = (self.unit * probability).sum(-1)  # (k, e, n)
        slope = ((expected - at_target) * self.share).sum(-1)
        gradient = slope.mT + self.pull * (scales - self.centre)
        weighted = self.unit * (probability * self.share[:, None])
        second = torch.stack([(row * self.unit).sum((-2, -1)) for row in weighted])  # (k, k, e)
        known = torch.einsum("ken,len->ekl", expected * self.share, expected)
        eye = torch.eye(len(self.unit), dtype=self.unit.dtype, device=self.unit.device)
        return gradient, second.permute(2, 0, 1) - known + self.pull * eye


def fit_scales(
    directions: Tensor,
    labels: Tensor,
    *,
    offset: Tensor | None = None,
    toward: Tensor | None = None,
    pull: float = RIDGE,
    row_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scales s ≥ 0 that minimise the smoothed NLL of offset + Σ_k s_k · directions_k.

    directions (k, e, n, c) hold e independent problems of k scales; labels (n,); offset (n, c).
    Scales are pulled towards `toward` (k,), or zero, by half of `pull` times the squared distance,
    in units where the directions have unit size. `row_weights` (n,) say how much each row counts,
    all alike by default. Returns scales (e, k) and losses (e,). The problem
    is convex: damped Newton with the bound as an active set, all problems at once.
    """
    k, e, n, _ = directions.shape
    # Relative to the largest entry: its own square may be beyond float32.
    tiny = torch.finfo(directions.dtype).tiny
    largest = directions.abs().amax((-2, -1)).clamp(min=tiny)
    size = largest * (directions / largest[..., None, None]).square().mean((-2, -1)).sqrt()
    size = size.clamp(min=tiny)
    unit = directions / size[..., None, None]
    share = unit.new_full((n,), 1 / n) if row_weights is None else row_weights.to(unit) / n
    centre = unit.new_zeros(e, k) if toward is None else toward.to(unit) * size.mT
    problem = _ScaleProblem(unit, labels, offset, centre, pull, share)
    scales = _minimised(problem, unit.new_ones(e, k) if toward is None else centre)
    return scales / size.mT, smoothed_nll(problem.logits(scales), labels)


def _minimised(problem: _ScaleProblem, scales: Tensor) -> Tensor:
    """The scales (e, k) of the least objective, by damped Newton steps from these."""
    value = problem.objective(scales)
    at_target = problem.at_target()
    # Two losses that differ by less are equal up to rounding: in float32 the last steps would
    # otherwise be halved for nothing.
    rounding = 4 * torch.finfo(scales.dtype).eps
    for _ in range(ITERATIONS):
        step = _newton_step(scales, *problem.derivatives(scales, at_target))
        length = torch.ones_like(scales[:, :1])
        for _ in range(HALVINGS):
            proposal = (scales - length * step).clamp(min=0)
            proposed = problem.objective(proposal)
            worse = ~(proposed <= value + rounding * value.abs())
            if not bool(worse.any()):
                break
            length = torch.where(worse[:, None], length / 2, length)
        better = proposed < value
        gain = torch.where(better, value - proposed, torch.zeros_like(value))
        scales = torch.where(better[:, None], proposal, scales)
        value = torch.where(better, proposed, value)
        if bool((gain <= TOLERANCE + rounding * value.abs()).all()):
            break
    return scales


def _newton_step(scales: Tensor, gradient: Tensor, hessian: Tensor) -> Tensor:
    """H⁻¹ g (e, k) of the scales that are free to move, and the plain gradient of the others.

    Beside the bound, too, a scale that wants to shrink is taken by itself (Bertsekas, 1982): a
    joint step of directions that are alike would jam there.
    """
    residual = (scales - (scales - gradient).clamp(min=0)).abs().amax(-1, keepdim=True)
    free = (scales > residual.clamp(max=NEAR_BOUND)) | (gradient < 0)
    eye = torch.eye(scales.shape[1], dtype=torch.bool, device=scales.device)
    held = ~(free[:, :, None] & free[:, None, :]) & ~eye
    step: Tensor = torch.linalg.solve(hessian.masked_fill(held, 0), gradient[..., None])[..., 0]
    return step


def doubt_of(n: int, c: int) -> float:
    """The probability that n rows without a mistake still leave to one: Laplace's 1 / (n + 2).

    Labels are smoothed by it, as Platt (1999) does for two classes: where all of a few rows are
    right, plain likelihood would make the next one certain.
    """
    return 1 / (n + 2) if c > 1 else 0.0


def smoothed_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean NLL (...) of logits (..., n, c) with `doubt_of` spread over the other classes."""
    return smoothed_losses(logits, labels).mean(-1)


def smoothed_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """What each row (..., n) adds to that mean."""
    n, c = logits.shape[-2:]
    losses = _losses(logits, labels)
    if c == 1:
        return losses
    # With the mean over all classes instead of the others, the label's share is a little larger.
    spread = doubt_of(n, c) * c / (c - 1)
    everywhere = logits.logsumexp(-1) - logits.mean(-1)
    return (1 - spread) * losses + spread * everywhere


def mean_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood (...) of logits (..., n, c) at labels (n,)."""
    return _losses(logits, labels).mean(-1)


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    rows = torch.arange(len(labels), device=labels.device)
    return logits.logsumexp(-1) - logits[..., rows, labels]


def fit_temperature(logits: Tensor, labels: Tensor, row_weights: Tensor | None = None) -> float:
    """T > 0 of the least smoothed NLL of softmax(logits / T) on rows that the model did not see.

    `row_weights` (n,) say how much each row counts.
    """
    scale, _ = fit_scales(logits[None, None], labels, row_weights=row_weights)
    # A scale of zero means uninformative logits: near-uniform probabilities, but finite.
    return 1.0 / max(float(scale), 1e-6)


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
            total = fit + SLOPE_PULL * slope.square() / n
            (gradient,) = torch.autograd.grad(total, parameters)
        return float(total.detach()), gradient.numpy()

    before = np.array([-math.log(start.temperature), 0.0])
    found = minimize(loss, before, jac=True, method="BFGS", options={"maxiter": SLOPE_ITERATIONS})
    if not (found.fun < loss(before)[0] and np.isfinite(found.x).all()):  # nothing gained
        return start
    sharpness, slope = found.x.tolist()
    return Calibration(math.exp(-sharpness), slope)


def _entropy(scaled: Tensor) -> Tensor:
    """Entropy (..., 1) of softmax(scaled) as a share of that of a uniform answer."""
    logs = scaled.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1, keepdim=True) / math.log(scaled.shape[-1])


def _targets(labels: Tensor, c: int) -> Tensor:
    """Labels (n,) as rows (n, c), smoothed by `doubt_of`."""
    doubt = doubt_of(len(labels), c)
    targets = torch.full((len(labels), c), doubt / (c - 1), dtype=torch.float64)
    targets[torch.arange(len(labels)), labels.cpu()] = 1 - doubt
    return targets.to(labels.device)
