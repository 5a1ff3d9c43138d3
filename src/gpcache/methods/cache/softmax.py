"""GPCache with the softmax likelihood: every hyper-parameter chosen on held-out shots.

    logits = alpha · k(x) A + discriminant · linear discriminant(x) + gain · zero_shot(x)

A is the posterior mode of `gpcache.gp.softmax` with the text, as far as it is trusted, as its prior
mean. Folds of the shots (or a validation set) choose the shrinkage of the whitening, β, τ and the
trust in the text; the three weights are fitted on the same rows by Newton's method, each ≥ 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.gp import ExactPrecision, Precision
from gpcache.gp.discriminant import Discriminant
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.kernels import kernel_of
from gpcache.gp.precision import BATCH_ELEMENTS
from gpcache.gp.softmax import SEARCH_TOLERANCE, Coefficients, softmax_map
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.nested import best_without, cross_fitted
from gpcache.methods.cache.search import Auto, Choice
from gpcache.methods.cache.shots import Recipe, Shots
from gpcache.metrics import fit_scales

# All values below were chosen on DTD, Caltech, Pets and UCF101 (ViT-B/32) and the photos of
# caltech20 and trash6, each left out in turn (docs/defaults.md).

# Where the search starts, and what it is pulled to. θ = τ · min(β, 1) is the variance of the prior
# in units that do not depend on β while the kernel is nearly linear.
SHRINKAGE, BETA, THETA = 1.0, 0.5, 3.0
# How far the shrunk scatter follows its own diagonal instead of the identity: the search tries
# each, few shots take the first.
DIAGONALS = (0.5, 0.9, 0.0)
# One and two shots a class cannot choose; weights near one belong to a wide prior. With one shot
# the features are decorrelated instead of whitened, and with text the cache gets a larger weight.
FEW_THETA = 300.0
ONE_SHOT_SHRINKAGE, ONE_SHOT_ALPHA = 3.0, 1.5
# Below this many shots a class (in the mean), held-out folds cannot judge a scatter within classes.
FEW = 3.0
# How much of the fitted gain of the text enters the prior mean: the search tries each.
TRUSTS = (0.7, 0.0)
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
# Labels may be wrong: this number of right labels pulls the share of wrong ones down; rounds of its
# estimate; and the share from which on shots count as much as their label is believed.
NOISE_PRIOR, NOISE_ROUNDS, NOISE_MATTERS = 20.0, 20, 0.02
# Fits of the weights, each believing labels as the one before found.
WEIGHT_ROUNDS = 3
# Nats per squared e-fold of shrinkage, β and θ, divided by the root of the number of held-out rows.
PRIOR = 0.1

STEPS = (math.log(10) / 2, math.log(2), math.log(10) / 2)
FAR_THETAS = (30.0,)
RANGES = ((1e-2, 1e3), (2.0**-5, 2.0**5), (1e-2, 1e4))
# Once this many rows are held out, the search looks at no further fold.
ENOUGH_ROWS = 300
# Settings whose answers are kept, so that each fold can be reported at the others' choice.
KEPT = 4


# Half steps of shrinkage, β and θ from the start; the trust; the diagonal.
Spot = tuple[int, int, int, float, float]


class Setting(NamedTuple):
    """A point of the search.

    `trust` is the share of the text's gain in the prior mean, `diagonal` that of the diagonal in
    the target of the shrinkage.
    """

    shrinkage: float
    beta: float
    theta: float
    trust: float = TRUSTS[0]
    diagonal: float = DIAGONALS[0]

    @property
    def tau(self) -> float:
        """The variance of the prior."""
        return self.theta / min(self.beta, 1.0)


@dataclass(frozen=True)
class Given:
    """What was asked for: a number, or "auto"."""

    alpha: float | Auto = "auto"
    beta: float | Auto = "auto"
    tau: float | Auto = "auto"
    shrinkage: float | Auto = "auto"
    gain: float | Auto = "auto"
    discriminant: float | Auto = "auto"
    by_accuracy: bool = False

    def at(self, setting: Setting) -> Setting:
        """The setting with the given numbers in their places."""
        beta = setting.beta if self.beta == "auto" else float(self.beta)
        theta = setting.theta if self.tau == "auto" else float(self.tau) * min(beta, 1.0)
        shrinkage = setting.shrinkage if self.shrinkage == "auto" else float(self.shrinkage)
        return Setting(shrinkage, beta, theta, setting.trust, setting.diagonal)


class Trusted(NamedTuple):
    """The share of wrong labels, and the probability (r,) of each label to be right."""

    label_noise: float
    rows: Tensor

    @classmethod
    def of(cls, right: Tensor, n_classes: int) -> Trusted:
        """From the probabilities (r,) of the labels, by expectation maximisation.

        A label is what the model says with probability 1 − ε, and any class with probability ε.
        """
        noise = 0.05
        believed = torch.ones_like(right)
        for _ in range(NOISE_ROUNDS):
            clean = (1 - noise) * right
            believed = clean / (clean + noise / n_classes)
            wrong = float((1 - believed).sum())
            noise = (wrong + 1) / (len(right) + 1 + NOISE_PRIOR)
        return cls(noise, believed)

    def losses(self, right: Tensor, n_classes: int) -> Tensor:
        """−log probability (r,) of the labels, some of which may be wrong."""
        return -torch.log((1 - self.label_noise) * right + self.label_noise / n_classes)


@dataclass(frozen=True, eq=False)
class Looked:
    """A setting, the weights fitted at it, and what held-out rows (r,) say of it.

    `parts` (k, r, c) are the components of the logits; dropped for all but the best settings.
    `trusted` says how far the labels of the rows are believed.
    """

    setting: Setting
    weights: Tensor
    nll: float
    accuracy: float
    score: float
    losses: Tensor
    parts: Tensor | None
    trusted: Trusted

    @property
    def logits(self) -> Tensor:
        """(r, c) of the held-out rows."""
        assert self.parts is not None
        return combined(self.weights, self.parts)


def combined(weights: Tensor, parts: Tensor) -> Tensor:
    """Σ_k weights_k · parts_k (r, c)."""
    return torch.einsum("k,krc->rc", weights.to(parts), parts)


class Fold(NamedTuple):
    """Rows to learn from, and rows to be answered about without having been seen.

    `rows` and `held_rows` are the numbers of both among all shots.
    """

    shots: Shots
    held_out: Shots
    rows: Tensor
    held_rows: Tensor


class Folds:
    """What models of each fold's shots say of its held-out rows, at any setting."""

    def __init__(self, recipe: Recipe, folds: Sequence[Fold], gain: float, *, scores: bool) -> None:
        """`gain` is that of the text; `scores` says whether there is a discriminant."""
        self._recipe, self._folds, self._gain, self._scores = recipe, folds, gain, scores
        self._exact = recipe.precision is ExactPrecision
        size = max(len(fold.shots) for fold in folds)
        self._targets = torch.stack([_padded(one_hot(fold.shots), size) for fold in folds])
        texts = [_masked_text(fold.shots) for fold in folds]
        self._text = torch.stack([_padded(text, size) for text in texts])
        self._frequency = torch.stack([class_frequency(fold.shots) for fold in folds])[:, None]
        self.labels = torch.cat([fold.held_out.labels for fold in folds])
        self._spaces: tuple[tuple[float, float], list[_Space]] | None = None
        self._start: Tensor | None = None

    def parts(self, setting: Setting) -> Tensor:
        """Cache, discriminant (if any) and text (if any) of the held-out rows: (k, r, c)."""
        spaces = self._at(setting.shrinkage, setting.diagonal)
        product, rows = self._kernels(spaces, setting.beta)
        last = self._start
        start = None if last is None else Coefficients(last, product(last))
        offset = prior_mean(self._text, setting.trust * self._gain, self._frequency)
        solved = softmax_map(
            product, offset, self._targets, setting.tau, start=start, tolerance=SEARCH_TOLERANCE
        )
        self._start = solved.values
        cache = [
            near(solved.values[i, : len(fold.shots)])
            for i, (fold, near) in enumerate(zip(self._folds, rows, strict=True))
        ]
        parts = [torch.cat(cache)]
        if self._scores:
            parts.append(torch.cat([space.scores for space in spaces]))
        texts = [fold.held_out.zero_shot for fold in self._folds]
        if texts[0] is not None:
            parts.append(torch.cat([text for text in texts if text is not None]))
        # Softmax knows no constant of a row; without it scales mean the same for all parts.
        return torch.stack([part - part.mean(1, keepdim=True) for part in parts])

    def start(self, n: int) -> Tensor:
        """Coefficients (n, c) of all shots to start from: the mean of those of the folds."""
        assert self._start is not None
        total = self._start.new_zeros(n, self._start.shape[-1])
        count = self._start.new_zeros(n, 1)
        for fold, values in zip(self._folds, self._start, strict=True):
            total.index_add_(0, fold.rows, values[: len(fold.rows)])
            count.index_add_(0, fold.rows, torch.ones_like(count[: len(fold.rows)]))
        return total / count.clamp(min=1)

    def _at(self, shrinkage: float, diagonal: float) -> list[_Space]:
        if self._spaces is None or self._spaces[0] != (shrinkage, diagonal):
            self._spaces = None  # the old similarities go before the new ones come
            recipe = self._recipe.at(shrinkage, diagonal)
            found = [_Space(recipe, fold, self._exact) for fold in self._folds]
            self._spaces = ((shrinkage, diagonal), found)
        return self._spaces[1]

    def _kernels(
        self, spaces: Sequence[_Space], beta: float
    ) -> tuple[Callable[[Tensor], Tensor], list[Callable[[Tensor], Tensor]]]:
        """The product of all folds' kernels with (f, n, c), and each fold's answers."""
        if self._exact:
            size = self._targets.shape[1]
            stacked = torch.stack(
                [_padded(kernel_of(s.similarity, beta), size, both=True) for s in spaces]
            )
            crosses = [kernel_of(s.cross, beta) for s in spaces]
            return stacked.matmul, [cross.matmul for cross in crosses]
        precisions = [
            self._recipe.precision(
                self._recipe.plan(fold.shots), space.keys, fold.shots.values, beta=beta, noise=1.0
            )
            for fold, space in zip(self._folds, spaces, strict=True)
        ]

        def product(right: Tensor) -> Tensor:
            found = torch.zeros_like(right)
            for i, one in enumerate(precisions):
                n = len(one.keys)
                found[i, :n] = one.prior_product(right[i, :n])
            return found

        answers: list[Callable[[Tensor], Tensor]] = [
            lambda a, one=one, at=space.queries: one.prior_rows(at) @ one.prior_coefficients(a)  # type: ignore[misc]
            for one, space in zip(precisions, spaces, strict=True)
        ]
        return product, answers


class _Space:
    """One fold in the space of a recipe, fitted without the held-out rows."""

    def __init__(self, recipe: Recipe, fold: Fold, exact: bool) -> None:
        shots, held_out = fold.shots, fold.held_out
        feature_map = recipe.space.fit(shots.features, shots.labels)
        own, asked = feature_map.unscaled(shots.features), feature_map.unscaled(held_out.features)
        self.keys, self.queries = _unit(own), _unit(asked)
        discriminant = Discriminant.of(shots.features, shots.labels, shots.n_classes, feature_map)
        self.scores = discriminant.scores(asked) * degrees_of_freedom(shots)
        if exact:
            self.similarity = self.keys @ self.keys.mT
            self.cross = self.queries @ self.keys.mT


@dataclass(frozen=True, eq=False)
class Chosen:
    """The choice, every setting that was looked at (the best first), and the held-out answers.

    `held_out` is None where no row could be held out. `calibrates` says whether the held-out models
    are near enough to the final one to set its temperature. `reweigh` gives the logits (r, c) of a
    setting with weights that were fitted on some of the rows alone. `start` (n, c) are coefficients
    near those of the model. Where labels seem wrong, `shot_weights` (n,) are the probabilities of
    the labels to be right. `gain` is that of the text by itself.
    """

    choice: Choice
    gain: float = 0.0
    looked: Sequence[Looked] = ()
    held_out: Looked | None = None
    calibrates: bool = False
    reweigh: Callable[[Looked, Tensor], Tensor] | None = None
    start: Tensor | None = None
    shot_weights: Tensor | None = None

    def nested(self, fold: Tensor, labels: Tensor) -> Tensor | None:
        """Probabilities (r, c) of held-out rows, each fold (r,) at the choice of the others."""
        if self.reweigh is None:
            return None
        kept = [one for one in self.looked if one.parts is not None]
        losses = torch.stack([one.losses for one in kept])
        scores = losses.new_tensor([one.score for one in kept])
        chosen = best_without(losses, scores - losses.mean(1), fold)
        reweigh = self.reweigh
        return cross_fitted(lambda i, rows: reweigh(kept[i], rows), chosen, fold, labels)


def choose(
    recipe: Recipe,
    shots: Shots,
    given: Given,
    folds: Sequence[Fold],
    *,
    validated: bool,
    look: Callable[[], None] = lambda: None,
) -> Chosen:
    """Choose every hyper-parameter that was not given on the held-out rows of the folds.

    Without folds what is shipped for one shot a class is taken. `validated` says that the one fold
    is a validation set. `look` is called once for each setting.
    """
    gain = text_gain(shots, given)
    scores = recipe.space.name == "whitened" and given.discriminant != 0 and not shots.absent.any()
    few = not validated and shots.per_class < FEW
    if not folds:
        setting = given.at(Setting(ONE_SHOT_SHRINKAGE, BETA, FEW_THETA))
        weights = prior_weights(shots, setting, gain, scores=scores and not few, shots_left=1.0)
        if shots.zero_shot is not None:
            weights[0] = ONE_SHOT_ALPHA
        return Chosen(_choice(shots, setting, weights, gain, given, None), gain)
    search = _Search(recipe, shots, given, gain, scores, few=few, look=look)
    looked = search.run(folds)
    best = looked[0]
    weights = search.extrapolated(best)
    choice = _choice(shots, best.setting, weights, gain, given, best)
    labels = torch.cat([fold.held_out.labels for fold in folds])

    def reweigh(one: Looked, rows: Tensor) -> Tensor:
        assert one.parts is not None
        return combined(search.weights(one.setting, one.parts[:, rows], labels[rows]), one.parts)

    shot_weights = None
    if not (validated or few) and choice.label_noise >= NOISE_MATTERS:
        shot_weights = best.trusted.rows.new_ones(len(shots))
        shot_weights[torch.cat([fold.held_rows for fold in folds])] = best.trusted.rows
    return Chosen(
        choice, gain, looked, best, validated or not few, reweigh, search.start, shot_weights
    )


class _Search:
    """A walk over settings; see `choose`."""

    def __init__(
        self,
        recipe: Recipe,
        shots: Shots,
        given: Given,
        gain: float,
        scores: bool,
        *,
        few: bool,
        look: Callable[[], None],
    ) -> None:
        self._recipe, self._shots, self._given, self._gain = recipe, shots, given, gain
        self._scores, self._few, self._look = scores, few, look
        #: How frequent each class (c,) is among the shots, as logits.
        self._frequency = class_frequency(shots)
        #: Coefficients (n, c) near those of the chosen model.
        self.start: Tensor | None = None
        #: Shots a class that the models of the folds have.
        self._left = 1.0
        theta = FEW_THETA if few else THETA
        self._start = given.at(Setting(SHRINKAGE, BETA, theta))

    def run(self, folds: Sequence[Fold]) -> list[Looked]:
        """All settings that were looked at, the best first, with the answers of the best few."""
        self._left = sum(fold.shots.per_class for fold in folds) / len(folds)
        enough, some = 0, 0
        while some < len(folds) and enough < ENOUGH_ROWS:
            enough += len(folds[some].held_out)
            some += 1
        part = self._folds(folds[:some])
        has_text = self._shots.zero_shot is not None
        trusts = TRUSTS if has_text and self._gain > 0 else TRUSTS[:1]
        if self._few:
            seen = [self._look_at(part, self._start._replace(trust=trust)) for trust in trusts]
        else:
            seen = self._walk(part, trusts)
        seen.sort(key=lambda one: (one.score, one.nll))
        if some < len(folds):
            # The rest of the rows have no say in the setting, but in the weights.
            part = self._folds(folds)
            seen.insert(0, self._look_at(part, seen[0].setting))
            self.start = part.start(len(self._shots))
            return [seen[0], *(replace(one, parts=None) for one in seen[1:])]
        self.start = part.start(len(self._shots))
        return [*seen[:KEPT], *(replace(one, parts=None) for one in seen[KEPT:])]

    def extrapolated(self, best: Looked) -> Tensor:
        """The weights of a model of all shots, from those of models of a fold's shots."""
        weights = best.weights.clone()
        if self._given.alpha == "auto":  # no other weight depends on the number of shots
            before = self._prior_weights(best.setting, self._left)
            after = self._prior_weights(best.setting, self._shots.per_class)
            weights[0] *= float(after[0] / before[0])
        return weights

    def _folds(self, folds: Sequence[Fold]) -> Folds:
        return Folds(self._recipe, folds, self._gain, scores=self._scores)

    def _prior_weights(self, setting: Setting, shots_left: float) -> Tensor:
        return prior_weights(
            self._shots, setting, self._gain, scores=self._scores, shots_left=shots_left
        )

    def _look_at(self, folds: Folds, setting: Setting) -> Looked:
        """The weights and the score of one setting."""
        self._look()
        parts, labels = folds.parts(setting), folds.labels
        n = len(labels)
        weights = self.weights(setting, parts, labels)
        logits = combined(weights, parts) + self._frequency
        right = at_label(logits, labels)
        trusted = Trusted.of(right, logits.shape[1])
        losses = trusted.losses(right, logits.shape[1])
        hits = logits.argmax(1) == labels
        away = sum(
            math.log(here / there) ** 2
            for here, there in zip(setting[:3], self._start[:3], strict=True)
        )
        nll = float(losses.mean())
        if self._given.by_accuracy:
            losses = (~hits).to(losses)
        score = float(losses.mean()) + PRIOR / math.sqrt(n) * away
        accuracy = float(hits.double().mean())
        return Looked(setting, weights, nll, accuracy, score, losses, parts, trusted)

    def weights(self, setting: Setting, parts: Tensor, labels: Tensor) -> Tensor:
        """Non-negative weights (k,) of the least smoothed NLL; those that were given stay."""
        toward = self._prior_weights(setting, self._left)
        if self._scores:
            # Classes with hardly any scatter have scores in the thousands: a pull to the usual
            # weight would then decide against all that held-out rows say.
            usual = float(parts[1].square().mean().sqrt())
            toward[1] = min(float(toward[1]), MOST_EXPECTED / max(usual, 1e-30))
        pull = (FEW_PULL if self._few else PULL) / len(labels)
        given: list[float | Auto] = [self._given.alpha]
        if self._scores:
            own = self._given.discriminant
            if own != "auto":
                own = float(own) / degrees_of_freedom(self._shots)
            elif self._few:
                # Models with one shot a class have no scatter: they cannot weigh a discriminant.
                own = float(toward[1])
            given.append(own)
        if self._shots.zero_shot is not None:
            asked = self._given.gain
            given.append(1.0 if asked == "auto" and self._shots.absent.any() else asked)
        free = torch.tensor([one == "auto" for one in given])
        weights = torch.tensor([0.0 if one == "auto" else float(one) for one in given])
        weights = weights.to(toward)
        if not bool(free.any()):
            return weights
        offset = self._frequency.expand(len(labels), -1)
        if not bool(free.all()):
            offset = offset + combined(weights[~free], parts[~free])
        believed = None
        for _ in range(WEIGHT_ROUNDS):
            scales, _ = fit_scales(
                parts[free][:, None],
                labels,
                offset=offset,
                toward=toward[free],
                pull=pull,
                row_weights=believed,
            )
            weights[free] = scales[0].to(weights)
            right = at_label(combined(weights, parts) + self._frequency, labels)
            trusted = Trusted.of(right, parts.shape[2])
            if self._few or trusted.label_noise < NOISE_MATTERS:
                break
            believed = trusted.rows
        return weights

    def _walk(self, folds: Folds, trusts: Sequence[float]) -> list[Looked]:
        """Look at several θ, then go downhill in shrinkage, β and θ, by whole and half steps."""
        seen: dict[Spot, Looked] = {}
        start, given = self._start, self._given
        free = (given.shrinkage == "auto", given.beta == "auto", given.tau == "auto")
        free = (free[0] and self._recipe.space.name == "whitened", *free[1:])

        def score(spot: Spot) -> float:
            shrinkage, beta, theta = (
                origin * math.exp(count * step / 2)
                for origin, count, step in zip(start[:3], spot[:3], STEPS, strict=True)
            )
            inside = (
                count == 0 or low <= value <= high
                for count, value, (low, high) in zip(
                    spot[:3], (shrinkage, beta, theta), RANGES, strict=True
                )
            )
            if not all(inside):
                return math.inf
            if spot not in seen:
                setting = given.at(Setting(shrinkage, beta, theta, *spot[3:]))
                seen[spot] = self._look_at(folds, setting)
                self._forget(seen)
            return seen[spot].score

        far = [round(2 * math.log(theta / start.theta) / STEPS[2]) for theta in FAR_THETAS]
        thetas = (0, *far) if free[2] else (0,)
        here: Spot = min(((0, 0, k, TRUSTS[0], DIAGONALS[0]) for k in thetas), key=score)
        here = min(((*here[:3], trust, here[4]) for trust in trusts), key=score)
        if self._recipe.space.name == "whitened":
            here = min(((*here[:4], diagonal) for diagonal in DIAGONALS), key=score)
        ways = [(0, 0, -1), (0, 0, 1), (-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0)]
        ways = [way for way in ways if any(a and b for a, b in zip(way, free, strict=True))]
        for step in (2, 1):
            moved = True
            while moved:
                moved = False
                for way in ways:
                    # As far as it goes down one way, before another way is looked at.
                    while score(spot := _stepped(here, way, step)) < score(here):
                        here, moved = spot, True
        return list(seen.values())

    @staticmethod
    def _forget(seen: dict[Spot, Looked]) -> None:
        """Keep the answers of the best settings alone: they are large."""
        kept = [key for key, one in seen.items() if one.parts is not None]
        if len(kept) > KEPT:
            worst = max(kept, key=lambda key: seen[key].score)
            seen[worst] = replace(seen[worst], parts=None)


def _stepped(spot: Spot, way: tuple[int, int, int], step: int) -> Spot:
    i, j, k = (count + step * one for count, one in zip(spot[:3], way, strict=True))
    return (i, j, k, *spot[3:])


def text_gain(shots: Shots, given: Given) -> float:
    """The gain of the text by itself on the shots, which it has not seen; at most one.

    A class without a shot has its text alone, of which the shots know nothing: the gain is then 1.
    """
    if shots.zero_shot is None:
        return 0.0
    if given.gain != "auto":
        return float(given.gain)
    if bool(shots.absent.any()) or shots.n_classes < 2:
        return 1.0
    scale, _ = fit_scales(shots.zero_shot[None, None], shots.labels)
    return min(1.0, float(scale))


def prior_weights(
    shots: Shots, setting: Setting, gain: float, *, scores: bool, shots_left: float
) -> Tensor:
    """The weights that few rows are pulled to, for models with so many shots a class."""
    has_text = shots.zero_shot is not None
    alpha = ALPHA if has_text else 1 + 1 / shots_left
    exponent = ALPHA_EXPONENT_TEXT if has_text else ALPHA_EXPONENT
    weights = [alpha * (FEW_THETA / setting.theta) ** exponent]
    if scores:
        weights.append(DISCRIMINANT)
    if has_text:
        weights.append(gain)
    return torch.tensor(weights, dtype=torch.float64, device=shots.labels.device)


def _choice(
    shots: Shots,
    setting: Setting,
    weights: Tensor,
    gain: float,
    given: Given,
    best: Looked | None,
) -> Choice:
    """The weights by name, as a model of all shots has them."""
    found = weights.tolist()
    has_text = shots.zero_shot is not None
    alpha, text = found[0], found[-1] if has_text else 1.0
    discriminant = found[1] * degrees_of_freedom(shots) if len(found) - has_text > 1 else 0.0
    # What was given is kept to the last digit.
    if given.alpha != "auto":
        alpha = float(given.alpha)
    if given.gain != "auto":
        text = float(given.gain) if has_text else 1.0
    if given.discriminant != "auto" and discriminant:
        discriminant = float(given.discriminant)
    return Choice(
        beta=setting.beta,
        noise=math.nan,
        alpha=alpha,
        eta=0.0,
        gain=text,
        nll=math.nan if best is None else best.nll,
        accuracy=math.nan if best is None else best.accuracy,
        score=math.nan if best is None else best.score,
        tau=setting.tau,
        shrinkage=setting.shrinkage,
        diagonal=setting.diagonal,
        offset=setting.trust * gain,
        discriminant=discriminant,
        label_noise=0.0 if best is None else best.trusted.label_noise,
    )


def search_table(found: Chosen, choice: Choice) -> dict[str, NDArray[Any]]:
    """Every setting that was looked at, as columns, the choice first.

    `at_edge` says whether a setting lies within a step of the limits of the search.
    """
    if not found.looked:
        names = ("shrinkage", "beta", "tau", "diagonal", "offset", "nll", "accuracy", "score")
        return {name: np.array([getattr(choice, name)]) for name in names}
    rows = found.looked
    edge = [
        any(
            value * math.exp(-step / 2) < low or value * math.exp(step / 2) > high
            for value, step, (low, high) in zip(row.setting[:3], STEPS, RANGES, strict=True)
        )
        for row in rows
    ]
    return {
        "shrinkage": np.array([row.setting.shrinkage for row in rows]),
        "beta": np.array([row.setting.beta for row in rows]),
        "tau": np.array([row.setting.tau for row in rows]),
        "diagonal": np.array([row.setting.diagonal for row in rows]),
        "offset": np.array([row.setting.trust * found.gain for row in rows]),
        "nll": np.array([row.nll for row in rows]),
        "accuracy": np.array([row.accuracy for row in rows]),
        "score": np.array([row.score for row in rows]),
        "at_edge": np.array(edge, dtype=np.float64),
    }


def build(
    recipe: Recipe,
    shots: Shots,
    text: Tensor | None,
    choice: Choice,
    start: Tensor | None = None,
) -> CacheModel:
    """The model of these shots at a choice; the solver may `start` from coefficients (n, c)."""
    space = recipe.at(choice.shrinkage, choice.diagonal).space
    feature_map = space.fit(shots.features, shots.labels)
    precision = recipe.precision(
        recipe.plan(shots),
        feature_map(shots.features),
        shots.values,
        beta=choice.beta,
        noise=choice.noise,
    )
    begin = None
    if start is not None:
        values = start.to(shots.features)
        begin = Coefficients(values, precision.prior_product(values))
    return _solved(CacheModel(feature_map, precision, text, choice), shots, begin)


def updated(
    model: CacheModel,
    precision: Precision,
    shots: Shots,
    rows: Tensor | None,
    columns: Tensor | None,
) -> CacheModel:
    """The model of changed shots at the same choice and feature map, by a warm start.

    `rows` (n,) and `columns` (c,) are the old numbers of shots and classes, −1 for new ones; None
    where all stayed. The optimum is unique: this is the model that a solve from scratch finds.
    """
    assert model.coefficients is not None
    values = model.coefficients
    if columns is not None:
        values = torch.where(columns >= 0, values[:, columns.clamp(min=0)], 0.0)
    if rows is not None:
        known = rows >= 0
        values = torch.where(known[:, None], values[rows.clamp(min=0)], 0.0)
        if isinstance(precision, ExactPrecision):
            precision.prior = _bordered(model.precision.prior, precision, rows)
    elif isinstance(precision, ExactPrecision):
        precision.prior = model.precision.prior
    start = Coefficients(values, precision.prior_product(values))
    return _solved(replace(model, precision=precision), shots, start)


def _bordered(prior: Tensor, precision: Precision, rows: Tensor) -> Tensor:
    """The prior's covariance (n, n) of the keys from that of the old ones, and new rows alone."""
    n, fresh = len(rows), torch.nonzero(rows < 0).flatten()
    known = rows[rows >= 0]
    if len(known) < len(prior):
        prior = prior[known[:, None], known]
    if not len(fresh):
        return prior
    assert bool((fresh >= n - len(fresh)).all()), "new rows come last"
    border = precision.prior_rows(precision.keys[fresh])
    grown = prior.new_empty(n, n)
    grown[: len(prior), : len(prior)] = prior
    grown[fresh], grown[:, fresh] = border, border.mT
    return grown


def _solved(model: CacheModel, shots: Shots, start: Coefficients | None) -> CacheModel:
    """The model with the coefficients and the discriminant of these shots."""
    choice = model.choice
    offset = prior_mean(_masked_text(shots), choice.offset, class_frequency(shots))
    found = softmax_map(
        model.precision.prior_product, offset, believed(shots), choice.tau, start=start
    )
    return replace(model, coefficients=found.values, discriminant=discriminant_of(model, shots))


def discriminant_of(model: CacheModel, shots: Shots) -> Discriminant | None:
    """The discriminant of these shots in the model's space; None where it has no weight."""
    if not model.choice.discriminant:
        return None
    return Discriminant.of(
        shots.features, shots.labels, shots.n_classes, model.feature_map, shots.weights
    )


def held_out_logits(
    recipe: Recipe, folds: Sequence[Fold], text: Tensor | None, choice: Choice
) -> Tensor:
    """Logits (r, c) of the held-out rows at a choice, everything else learned without them."""
    return torch.cat(
        [build(recipe, one.shots, text, choice).logits(one.held_out.features) for one in folds]
    )


def left_out_alone(model: CacheModel, shots: Shots, rows: Tensor) -> Tensor:
    """Logits (k, c) of shots that are the only ones of their class, each left out by itself.

    Without the shot its class has none, and only its text, if any, speaks for it.
    """
    assert model.coefficients is not None
    choice, targets = model.choice, believed(shots)
    offset = prior_mean(_masked_text(shots), choice.offset, class_frequency(shots))
    found = []
    for some in torch.split(rows, max(1, BATCH_ELEMENTS // (8 * targets.numel()))):
        alone = torch.zeros(len(some), len(shots), dtype=torch.bool, device=rows.device)
        alone[torch.arange(len(some)), some] = True
        gone = alone[..., None]
        own = targets[some][:, None, :] > 0
        values = torch.where(gone | own, 0.0, model.coefficients)
        solved = softmax_map(
            model.precision.prior_product,
            torch.where(own, -torch.inf, offset),
            torch.where(gone, 0.0, targets),
            choice.tau,
            start=Coefficients(values, model.precision.prior_product(values)),
        )
        found.append(solved.products[alone])
    features = shots.features[rows]
    logits = model.fused(model.zero_shot(features), torch.cat(found), None)
    scores = model.discriminant_logits(model.feature_map.unscaled(features))
    return logits if scores is None else logits + torch.where(targets[rows] > 0, 0.0, scores)


def one_hot(shots: Shots) -> Tensor:
    """Labels (n, c)."""
    return torch.nn.functional.one_hot(shots.labels, shots.n_classes).to(shots.features)


def believed(shots: Shots) -> Tensor:
    """Labels (n, c), each counting as much as it is believed."""
    targets = one_hot(shots)
    return targets if shots.weights is None else targets * shots.weights[:, None]


def prior_mean(text: Tensor, gain: float, frequency: Tensor) -> Tensor:
    """Logits (..., n, c) before the shots are seen; −inf stays.

    Classes are taken to be equally frequent, however many shots they have: what their number alone
    would make of the likelihood is put into the prior mean, and is no part of the answer.
    """
    return torch.where(text.isinf(), text, text * gain) + frequency


def class_frequency(shots: Shots) -> Tensor:
    """log of the number of shots (c,) relative to the mean; 0 for a class that has none."""
    counts = torch.bincount(shots.labels, minlength=shots.n_classes).to(shots.features)
    mean = counts[counts > 0].mean()
    return torch.where(counts > 0, (counts / mean).clamp(min=1e-6).log(), 0.0)


def at_label(logits: Tensor, labels: Tensor) -> Tensor:
    """Probabilities (r,) that logits (r, c) give to the labels (r,)."""
    return logits.softmax(1).gather(1, labels[:, None])[:, 0]


def degrees_of_freedom(shots: Shots) -> float:
    """Of the scatter within classes: shots less classes that have any, at least one."""
    return float(max(1, len(shots) - len(torch.unique(shots.labels))))


def _masked_text(shots: Shots) -> Tensor:
    """Text logits (n, c), zeros without text; −inf for classes that have no shot.

    Such a class takes no part in the likelihood: that no image of it was given says nothing.
    """
    text = shots.zero_shot if shots.zero_shot is not None else torch.zeros_like(shots.values)
    return text.masked_fill(shots.absent, -torch.inf)


def _padded(rows: Tensor, size: int, *, both: bool = False) -> Tensor:
    """Zeros below (and beside) a matrix, up to `size`."""
    missing = size - len(rows)
    return torch.nn.functional.pad(rows, (0, missing if both else 0, 0, missing))


def _unit(rows: Tensor) -> Tensor:
    return FeatureMap()(rows)
