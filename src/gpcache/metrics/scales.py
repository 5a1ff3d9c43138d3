"""Fits non-negative scales of logits by Newton's method, on labels smoothed for few rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Penalty on the square of a scale (in units where the logits it multiplies have unit size): no
# effect on real data, but scales stay finite if the rows are separable.
RIDGE = 1e-6
ITERATIONS = 60
HALVINGS = 20
TOLERANCE = 1e-10
NEAR_BOUND = 0.05


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
    targets = smoothed_targets(labels, c, unit.dtype) * share
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


def smoothed_targets(labels: Tensor, c: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Labels (n,) as rows (n, c), smoothed by `doubt_of`."""
    doubt = doubt_of(len(labels), c)
    others = doubt / max(1, c - 1)
    targets = torch.full((len(labels), c), others, dtype=dtype, device=labels.device)
    return targets.scatter_(1, labels[:, None], 1 - doubt)
