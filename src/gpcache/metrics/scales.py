"""Fits non-negative scales of logits by Newton's method, on labels smoothed for few rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpcache.metrics.checks import Floats

# Penalty on the square of a scale (in units where the logits it multiplies have unit size): no
# effect on real data, but scales stay finite if the rows are separable.
RIDGE = 1e-6
ITERATIONS = 60
HALVINGS = 20
TOLERANCE = 1e-10
# A Newton step that is expected to gain no more is the last: what remains is its square.
LAST_STEP = 1e-7
NEAR_BOUND = 0.05


class _ScaleProblem(NamedTuple):
    """e convex problems of k scales each, in units where the directions have unit size.

    The few numbers of each problem (scales, loss, gradient, Hessian) are numpy arrays in float64.
    """

    unit: Tensor  # (e, k, n · c)
    offset: Tensor  # (e, 1, n · c), or anything that expands to it
    centre: Floats  # (e, k): where the scales are pulled to
    pull: float
    share: Tensor  # (n, 1): the weights of the rows
    inverse_roots: Tensor  # (n,): of these weights
    targets: Tensor  # (n, c): the smoothed labels, times these weights

    def logits(self, scales: Floats) -> Tensor:
        """(e, n, c) at scales (e, k)."""
        factors = torch.from_numpy(scales[:, None]).to(self.unit)
        return torch.baddbmm(self.offset, factors, self.unit).view(-1, *self.targets.shape)

    def evaluated(self, scales: Floats) -> tuple[Floats, Tensor]:
        """The loss with the penalty (e,), and the log-probabilities (e, n, c)."""
        logs = self.logits(scales).log_softmax(-1)
        away = scales - self.centre
        penalty = 0.5 * self.pull * np.add.reduce(away * away, -1)
        return penalty - _numbers((logs * self.targets).sum((-2, -1))), logs

    def derivatives(self, scales: Floats, logs: Tensor) -> tuple[Floats, Floats]:
        """Gradient (e, k) and Hessian (e, k, k), where the log-probabilities are these."""
        e, k, size = self.unit.shape
        weighted = logs.exp().mul_(self.share)
        parts = self.unit.view(e, k, *self.targets.shape) * weighted[:, None]
        # A row of weight w and expectation m takes away w m² = (w m)² / w.
        expected = parts.sum(-1).mul_(self.inverse_roots)
        slope = _inner(self.unit, weighted.sub_(self.targets).view(e, 1, size))
        second = _inner(parts.view(e, k, size), self.unit)
        second = second.baddbmm_(expected, expected.mT, alpha=-1)
        both = _numbers(torch.cat([slope, second], -1))
        gradient = both[..., 0] + self.pull * (scales - self.centre)
        return gradient, both[..., 1:] + self.pull * np.eye(k)


def _inner(one: Tensor, other: Tensor) -> Tensor:
    """Inner products (e, k, j) of rows (e, k, p) and rows (e, j, p)."""
    if one.device.type == "cpu":
        return torch.bmm(one, other.mT)
    # Element by element: matrix products this long and thin are slow on a GPU.
    return torch.stack([(one * row[:, None]).sum(-1) for row in other.unbind(1)], -1)


def _numbers(tensor: Tensor) -> Floats:
    numbers: Floats = tensor.cpu().double().numpy()
    return numbers


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
    tiny, rows = torch.finfo(directions.dtype).tiny, directions.transpose(0, 1)
    largest = rows.abs().amax((-2, -1), keepdim=True).clamp_(min=tiny)
    mean = (rows / largest).square_().mean((-2, -1), keepdim=True)
    size = mean.sqrt_().mul_(largest).clamp_(min=tiny)
    unit, sizes = (rows / size).reshape(e, k, n * c), _numbers(size[..., 0, 0])
    share = unit.new_ones(n) if row_weights is None else row_weights.to(unit)
    share = (share / n)[:, None]
    problem = _ScaleProblem(
        unit,
        unit.new_zeros(e, 1, 1) if offset is None else offset.reshape(-1, 1, n * c),
        np.zeros((e, k)) if toward is None else _numbers(toward) * sizes,
        pull,
        share,
        share[:, 0].clamp(min=tiny).rsqrt(),
        smoothed_targets(labels, c, unit.dtype) * share,
    )
    begin = np.ones((e, k)) if toward is None else problem.centre
    scales = _minimised(problem, begin if start is None else _numbers(start) * sizes)
    losses = smoothed_nll(problem.logits(scales), labels)
    return torch.from_numpy(scales / sizes).to(unit), losses


def _minimised(problem: _ScaleProblem, scales: Floats) -> Floats:
    """The scales (e, k) that minimise the objective, by damped Newton steps from these."""
    value, logs = problem.evaluated(scales)
    # Two losses that differ by less are equal up to rounding: in float32 the last steps would
    # otherwise be halved for nothing.
    rounding = 4 * torch.finfo(logs.dtype).eps
    for _ in range(ITERATIONS):
        gradient, hessian = problem.derivatives(scales, logs)
        step, least = _newton_step(scales, gradient, hessian), rounding * abs(value)
        proposal = np.maximum(scales - step, 0)
        if (abs(gradient * (scales - proposal)).sum(-1) <= LAST_STEP).all():
            return proposal
        for _ in range(HALVINGS):
            proposed, proposed_logs = problem.evaluated(proposal)
            worse = ~(proposed <= value + least)
            if not worse.any():
                break
            step = np.where(worse[:, None], step / 2, step)
            proposal = np.maximum(scales - step, 0)
        else:
            # No step of these problems gains: they stay where they are.
            proposal = np.where(worse[:, None], scales, proposal)
            proposed = np.where(worse, value, proposed)
            same = torch.from_numpy(worse).to(logs.device)[:, None, None]
            proposed_logs = torch.where(same, logs, proposed_logs)
        # A step that loses no more than rounding is taken: the gradient knows more than the loss.
        gain = value - proposed
        scales, value, logs = proposal, proposed, proposed_logs
        if (gain <= TOLERANCE + least).all():
            break
    return scales


def _newton_step(scales: Floats, gradient: Floats, hessian: Floats) -> Floats:
    """H⁻¹ g (e, k) of the scales that are free to move, and the plain gradient of the others.

    A scale near the bound that would shrink is also treated separately (Bertsekas, 1982): a joint
    step of similar directions would get stuck there.
    """
    if not (scales > NEAR_BOUND).all():
        residual = abs(scales - np.maximum(scales - gradient, 0)).max(-1, keepdims=True)
        free = (scales > np.minimum(residual, NEAR_BOUND)) | (gradient < 0)
        joint = (free[:, :, None] & free[:, None, :]) | np.eye(scales.shape[1], dtype=bool)
        hessian = np.where(joint, hessian, 0.0)
    step: Floats = np.linalg.solve(hessian, gradient[..., None])[..., 0]
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


def smoothed_targets(labels: Tensor, c: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Labels (n,) as rows (n, c), smoothed by `doubt_of`."""
    doubt = doubt_of(len(labels), c)
    others = doubt / max(1, c - 1)
    targets = torch.full((len(labels), c), others, dtype=dtype, device=labels.device)
    return targets.scatter_(1, labels[:, None], 1 - doubt)
