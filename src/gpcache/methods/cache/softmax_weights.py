"""Fits the weights of cache, discriminant and text, and estimates the label noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpcache.methods.cache.search import Auto, SearchOptions
from gpcache.methods.cache.shots import Shots
from gpcache.methods.cache.softmax import class_frequency, degrees_of_freedom
from gpcache.methods.cache.softmax_folds import SoftmaxSetting
from gpcache.metrics import fit_scales
from gpcache.support.softmax import softmax

# Chosen on DTD, Caltech, Pets and UCF101 (ViT-B/32) and the photos of caltech20 and trash6;
# docs/results/headline.md leaves each set out in turn, for the values listed there.

# The θ of one and two shots a class, which cannot choose; weights near one belong to it.
FEW_THETA = 300.0
# The weights that the fit is pulled to: of the cache with text, of the discriminant in units of the
# estimated scatter, and how the first grows as θ falls.
ALPHA, DISCRIMINANT = 1.25, 0.03
ALPHA_EXPONENT_TEXT, ALPHA_EXPONENT = 0.1, 0.25
# Logits (root mean square) that the discriminant is expected to add at most. Not tuned: with 4 and
# 16 shots of Pets, UCF101, Caltech, caltech20 and trash6 the median of a search is 0.06 to 3.4, and
# only settings at its edge reach 6.
MOST_EXPECTED = 5.0
# Half the squared pull, in rows: of weights, and of weights of a model with half of the shots.
PULL, FEW_PULL = 0.2, 4.0
# Divided by the number of held-out rows: added to the pull of the weights, and the pull of the
# temperature to 1, in rows. A few rows alone choose answers that are too unsure.
SMALL_PULL, CALIBRATION_PULL = 20.0, 100.0
# Label noise: right labels that the prior counts as, rounds of the estimate, and the share of wrong
# labels from which on rows are weighted.
NOISE_PRIOR, NOISE_ROUNDS, NOISE_MATTERS = 20.0, 20, 0.02
# Fits of the weights; each uses the row weights that the one before estimated.
WEIGHT_ROUNDS = 3


class LabelNoise(NamedTuple):
    """The estimated share of wrong labels, and the probability (r,) that each label is right."""

    share: float
    right: Tensor

    @classmethod
    def each(cls, right: Tensor, n_classes: int) -> list[LabelNoise]:
        """From the probabilities (s, r) of the labels in s models, by expectation maximisation.

        A label is what the model says with probability 1 − ε, and any class with probability ε.
        """
        n_models, n = right.shape
        noise = np.full((n_models, 1), 0.05)
        # One transfer and small steps; a label of probability zero gets no weight.
        inverse = right.double().reciprocal().cpu().numpy()
        is_right = np.empty_like(inverse)
        for _ in range(NOISE_ROUNDS):
            np.multiply(inverse, noise / ((1 - noise) * n_classes), out=is_right)
            np.add(is_right, 1, out=is_right)
            np.reciprocal(is_right, out=is_right)
            noise = (n + 1 - is_right.sum(1, keepdims=True)) / (n + 1 + NOISE_PRIOR)
        found = torch.from_numpy(is_right).to(right)
        return [cls(*one) for one in zip(noise[:, 0].tolist(), found, strict=True)]

    def losses(self, right: Tensor, n_classes: int) -> Tensor:
        """−log probability (r,) of the labels, some of which may be wrong."""
        return -torch.log((1 - self.share) * right + self.share / n_classes)


class WeighedParts(NamedTuple):
    """Weights (k,), the logits (r, c) and probabilities (r,) of the labels, and their noise."""

    weights: Tensor
    logits: Tensor
    right: Tensor
    label_noise: LabelNoise

    @classmethod
    def each(
        cls, weights: Tensor, parts: Tensor, labels: Tensor, frequency: Tensor
    ) -> list[WeighedParts]:
        """Of weights (s, k) and parts (s, k, r, c); classes are as frequent (c,) as the shots'."""
        logits = combined(weights, parts) + frequency
        right = softmax(logits)[:, torch.arange(len(labels), device=labels.device), labels]
        noises = LabelNoise.each(right, logits.shape[2])
        return list(map(cls, weights.clone(), logits, right, noises))


@dataclass(frozen=True, eq=False)
class WeightFit:
    """Fits the weights of a setting on held-out rows.

    `gain` is that of the text by itself, `scores` says whether there is a discriminant, `few`
    whether there are too few shots a class to choose by; `shots_left` are the shots a class that
    the models of the folds have.
    """

    shots: Shots
    settings: SearchOptions
    gain: float
    scores: bool
    few: bool
    shots_left: float

    @cached_property
    def frequency(self) -> Tensor:
        """How frequent each class (c,) is among the shots, as logits."""
        return class_frequency(self.shots)

    def prior(self, setting: SoftmaxSetting, shots_left: float) -> Tensor:
        """The weights that few rows are pulled to, for models with `shots_left` shots a class."""
        has_text = self.shots.zero_shot is not None
        alpha = ALPHA if has_text else 1 + 1 / shots_left
        exponent = ALPHA_EXPONENT_TEXT if has_text else ALPHA_EXPONENT
        weights = [alpha * (FEW_THETA / setting.theta) ** exponent]
        if self.scores:
            weights.append(DISCRIMINANT)
        if has_text:
            weights.append(self.gain)
        return torch.tensor(weights, dtype=torch.float64, device=self.shots.labels.device)

    def fit(
        self,
        setting: SoftmaxSetting,
        parts: Tensor,
        labels: Tensor,
        start: Tensor | None = None,
        row_weights: Tensor | None = None,
    ) -> Tensor:
        """Non-negative weights (k,) that minimise the smoothed NLL; given ones stay.

        `start` (k,) are the weights of a similar problem. Rows may have weights (r,).
        """
        return self.weighed([setting], parts[None], labels, start, row_weights)[0].weights

    def weighed(
        self,
        settings: Sequence[SoftmaxSetting],
        parts: Tensor,
        labels: Tensor,
        start: Tensor | None,
        row_weights: Tensor | None,
    ) -> list[WeighedParts]:
        """As `fit` for each setting and its parts (s, k, r, c), with all that the weights give."""
        pairs = zip(settings, parts, strict=True)
        toward = torch.stack([self._toward(setting, one) for setting, one in pairs])
        given = self._given(toward)
        weights = torch.zeros_like(toward)
        for number, value in enumerate(given):
            if value is not None:
                weights[:, number] = value
        numbers = [number for number, value in enumerate(given) if value is None]
        if not numbers:
            return WeighedParts.each(weights, parts, labels, self.frequency)
        offset = self.frequency.expand(len(labels), -1)
        free: list[int] | slice = slice(None)  # a slice makes no copy
        if len(numbers) < len(given):
            free = numbers
            offset = offset + combined(weights, parts)  # free weights are still zero
        pull = (FEW_PULL if self.few else PULL + SMALL_PULL / len(labels)) / len(labels)
        begin = None if start is None else start[free]

        def refit(of: slice, row_weights: Tensor | None, begin: Tensor | None) -> None:
            scales, _ = fit_scales(
                parts[of, free].transpose(0, 1),
                labels,
                offset=offset[of] if offset.dim() > 2 else offset,
                toward=toward[of, free],
                pull=pull,
                row_weights=row_weights,
                start=begin,
            )
            weights[of, free] = scales.to(weights)

        refit(slice(None), row_weights, begin)
        found = WeighedParts.each(weights, parts, labels, self.frequency)
        for place in [] if self.few else range(len(found)):
            one = slice(place, place + 1)
            for _ in range(WEIGHT_ROUNDS - 1):
                noise = found[place].label_noise
                if noise.share < NOISE_MATTERS:
                    break
                right = noise.right if row_weights is None else noise.right * row_weights
                refit(one, right, weights[one, free])
                found[one] = WeighedParts.each(weights[one], parts[one], labels, self.frequency)
        return found

    def _toward(self, setting: SoftmaxSetting, parts: Tensor) -> Tensor:
        """The weights (k,) that those of parts (k, r, c) are pulled to."""
        toward = self.prior(setting, self.shots_left)
        if self.scores:
            # Classes with hardly any scatter have scores in the thousands: a pull to the usual
            # weight would then outweigh the held-out rows.
            usual = float(torch.linalg.vector_norm(parts[1])) / math.sqrt(parts[1].numel())
            toward[1] = min(float(toward[1]), MOST_EXPECTED / max(usual, 1e-30))
        return toward

    def _given(self, toward: Tensor) -> list[float | Tensor | None]:
        """The weights that are not fitted; None for the others. `toward` is (s, k)."""
        settings = self.settings
        given: list[float | Tensor | None] = [_number(settings.alpha)]
        if self.scores:
            discriminant: float | Tensor | None = _number(settings.discriminant)
            if discriminant is not None:
                discriminant = discriminant / degrees_of_freedom(self.shots)
            elif self.few:
                # Models with one shot a class have no scatter: they cannot weigh a discriminant.
                discriminant = toward[:, 1]
            given.append(discriminant)
        if self.shots.zero_shot is not None:
            gain = _number(settings.gain)
            given.append(1.0 if gain is None and self.shots.absent.any() else gain)
        return given


def _number(value: float | Auto) -> float | None:
    return None if isinstance(value, str) else float(value)


def combined(weights: Tensor, parts: Tensor) -> Tensor:
    """Σ_k weights_k · parts_k (..., r, c), of weights (..., k) and parts (..., k, r, c)."""
    *batch, _, r, c = parts.shape
    return (weights.to(parts)[..., None, :] @ parts.flatten(-2)).view(*batch, r, c)


def text_gain(shots: Shots, settings: SearchOptions) -> float:
    """The gain of the text by itself on the shots, which it has not seen; at most one.

    If a class has no shot, the shots cannot show what its text is worth: the gain is then 1.
    """
    if shots.zero_shot is None:
        return 0.0
    if settings.gain != "auto":
        return float(settings.gain)
    if bool(shots.absent.any()) or shots.n_classes < 2:
        return 1.0
    scale, _ = fit_scales(
        shots.zero_shot[None, None], shots.labels, row_weights=shots.sample_weight
    )
    return min(1.0, float(scale))
