"""From logits to probabilities: scales of logits by convex maximum likelihood, and temperature."""

from __future__ import annotations

import torch
from torch import Tensor

# A scale is pulled towards zero by this much of its square (in units where the logits it multiplies
# have unit size): invisible on real data, and finite where the rows are separable.
RIDGE = 1e-6
ITERATIONS = 60
HALVINGS = 20
TOLERANCE = 1e-10
NEAR_BOUND = 0.05


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
    k, e, n, c = directions.shape
    # Relative to the largest entry: its own square may be beyond float32.
    tiny = torch.finfo(directions.dtype).tiny
    largest = directions.abs().amax((-2, -1)).clamp(min=tiny)
    size = largest * (directions / largest[..., None, None]).square().mean((-2, -1)).sqrt()
    size = size.clamp(min=tiny)
    unit = directions / size[..., None, None]
    at_label = unit[..., torch.arange(n, device=labels.device), labels]  # (k, e, n)
    doubt = doubt_of(n, c)
    at_target = (1 - doubt) * at_label
    if c > 1:
        at_target = at_target + doubt * (unit.sum(-1) - at_label) / (c - 1)
    eye = torch.eye(k, dtype=torch.bool, device=unit.device)
    share = unit.new_full((n,), 1 / n) if row_weights is None else row_weights.to(unit) / n

    centre = unit.new_zeros(e, k) if toward is None else toward.to(unit) * size.mT

    def logits_at(scales: Tensor) -> Tensor:
        # Element by element, here and below: a GPU is slow at products so thin and long.
        fused = (unit * scales.mT[..., None, None]).sum(0)
        return fused if offset is None else fused + offset

    def objective(scales: Tensor) -> Tensor:
        loss = (smoothed_losses(logits_at(scales), labels) * share).sum(-1)
        return loss + 0.5 * pull * (scales - centre).square().sum(-1)

    scales = unit.new_ones(e, k) if toward is None else centre
    value = objective(scales)
    # Two losses that differ by less are equal but for rounding: in float32 the last steps would
    # otherwise be halved for nothing.
    rounding = 4 * torch.finfo(unit.dtype).eps
    for _ in range(ITERATIONS):
        probability = logits_at(scales).softmax(-1)
        expected = (unit * probability).sum(-1)  # (k, e, n)
        slope = ((expected - at_target) * share).sum(-1)
        gradient = slope.mT + pull * (scales - centre)  # (e, k)
        weighted = unit * (probability * share[:, None])
        second = torch.stack([(row * unit).sum((-2, -1)) for row in weighted])  # (k, k, e)
        hessian = second.permute(2, 0, 1)
        known = torch.einsum("ken,len->ekl", expected * share, expected)
        hessian = hessian - known + pull * eye
        # Beside the bound, too, a scale that wants to shrink is taken by itself (Bertsekas, 1982):
        # a joint step of directions that are alike would jam there.
        residual = (scales - (scales - gradient).clamp(min=0)).abs().amax(-1, keepdim=True)
        free = (scales > residual.clamp(max=NEAR_BOUND)) | (gradient < 0)
        pair = free[:, :, None] & free[:, None, :]
        hessian = torch.where(pair | eye, hessian, 0.0)
        step = torch.linalg.solve(hessian, gradient[..., None])[..., 0]
        length = unit.new_ones(e, 1)
        for _ in range(HALVINGS):
            proposal = (scales - length * step).clamp(min=0)
            proposed = objective(proposal)
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
    return scales / size.mT, smoothed_nll(logits_at(scales), labels)


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
    # A scale of nought says that the logits know nothing: near-uniform, but finite.
    return 1.0 / max(float(scale), 1e-6)
