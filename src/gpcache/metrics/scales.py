"""Fits non-negative scales of logits by Newton's method, on labels smoothed for few rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpcache.support.softmax import log_softmax

Numbers = list[list[float]]

# Penalty on the square of a scale (in units where the logits it multiplies have unit size): no
# effect on real data, but scales stay finite if the rows are separable.
RIDGE = 1e-6
ITERATIONS = 60
HALVINGS = 20
TOLERANCE = 1e-10
# A Newton step that is expected to gain no more is the last: what remains is its square.
LAST_STEP = 1e-8
NEAR_BOUND = 0.05


class _ScaleProblem(NamedTuple):
    """e convex problems of k scales each, in units where the directions have unit size.

    The few numbers of each problem (scales, loss, gradient, Hessian) are lists.
    """

    unit: Tensor  # (e, k, n · c)
    offset: Tensor  # (e, 1, n · c), or anything that expands to it
    centre: Numbers  # (e, k): where the scales are pulled to
    pull: float
    share: Tensor  # (n, 1): the weights of the rows
    inverse_roots: Tensor  # (n,): of these weights
    targets: Tensor  # (n, c): the smoothed labels, times these weights

    def logits(self, scales: Numbers) -> Tensor:
        """(e, n, c) at scales (e, k)."""
        factors = self.unit.new_tensor(scales)[:, None]
        return torch.baddbmm(self.offset, factors, self.unit).view(-1, *self.targets.shape)

    def evaluated(self, scales: Numbers) -> tuple[list[float], Tensor]:
        """The loss with the penalty (e,), and the log-probabilities (e, n, c)."""
        logs = log_softmax(self.logits(scales))
        gains: list[float] = (logs * self.targets).sum((-2, -1)).tolist()
        away = zip(scales, self.centre, strict=True)
        penalties = [0.5 * self.pull * math.dist(*pair) ** 2 for pair in away]
        return [one - gain for one, gain in zip(penalties, gains, strict=True)], logs

    def derivatives(self, scales: Numbers, logs: Tensor) -> tuple[Numbers, list[Numbers]]:
        """Gradient (e, k) and Hessian (e, k, k), where the log-probabilities are these."""
        e, k, size = self.unit.shape
        weighted = logs.exp().mul_(self.share)
        parts = self.unit.view(e, k, *self.targets.shape) * weighted[:, None]
        # A row of weight w and expectation m takes away w m² = (w m)² / w.
        expected = parts.sum(-1).mul_(self.inverse_roots)
        slope = _inner(self.unit, weighted.sub_(self.targets).view(e, 1, size))
        second = _inner(parts.view(e, k, size), self.unit)
        second = second.baddbmm_(expected, expected.mT, alpha=-1)
        both = torch.cat([slope, second], -1).tolist()
        for rows, point, centre in zip(both, scales, self.centre, strict=True):
            for i, row in enumerate(rows):
                row[0] += self.pull * (point[i] - centre[i])
                row[i + 1] += self.pull
        return [[row[0] for row in rows] for rows in both], [
            [row[1:] for row in rows] for rows in both
        ]


def _inner(one: Tensor, other: Tensor) -> Tensor:
    """Inner products (e, k, j) of rows (e, k, p) and rows (e, j, p)."""
    if one.device.type == "cpu":
        return torch.bmm(one, other.mT)
    # Element by element: matrix products this long and thin are slow on a GPU.
    return torch.stack([(one * row[:, None]).sum(-1) for row in other.unbind(1)], -1)


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
    offset : Tensor of shape (n, c) or (e, n, c), optional
        Logits that are added without a scale.
    toward : Tensor of shape (e, k), optional
        Values that the scales are pulled towards; zero by default.
    pull : float, default=1e-6
        Weight of half the squared distance to `toward`, in units where the directions have unit
        size.
    row_weights : Tensor of shape (n,), optional
        Weight of each row; equal by default.
    start : Tensor of shape (k,) or (e, k), optional
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
    unit, size = (rows / size).reshape(e, k, n * c), size[..., 0, 0]
    share = unit.new_ones(n) if row_weights is None else row_weights.to(unit)
    share = (share / n)[:, None]
    problem = _ScaleProblem(
        unit,
        unit.new_zeros(e, 1, 1) if offset is None else offset.reshape(-1, 1, n * c),
        [[0.0] * k] * e if toward is None else (toward.to(size) * size).tolist(),
        pull,
        share,
        share[:, 0].clamp(min=tiny).rsqrt(),
        smoothed_targets(labels, c, unit.dtype) * share,
    )
    begin = [[1.0] * k] * e if toward is None else problem.centre
    scales = _minimised(problem, begin if start is None else (start.to(size) * size).tolist())
    return unit.new_tensor(scales) / size, smoothed_nll(problem.logits(scales), labels)


def _minimised(problem: _ScaleProblem, scales: Numbers) -> Numbers:
    """The scales (e, k) that minimise the objective, by damped Newton steps from these."""
    values, logs = problem.evaluated(scales)
    # Two losses that differ by less are equal up to rounding: in float32 the last steps would
    # otherwise be halved for nothing.
    rounding = 4 * torch.finfo(logs.dtype).eps
    for _ in range(ITERATIONS):
        slopes, hessians = problem.derivatives(scales, logs)
        steps = _newton_steps(scales, slopes, hessians)
        proposals = list(map(_moved, scales, steps))
        moves = zip(scales, proposals, slopes, strict=True)
        if all(sum(map(_gain, *move)) <= LAST_STEP for move in moves):
            return proposals
        least = [rounding * abs(value) for value in values]
        for _ in range(HALVINGS):
            proposed, proposed_logs = problem.evaluated(proposals)
            trios = zip(proposed, values, least, strict=True)
            worse = [not new <= old + rounding for new, old, rounding in trios]
            if not any(worse):
                break
            steps = [
                [0.5 * one for one in step] if bad else step
                for step, bad in zip(steps, worse, strict=True)
            ]
            proposals = list(map(_moved, scales, steps))
        else:
            # No step of these problems gains: they stay where they are.
            choices = zip(worse, scales, proposals, strict=True)
            proposals = [old if bad else new for bad, old, new in choices]
            proposed, proposed_logs = problem.evaluated(proposals)
        # A step that loses no more than rounding is taken: the gradient knows more than the loss.
        trios = zip(values, proposed, least, strict=True)
        done = all(old - new <= TOLERANCE + rounding for old, new, rounding in trios)
        scales, values, logs = proposals, proposed, proposed_logs
        if done:
            break
    return scales


def _moved(scales: Sequence[float], step: Sequence[float]) -> list[float]:
    return [max(scale - one, 0.0) for scale, one in zip(scales, step, strict=True)]


def _gain(old: float, new: float, slope: float) -> float:
    return abs(slope * (old - new))


def _newton_steps(scales: Numbers, gradients: Numbers, hessians: Sequence[Numbers]) -> Numbers:
    """H⁻¹ g (e, k) of the scales that are free to move, and the plain gradient of the others."""
    matrices = list(map(_among_free, scales, gradients, hessians))
    steps: Numbers = np.linalg.solve(matrices, np.array(gradients)[..., None])[..., 0].tolist()
    return steps


def _among_free(scales: Sequence[float], gradient: Sequence[float], hessian: Numbers) -> Numbers:
    """The Hessian without the entries that couple a scale which stays with others.

    A scale near the bound that would shrink is also treated separately (Bertsekas, 1982): a joint
    step of similar directions would get stuck there.
    """
    if min(scales) > NEAR_BOUND:
        return hessian
    pairs = list(zip(scales, gradient, strict=True))
    residual = max(abs(scale - max(scale - slope, 0.0)) for scale, slope in pairs)
    free = [scale > min(residual, NEAR_BOUND) or slope < 0 for scale, slope in pairs]
    return [
        [one if i == j or (free[i] and free[j]) else 0.0 for j, one in enumerate(row)]
        for i, row in enumerate(hessian)
    ]


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
