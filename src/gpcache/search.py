"""Hyper-parameters from rows that the model did not see: left-out shots, or a validation set.

For given (β, noise) the fusion weights are found exactly: α and the gain on the zero-shot logits by
Newton on the convex NLL (or on a grid, by accuracy), η element by element. (β, noise) themselves
are walked coarse to fine from the shipped defaults, or swept on a whole grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpcache.gp.fusion import fuse, scaled_mean
from gpcache.probability import fit_scales, mean_nll

Auto = Literal["auto"]
Criterion = Literal["nll", "accuracy", "marginal_likelihood"]
Strategy = Literal["adaptive", "grid"]

# The whole grid of strategy="grid". A finer one (20 × 11 × 11 × 25) chose no better on DTD.
BETAS = tuple(2.0**i for i in range(-2, 6))
NOISES = tuple(10.0 ** (i / 2) for i in range(-6, 3))
ETAS = (0.0, 0.5, 1.0, 2.0, 4.0)
ALPHAS = tuple(10.0 ** (i / 4) for i in range(-4, 13))

# The adaptive walk: factors of two in β and √10 in noise, halved once; and where it must stop.
STEP_BETA, STEP_NOISE = math.log(2), math.log(10) / 2
BETA_RANGE, NOISE_RANGE = (2.0**-4, 2.0**6), (1e-4, 1e2)
# Nats per squared e-fold of β or noise, divided by the shots per class: few shots say little about
# either, so the choice is pulled towards the defaults (chosen on DTD and Caltech, ViT-B/32).
PULL = 0.03


class OneShot(NamedTuple):
    """Numbers for one shot a class, where nothing can be left out to choose on."""

    noise: float
    alpha: float


ONE_SHOT_WITH_TEXT = OneShot(noise=0.3, alpha=16.0)
ONE_SHOT_WITHOUT_TEXT = OneShot(noise=1.0, alpha=50.0)


@dataclass(frozen=True)
class Defaults:
    """Where the walk starts and is pulled to, and what is shipped for data that cannot speak.

    Chosen on DTD and Caltech, ViT-B/32 (docs/defaults.md).
    """

    beta: float = 1.0
    noise: float = 1.0
    with_text: OneShot = ONE_SHOT_WITH_TEXT
    without_text: OneShot = ONE_SHOT_WITHOUT_TEXT


@dataclass(frozen=True)
class Settings:
    """What was asked for: numbers, or "auto" for what is to be found."""

    alpha: float | Auto = "auto"
    beta: float | Auto = "auto"
    noise: float | Auto = "auto"
    eta: float | Auto = "auto"
    gain: float | Auto = "auto"
    criterion: Criterion = "nll"
    strategy: Strategy = "adaptive"
    defaults: Defaults = Defaults()

    def all_given(self, *, uses_noise: bool, with_text: bool) -> bool:
        """Whether nothing is left to choose, for a method with or without noise and text."""
        free = {self.alpha, self.beta, self.eta}
        free |= {self.noise} if uses_noise else set()
        free |= {self.gain} if with_text else set()
        return "auto" not in free


class HeldOut(NamedTuple):
    """Cache outputs on unseen rows: mean (n, c), variance (n, c) or (n, 1), text logits, labels."""

    mean: Tensor
    variance: Tensor | None
    zero_shot: Tensor | None
    labels: Tensor
    log_marginal_likelihood: float = math.nan


@dataclass(frozen=True)
class Choice:
    """One setting and what it scored; `score` is what was minimised."""

    beta: float
    noise: float
    alpha: float
    eta: float
    gain: float
    nll: float = math.nan
    accuracy: float = math.nan
    score: float = math.nan


Evaluate = Callable[[float, Sequence[float]], Sequence[HeldOut]]


def shipped(settings: Settings, *, with_text: bool) -> Choice:
    """The choice where no held-out row can tell: what was asked for, else the defaults."""
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
    evaluate: Evaluate, settings: Settings, *, shots: float, uses_noise: bool
) -> list[Choice]:
    """All settings that were looked at, the best first. `shots` per class sets the pull."""
    pull = PULL / max(shots, 1.0) if settings.strategy == "adaptive" else 0.0

    def look(beta: float, noises: Sequence[float]) -> list[Choice]:
        found = []
        for noise, held_out in zip(noises, evaluate(beta, noises), strict=True):
            away = 0.0
            if settings.beta == "auto":
                away += math.log(beta / settings.defaults.beta) ** 2
            if settings.noise == "auto" and uses_noise:
                away += math.log(noise / settings.defaults.noise) ** 2
            found.append(_fusion(held_out, settings, beta, noise, pull * away))
        return found

    betas = BETAS if settings.beta == "auto" else (settings.beta,)
    noises = NOISES if settings.noise == "auto" else (settings.noise,)
    if not uses_noise:
        noises = (_or(settings.noise, settings.defaults.noise),)
    if settings.strategy == "grid":
        seen = [choice for beta in betas for choice in look(beta, noises)]
    else:
        seen = _walk(look, settings, uses_noise=uses_noise)
    return sorted(seen, key=lambda choice: (choice.score, choice.nll))


def _walk(
    look: Callable[[float, Sequence[float]], list[Choice]], settings: Settings, *, uses_noise: bool
) -> list[Choice]:
    """Descend on a lattice of (log β, log noise), one coordinate after the other, then finer."""
    seen: dict[tuple[int, int], Choice] = {}
    start_beta = _or(settings.beta, settings.defaults.beta)
    start_noise = _or(settings.noise, settings.defaults.noise)
    directions = []
    if settings.noise == "auto" and uses_noise:
        directions += [(0, -1), (0, 1)]
    if settings.beta == "auto":
        directions += [(1, 0), (-1, 0)]

    def score(place: tuple[int, int]) -> float:
        beta = start_beta * math.exp(place[0] * STEP_BETA / 2)
        noise = start_noise * math.exp(place[1] * STEP_NOISE / 2)
        # The range bounds what is walked, not what was given.
        inside = place[0] == 0 or BETA_RANGE[0] <= beta <= BETA_RANGE[1]
        inside = inside and (place[1] == 0 or NOISE_RANGE[0] <= noise <= NOISE_RANGE[1])
        if not inside:
            return math.inf
        if place not in seen:
            seen[place] = look(beta, [noise])[0]
        return seen[place].score

    here, lowest = (0, 0), score((0, 0))
    for step in (2, 1):
        moved = True
        while moved:
            moved = False
            for i, j in directions:
                # As far as it goes down one way, before another way is looked at.
                while score(place := (here[0] + step * i, here[1] + step * j)) < lowest:
                    here, lowest, moved = place, score(place), True
    return list(seen.values())


def _fusion(
    held_out: HeldOut, settings: Settings, beta: float, noise: float, penalty: float
) -> Choice:
    """The best α, η and gain at one (β, noise)."""
    etas = ETAS if settings.eta == "auto" else (settings.eta,)
    if held_out.variance is None:
        etas = (0.0,)
    scaled = torch.stack([scaled_mean(held_out.mean, held_out.variance, eta) for eta in etas])
    if settings.criterion == "accuracy":
        alpha, eta, gain, nll, accuracy = _by_accuracy(held_out, scaled, etas, settings, noise)
        return Choice(beta, noise, alpha, eta, gain, nll, accuracy, penalty - accuracy)
    alphas, gains, losses = _by_nll(held_out, scaled, settings)
    i = int(losses.argmin())
    logits = fuse(held_out.zero_shot, scaled[i], None, alpha=alphas[i], gain=gains[i])
    accuracy = float((logits.argmax(-1) == held_out.labels).double().mean())
    nll = float(losses[i])
    score = nll + penalty
    if settings.criterion == "marginal_likelihood":
        score = penalty - held_out.log_marginal_likelihood / held_out.mean.numel()
    return Choice(beta, noise, float(alphas[i]), etas[i], float(gains[i]), nll, accuracy, score)


def _by_nll(held_out: HeldOut, scaled: Tensor, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """α (e,), gain (e,) and NLL (e,) for scaled means (e, n, c)."""
    zero_shot = held_out.zero_shot
    free_gain = settings.gain == "auto" and zero_shot is not None
    gain = _or(settings.gain, 1.0)
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
        return alphas, gains, mean_nll(offset, held_out.labels)
    scales, losses = fit_scales(torch.stack(directions), held_out.labels, offset=offset)
    if settings.alpha == "auto":
        alphas = scales[:, 0]
    if free_gain:
        gains = scales[:, -1]
    return alphas, gains, losses


def _by_accuracy(
    held_out: HeldOut, scaled: Tensor, etas: Sequence[float], settings: Settings, noise: float
) -> tuple[float, float, float, float, float]:
    """The grid point of highest accuracy; among equals the one of lowest NLL."""
    gain = _or(settings.gain, 1.0)
    # The mean shrinks like 1/(1 + noise), so α must be allowed to grow with it.
    grid = [a * (1 + noise) for a in ALPHAS] if settings.alpha == "auto" else [settings.alpha]
    best = (-1.0, math.inf, 0.0, 0.0)
    for alpha in grid:
        logits = alpha * scaled
        if held_out.zero_shot is not None:
            logits = logits + gain * held_out.zero_shot
        accuracy = (logits.argmax(-1) == held_out.labels).double().mean(-1)
        top = float(accuracy.max())
        if top < best[0]:
            continue
        losses = torch.where(accuracy == top, mean_nll(logits, held_out.labels), math.inf)
        i = int(losses.argmin())
        if (top, -float(losses[i])) > (best[0], -best[1]):
            best = (top, float(losses[i]), alpha, etas[i])
    return best[2], best[3], gain, best[1], best[0]


def _or(setting: float | Auto, value: float) -> float:
    return value if setting == "auto" else float(setting)
