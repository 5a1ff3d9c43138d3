"""Chooses hyper-parameters on rows that the model did not see: left-out shots, or a validation set.

At a given (β, noise) the fusion weights are found exactly: α, and the gain on the zero-shot logits
if it is only a weight, by Newton's method on the convex smoothed NLL (or on a grid, by accuracy),
η by trying each value. (β, noise) are searched from the defaults, coarse to fine, or on a whole
grid. If the cache regresses on the residuals of the text, the gain is searched with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpcache.gp.fusion import fuse, scaled_mean
from gpcache.methods.cache.lattice import Lattice, Point, Steps
from gpcache.metrics import fit_scales, mean_nll, smoothed_losses, smoothed_nll

Auto = Literal["auto"]
Criterion = Literal["nll", "accuracy", "marginal_likelihood"]
Strategy = Literal["adaptive", "grid"]

# The whole grid of strategy="grid". A finer one (20 × 11 × 11 × 25) chose no better on DTD.
BETAS = tuple(2.0**i for i in range(-2, 6))
NOISES = tuple(10.0 ** (i / 2) for i in range(-6, 3))
ETAS = (0.0, 0.5, 1.0, 2.0, 4.0)
ALPHAS = tuple(10.0 ** (i / 4) for i in range(-4, 13))
GAINS = (1.0, 0.5, 0.25, 0.125, 0.0625)

# The adaptive walk over (β, noise, gain): factors of two, √10 and two, halved once; and where it
# must stop.
STEPS = (math.log(2), math.log(10) / 2, math.log(2))
RANGES = ((2.0**-4, 2.0**6), (1e-4, 1e2), (2.0**-5, 2.0))
# Nats per squared e-fold of each, divided by the shots per class: few shots say little about them,
# so the choice is pulled towards the defaults (chosen on DTD and Caltech, ViT-B/32).
PULL = 0.03


class OneShot(NamedTuple):
    """Hyper-parameters for one shot a class, where no shot can be left out to choose on."""

    noise: float
    alpha: float
    #: How the temperature follows the entropy of an answer.
    slope: float = 0.0


ONE_SHOT_WITH_TEXT = OneShot(noise=0.3, alpha=16.0, slope=0.3)
ONE_SHOT_WITHOUT_TEXT = OneShot(noise=1.0, alpha=42.0, slope=0.4)


@dataclass(frozen=True)
class Defaults:
    """The start of the search, to which it is pulled; also the choice if no row can be held out.

    Chosen on DTD and Caltech, ViT-B/32 (docs/concepts/choices.md).
    """

    beta: float = 1.0
    noise: float = 1.0
    with_text: OneShot = ONE_SHOT_WITH_TEXT
    without_text: OneShot = ONE_SHOT_WITHOUT_TEXT


@dataclass(frozen=True)
class SearchOptions:
    """Hyper-parameters as the user gave them: a number, or "auto" to choose it."""

    alpha: float | Auto = "auto"
    beta: float | Auto = "auto"
    noise: float | Auto = "auto"
    eta: float | Auto = "auto"
    gain: float | Auto = "auto"
    # Of the softmax likelihood.
    tau: float | Auto = "auto"
    shrinkage: float | Auto = "auto"
    discriminant: float | Auto = "auto"
    criterion: Criterion = "nll"
    strategy: Strategy = "adaptive"
    defaults: Defaults = Defaults()
    # Whether the cache regresses on the residuals of gain · zero_shot. The gain then shapes its
    # targets and cannot be fitted afterwards.
    residual: bool = False

    def all_given(self, *, uses_noise: bool, with_text: bool) -> bool:
        """Whether nothing is left to choose, for a method with or without noise and text."""
        free = {self.alpha, self.beta, self.eta}
        free |= {self.noise} if uses_noise else set()
        free |= {self.gain} if with_text else set()
        return "auto" not in free

    def shipped_slope(self, with_text: bool) -> float:
        """The entropy slope that belongs to the default α; 0 if the user gave α."""
        if self.alpha != "auto":
            return 0.0
        return (self.defaults.with_text if with_text else self.defaults.without_text).slope


class CacheOutputs(NamedTuple):
    """Cache outputs on unseen rows: mean (n, c), variance (n, c) or (n, 1), text logits, labels."""

    mean: Tensor
    variance: Tensor | None
    zero_shot: Tensor | None
    labels: Tensor
    log_marginal_likelihood: float = math.nan

    def logits(self, choice: Choice) -> Tensor:
        """(n, c) at the fusion weights of a choice."""
        weights = {"alpha": choice.alpha, "eta": choice.eta, "gain": choice.gain}
        return fuse(self.zero_shot, self.mean, self.variance, **weights)

    @classmethod
    def together(cls, parts: Sequence[CacheOutputs]) -> CacheOutputs:
        """The outputs of several parts, one after the other."""

        def joined(tensors: Sequence[Tensor | None]) -> Tensor | None:
            present = [tensor for tensor in tensors if tensor is not None]
            return torch.cat(present) if present else None

        means, variances, texts, labels, likelihoods = zip(*parts, strict=True)
        variance, zero_shot = joined(variances), joined(texts)
        return cls(torch.cat(means), variance, zero_shot, torch.cat(labels), sum(likelihoods))

    def rows(self, kept: Tensor) -> CacheOutputs:
        """The outputs of some rows."""
        variance = None if self.variance is None else self.variance[kept]
        zero_shot = None if self.zero_shot is None else self.zero_shot[kept]
        likelihood = self.log_marginal_likelihood
        return CacheOutputs(self.mean[kept], variance, zero_shot, self.labels[kept], likelihood)


@dataclass(frozen=True)
class Choice:
    """One setting and its figures on held-out rows; the search minimises `score`."""

    beta: float
    noise: float
    alpha: float
    eta: float
    gain: float
    nll: float = math.nan
    accuracy: float = math.nan
    score: float = math.nan
    # The loss of each row; the score adds a penalty for the distance from the defaults.
    losses: Tensor | None = field(default=None, compare=False, repr=False)
    # Of the softmax likelihood: variance of the prior, shrinkage of the whitening and its target,
    # gain of the text in the prior mean, weight of the discriminant, share of wrong labels.
    tau: float = 0.0
    shrinkage: float = 0.0
    diagonal: float = 0.0
    offset: float = 0.0
    discriminant: float = 0.0
    label_noise: float = 0.0

    @property
    def place(self) -> Point:
        """(β, noise, gain)."""
        return self.beta, self.noise, self.gain

    def as_settings(self) -> dict[str, float | None]:
        """The choice as JSON holds it, which has no NaN."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "losses"}
        return {name: None if math.isnan(value) else value for name, value in values.items()}

    @classmethod
    def from_settings(cls, settings: dict[str, float | None]) -> Choice:
        """The inverse of `as_settings`."""
        known = {name: math.nan if value is None else value for name, value in settings.items()}
        return cls(**known)  # type: ignore[arg-type]


# The hyper-parameters that are shown of a fitted model.
REGRESSION_NUMBERS = ("alpha", "beta", "noise", "eta", "gain")
SOFTMAX_NUMBERS = ("alpha", "beta", "tau", "shrinkage", "discriminant", "gain")
# What a table of a search by regression shows.
COLUMNS = ("beta", "noise", "alpha", "eta", "gain", "nll", "accuracy", "score")

Evaluate = Callable[[float, Sequence[float], float], Sequence[CacheOutputs]]


def shipped(settings: SearchOptions, *, with_text: bool) -> Choice:
    """The choice if no row can be held out: given values, else the defaults."""
    base = settings.defaults
    one_shot = base.with_text if with_text else base.without_text
    return Choice(
        beta=_or(settings.beta, base.beta),
        noise=_or(settings.noise, one_shot.noise),
        alpha=_or(settings.alpha, one_shot.alpha),
        eta=_or(settings.eta, 0.0),
        gain=_or(settings.gain, 1.0),
    )


def search(
    evaluate: Evaluate, settings: SearchOptions, *, shots: float, uses_noise: bool
) -> list[Choice]:
    """All settings that were tried, the best first. `shots` per class sets the pull."""
    pull = PULL / max(shots, 1.0) if settings.strategy == "adaptive" else 0.0
    start = (
        _or(settings.beta, settings.defaults.beta),
        _or(settings.noise, settings.defaults.noise),
        _or(settings.gain, 1.0),
    )
    free = (
        settings.beta == "auto",
        settings.noise == "auto" and uses_noise,
        settings.gain == "auto" and settings.residual,
    )

    def look(beta: float, noises: Sequence[float], gain: float) -> list[Choice]:
        choices = []
        for noise, held_out in zip(noises, evaluate(beta, noises, gain), strict=True):
            place = (beta, noise, gain)
            away = sum(
                math.log(here / there) ** 2
                for here, there, walked in zip(place, start, free, strict=True)
                if walked
            )
            choices.append(weigh(held_out, settings, place, pull * away))
        return choices

    if settings.strategy == "grid":
        grids = (BETAS, NOISES, GAINS)
        betas, noises, gains = (
            grid if walked else (value,)
            for grid, value, walked in zip(grids, start, free, strict=True)
        )
        tried = [choice for g in gains for beta in betas for choice in look(beta, noises, g)]
    else:
        tried = _walk(lambda place: look(place[0], [place[1]], place[2])[0], start, free)
    return sorted(tried, key=lambda choice: (choice.score, choice.nll))


def _walk(
    look: Callable[[Point], Choice], start: Point, free: tuple[bool, bool, bool]
) -> list[Choice]:
    """Settings from the start downwards, the gain of the text first, from far away.

    Noise and β adapt to the gain, and would then keep it where it is.
    """
    lattice = Lattice(start, STEPS, RANGES, free)
    tried: dict[Steps, Choice] = {}

    def score(spot: Steps) -> float:
        point = lattice.point(spot)
        if point is None:
            return math.inf
        if spot not in tried:
            tried[spot] = look(point)
        return tried[spot].score

    gains = [(0, 0, round(2 * math.log(gain) / STEPS[2])) for gain in GAINS if free[2]]
    directions = [(0, -1, 0), (0, 1, 0), (1, 0, 0), (-1, 0, 0), (0, 0, -1), (0, 0, 1)]
    lattice.descend(score, min([(0, 0, 0), *gains], key=score), directions)
    return list(tried.values())


def weigh(
    held_out: CacheOutputs, settings: SearchOptions, place: Point, penalty: float = 0.0
) -> Choice:
    """The best α and η at one (β, noise), and the gain if it is only a weight."""
    beta, noise, gain = place
    etas = ETAS if settings.eta == "auto" else (settings.eta,)
    if held_out.variance is None:
        etas = (0.0,)
    scaled = torch.stack([scaled_mean(held_out.mean, held_out.variance, eta) for eta in etas])
    by_accuracy, labels = settings.criterion == "accuracy", held_out.labels
    if by_accuracy:
        alpha, i = _by_accuracy(held_out, scaled, settings, noise, gain)
    else:
        alphas, gains, totals = _by_nll(held_out, scaled, settings, gain)
        i = int(totals.argmin())
        alpha, gain, score = float(alphas[i]), float(gains[i]), float(totals[i])
    logits = fuse(held_out.zero_shot, scaled[i], None, alpha=alpha, gain=gain)
    is_right = logits.argmax(-1) == labels
    accuracy, nll = float(is_right.double().mean()), float(mean_nll(logits, labels))
    losses = (~is_right).to(logits) if by_accuracy else smoothed_losses(logits, labels)
    if by_accuracy:
        score = -accuracy
    elif settings.criterion == "marginal_likelihood":
        score = -held_out.log_marginal_likelihood / held_out.mean.numel()
    return Choice(beta, noise, alpha, etas[i], gain, nll, accuracy, score + penalty, losses)


def _by_nll(
    held_out: CacheOutputs, scaled: Tensor, settings: SearchOptions, gain: float
) -> tuple[Tensor, Tensor, Tensor]:
    """α (e,), gain (e,) and smoothed NLL (e,) for scaled means (e, n, c)."""
    zero_shot = held_out.zero_shot
    free_gain = settings.gain == "auto" and zero_shot is not None and not settings.residual
    offset = None if zero_shot is None or free_gain else gain * zero_shot
    directions = []
    if settings.alpha == "auto":
        directions.append(scaled)
    else:
        offset = settings.alpha * scaled if offset is None else offset + settings.alpha * scaled
    if free_gain and zero_shot is not None:
        directions.append(zero_shot.expand_as(scaled))
    ones = scaled.new_ones(len(scaled))
    alphas, gains = ones * _or(settings.alpha, 1.0), ones * gain
    if not directions:
        assert offset is not None  # either α or the gain was free, or α is in the offset
        return alphas, gains, smoothed_nll(offset, held_out.labels)
    scales, losses = fit_scales(torch.stack(directions), held_out.labels, offset=offset)
    if settings.alpha == "auto":
        alphas = scales[:, 0]
    if free_gain:
        gains = scales[:, -1]
    return alphas, gains, losses


def _by_accuracy(
    held_out: CacheOutputs, scaled: Tensor, settings: SearchOptions, noise: float, gain: float
) -> tuple[float, int]:
    """α and the number of η at the most accurate grid point; ties go to the lowest NLL."""
    # The mean shrinks like 1/(1 + noise), so α must be allowed to grow with it.
    grid = [a * (1 + noise) for a in ALPHAS] if settings.alpha == "auto" else [settings.alpha]
    best = (-1.0, -math.inf, 0.0, 0)
    for alpha in grid:
        logits = fuse(held_out.zero_shot, scaled, None, alpha=alpha, gain=gain)
        accuracy = (logits.argmax(-1) == held_out.labels).double().mean(-1)
        top = float(accuracy.max())
        if top < best[0]:
            continue
        losses = torch.where(accuracy == top, mean_nll(logits, held_out.labels), math.inf)
        i = int(losses.argmin())
        if (top, -float(losses[i])) > best[:2]:
            best = (top, -float(losses[i]), alpha, i)
    return best[2], best[3]


def _or(setting: float | Auto, value: float) -> float:
    return value if setting == "auto" else float(setting)
