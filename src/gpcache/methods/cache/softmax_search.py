"""Every hyper-parameter of the softmax likelihood, chosen on held-out shots.

Folds of the shots (or a validation set) choose the shrinkage of the whitening, β, τ and the trust
in the text; the weights of cache, discriminant and text are fitted on the same rows by Newton's
method, each ≥ 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.errors import NumericalError
from gpcache.methods.cache.held_out import (
    HeldOutLogits,
    best_without,
    cross_fitted,
    folds_protocol,
    report_folds,
)
from gpcache.methods.cache.lattice import Lattice
from gpcache.methods.cache.recipe import Recipe
from gpcache.methods.cache.search import Choice, SearchOptions
from gpcache.methods.cache.shots import LabelWeights, Shots
from gpcache.methods.cache.softmax import degrees_of_freedom
from gpcache.methods.cache.softmax_folds import Fold, Folds, SoftmaxSetting
from gpcache.methods.cache.softmax_weights import (
    CALIBRATION_PULL,
    FEW_THETA,
    NOISE_MATTERS,
    LabelNoise,
    WeightFit,
    combined,
    text_gain,
)
from gpcache.support.progress import progress_bar
from gpcache.support.threads import take_free_cores

# Chosen on DTD, Caltech, Pets and UCF101 (ViT-B/32) and the photos of caltech20 and trash6;
# docs/results/headline.md leaves each set out in turn, for the values listed there.

# The start of the search, to which it is also pulled. θ = τ · min(β, 1) is the variance of the
# prior in units that do not depend on β while the kernel is nearly linear.
SHRINKAGE, BETA, THETA = 1.0, 0.5, 3.0
# How far the shrunk scatter follows its own diagonal instead of the identity: the search tries
# each, few shots take the first.
DIAGONALS = (0.5, 0.9, 0.0)
# With one shot a class the features are decorrelated instead of whitened, and with text the cache
# gets a larger weight: not beside classes of text alone, which it would crowd out.
ONE_SHOT_SHRINKAGE, ONE_SHOT_ALPHA, ONE_SHOT_ALPHA_ABSENT = 10.0, 1.5, 1.0
# With fewer shots a class (in the mean), held-out folds cannot measure a scatter within classes.
FEW = 3.0
# How much of the fitted gain of the text enters the prior mean: the search tries each. One shot a
# class takes the first; two, which choose nothing else, also try all of the gain.
TRUSTS = (0.7, 0.35, 0.15, 0.0)
FEW_TRUSTS = (1.0, *TRUSTS)
# Nats per squared e-fold of shrinkage, β and θ, divided by the root of the number of held-out rows.
PRIOR = 0.1
# Noise of the variance that measures novelty.
NOVELTY_NOISE = 1.0

STEPS = (math.log(10) / 2, math.log(2), math.log(10) / 2)
FAR_THETAS = (30.0,)
RANGES = ((1e-2, 1e3), (2.0**-5, 2.0**5), (1e-2, 1e4))
# Once this many rows are held out, the search uses no further fold.
ENOUGH_ROWS = 300
# Settings whose answers are kept, so that each fold can be reported at the others' choice.
KEPT = 4

TYPICAL = 20  # settings that a walk looks at, which a progress bar expects
# Half steps of shrinkage, β and θ from the start; the trust; the diagonal.
Spot = tuple[int, int, int, float, float]


@dataclass(frozen=True, eq=False)
class TriedSetting:
    """A setting, the weights fitted at it, and its figures on held-out rows (r,).

    `parts` (k, r, c) are the components of the logits; dropped for all but the best settings.
    `label_noise` estimates which labels of the rows are wrong.
    """

    setting: SoftmaxSetting
    weights: Tensor
    nll: float
    accuracy: float
    score: float
    losses: Tensor
    parts: Tensor | None
    label_noise: LabelNoise

    @property
    def logits(self) -> Tensor:
        """(r, c) of the held-out rows."""
        assert self.parts is not None
        return combined(self.weights, self.parts)


@dataclass(frozen=True, eq=False)
class SoftmaxSearch:
    """The choice, the table of settings that were tried, and the held-out logits.

    `held_out` is None if no row could be held out. `nested` are the held-out probabilities; each
    fold uses the choice of the other folds. `calibrates` says whether the held-out models are
    close enough to the final one to set its temperature. `start` (n, c) are coefficients close to
    those of the model. If labels seem wrong, `shot_weights` (n,) are their probabilities of being
    right.
    """

    choice: Choice
    search: dict[str, NDArray[Any]]
    held_out: HeldOutLogits | None = None
    nested: Tensor | None = None
    calibrates: bool = False
    start: Tensor | None = None
    shot_weights: Tensor | None = None

    def with_label_weights(self, shots: Shots) -> Shots:
        """The shots, weighted by the probability that their label is right."""
        if self.shot_weights is None:
            return shots
        label_weights = LabelWeights(self.shot_weights.to(shots.features), shots.labels)
        return replace(shots, label_weights=label_weights)


def choose(
    recipe: Recipe, shots: Shots, settings: SearchOptions, validation: Shots | None, *, name: str
) -> SoftmaxSearch:
    """Choose every hyper-parameter that was not given, on held-out shots or on a validation set.

    Without both, the default values for one shot a class are taken. The search runs in float32;
    the model itself is solved in the requested dtype.
    """
    recipe = recipe.to(torch.float32, given=shots.features.dtype)
    shots = shots.to(torch.float32)
    everything = torch.arange(len(shots), device=shots.labels.device)
    folds: list[Fold] = []
    if validation is not None:
        folds = [Fold(shots, validation.to(torch.float32), everything, everything[:0])]
    elif shots.can_be_held_out:
        pairs = recipe.folds(shots, recipe.n_folds // 2)
        folds = [Fold(shots[train], shots[held], train, held) for train, held in pairs]
    few = validation is None and shots.per_class < FEW
    whitened = recipe.space.name == "whitened"
    scores = whitened and settings.discriminant != 0 and not bool(shots.absent.any())
    shots_left = sum(fold.shots.per_class for fold in folds) / len(folds) if folds else 1.0
    fit = WeightFit(shots, settings, text_gain(shots, settings), scores, few, shots_left)
    if not folds:
        return _one_shot(replace(fit, scores=scores and not few))
    bars = progress_bar(f"{name}: choosing", total=TYPICAL, unit="setting")
    with bars as bar, torch.inference_mode():  # which saves a tenth of a small fit
        search = _Search(recipe, fit, look=bar.update)
        tried = search.run(folds)
    assert search.start is not None
    best, start = tried[0], search.start.clone()
    choice = _choice(fit, best.setting, search.extrapolated(best), best)
    table = _search_table(tried, fit.gain)
    if validation is not None:
        held_out = HeldOutLogits(best.logits, everything[:0], "validation set")
        return SoftmaxSearch(choice, table, held_out, calibrates=True, start=start)
    rows = torch.cat([fold.held_rows for fold in folds])
    shot_weights = None
    if not few and choice.label_noise >= NOISE_MATTERS:
        shot_weights = best.label_noise.right.new_ones(len(shots))
        shot_weights[rows] = best.label_noise.right
    with torch.inference_mode():
        nested = _nested(tried, fit, shots[rows], report_folds(shots, rows, recipe.seed))
    return SoftmaxSearch(
        choice,
        table,
        HeldOutLogits(best.logits, rows, folds_protocol(len(folds))),
        nested.clone(),
        not few,
        start,
        shot_weights,
    )


def _one_shot(fit: WeightFit) -> SoftmaxSearch:
    """The default values for one shot a class."""
    start = SoftmaxSetting(ONE_SHOT_SHRINKAGE, BETA, FEW_THETA, TRUSTS[0], DIAGONALS[0])
    setting = _given(fit.settings, start)
    weights = fit.prior(setting, 1.0)
    if fit.shots.zero_shot is not None:
        weights[0] = ONE_SHOT_ALPHA_ABSENT if bool(fit.shots.absent.any()) else ONE_SHOT_ALPHA
    choice = _choice(fit, setting, weights, None)
    names = ("shrinkage", "beta", "tau", "diagonal", "offset", "nll", "accuracy", "score")
    return SoftmaxSearch(choice, {name: np.array([getattr(choice, name)]) for name in names})


def _nested(tried: Sequence[TriedSetting], fit: WeightFit, held: Shots, fold: Tensor) -> Tensor:
    """Probabilities (r, c) of held-out rows, each fold (r,) at the choice of the others."""
    labels, row_weights = held.labels, held.sample_weight
    kept = [one for one in tried if one.parts is not None]
    losses = torch.stack([one.losses for one in kept])
    scores = losses.new_tensor([one.score for one in kept])
    chosen = best_without(losses, scores - losses.mean(1), fold)

    def logits_at(number: int, rows: Tensor) -> Tensor:
        best = kept[number]
        assert best.parts is not None
        weights = fit.fit(
            best.setting,
            best.parts[:, rows],
            labels[rows],
            start=best.weights,
            row_weights=None if row_weights is None else row_weights[rows],
        )
        return combined(weights, best.parts)

    return cross_fitted(logits_at, chosen, fold, labels, CALIBRATION_PULL / len(labels))


def _given(settings: SearchOptions, setting: SoftmaxSetting) -> SoftmaxSetting:
    """The setting with the hyper-parameters that the user gave."""
    beta = setting.beta if settings.beta == "auto" else float(settings.beta)
    theta = setting.theta if settings.tau == "auto" else float(settings.tau) * min(beta, 1.0)
    shrinkage = setting.shrinkage if settings.shrinkage == "auto" else float(settings.shrinkage)
    return setting._replace(shrinkage=shrinkage, beta=beta, theta=theta)


class _Search:
    """A coordinate search over settings; see `choose`."""

    def __init__(self, recipe: Recipe, fit: WeightFit, *, look: Callable[[], None]) -> None:
        """`look` is called once for each setting."""
        self._recipe, self._fit, self._look = recipe, fit, look
        #: Coefficients (n, c) near those of the chosen model.
        self.start: Tensor | None = None
        self._weights: Tensor | None = None  # of the setting that was looked at last
        theta = FEW_THETA if fit.few else THETA
        start = SoftmaxSetting(SHRINKAGE, BETA, theta, TRUSTS[0], DIAGONALS[0])
        self._start = _given(fit.settings, start)

    def run(self, folds: Sequence[Fold]) -> list[TriedSetting]:
        """All settings that were tried, the best first, with the answers of the best few."""
        n_rows, n_folds = 0, 0
        while n_folds < len(folds) and n_rows < ENOUGH_ROWS:
            n_rows += len(folds[n_folds].held_out)
            n_folds += 1
        part = self._folds(folds[:n_folds])
        trusts: tuple[float, ...] = FEW_TRUSTS if self._fit.few else TRUSTS
        if self._fit.shots.zero_shot is None or self._fit.gain == 0:
            trusts = TRUSTS[:1]
        if self._fit.few:
            tried = self._try(part, [self._start._replace(trust=trust) for trust in trusts])
        else:
            tried = self._walk(part, trusts)
        tried.sort(key=lambda one: (one.score, one.nll))
        if n_folds < len(folds):
            # The other rows do not choose the setting, but the weights are fitted on them too.
            part = self._folds(folds)
            tried = [*self._try(part, [tried[0].setting]), *tried]
            self.start = part.start(len(self._fit.shots))
            return [tried[0], *(replace(one, parts=None) for one in tried[1:])]
        self.start = part.start(len(self._fit.shots))
        return [*tried[:KEPT], *(replace(one, parts=None) for one in tried[KEPT:])]

    def extrapolated(self, best: TriedSetting) -> Tensor:
        """The weights for a model of all shots, from those of models of a fold's shots."""
        weights = best.weights.clone()
        if self._fit.settings.alpha == "auto":  # no other weight depends on the number of shots
            before = self._fit.prior(best.setting, self._fit.shots_left)
            after = self._fit.prior(best.setting, self._fit.shots.per_class)
            weights[0] *= float(after[0] / before[0])
        return weights

    def _folds(self, folds: Sequence[Fold]) -> Folds:
        return Folds(self._recipe, folds, self._fit.gain, scores=self._fit.scores)

    def _try(self, folds: Folds, settings: Sequence[SoftmaxSetting]) -> list[TriedSetting]:
        """The weights and the scores of settings: all at once where that saves time."""
        if len(settings) > 1 and not folds.is_small:
            return [one for setting in settings for one in self._try(folds, [setting])]
        take_free_cores()
        parts, labels = folds.parts(settings), folds.labels
        found = self._fit.weighed(settings, parts, labels, self._weights, folds.row_weights)
        self._weights = found[-1].weights
        tried = []
        for setting, own, weighed in zip(settings, parts, found, strict=True):
            self._look()
            weights, logits, right, label_noise = weighed
            losses = label_noise.losses(right, logits.shape[1])
            hits = logits.argmax(1) == labels
            nll = float(losses.mean())
            if self._fit.settings.criterion == "accuracy":
                losses = (~hits).to(losses)
            if folds.row_weights is not None:  # so that a mean of losses weights the rows
                losses = losses * (folds.row_weights / folds.row_weights.mean())
            away = sum(
                math.log(here / there) ** 2
                for here, there in zip(setting[:3], self._start[:3], strict=True)
            )
            score = float(losses.mean()) + PRIOR / math.sqrt(len(labels)) * away
            accuracy = float(hits.double().mean())
            tried.append(
                TriedSetting(setting, weights, nll, accuracy, score, losses, own, label_noise)
            )
        return tried

    def _walk(self, folds: Folds, trusts: Sequence[float]) -> list[TriedSetting]:
        """Try several θ, then descend in shrinkage, β and θ, by whole and half steps."""
        start, settings = self._start, self._fit.settings
        whitened = self._recipe.space.name == "whitened"
        free = (
            whitened and settings.shrinkage == "auto",
            settings.beta == "auto",
            settings.tau == "auto",
        )
        lattice = Lattice(start[:3], STEPS, RANGES, free)
        tried: dict[Spot, TriedSetting] = {}
        ready: dict[Spot, TriedSetting] = {}  # looked at ahead: they count where they are asked for

        def look_at(spots: Sequence[Spot]) -> None:
            points = {spot: lattice.point(spot[:3]) for spot in spots if spot not in ready}
            asked = {
                spot: _given(settings, SoftmaxSetting(*point, *spot[3:]))
                for spot, point in points.items()
                if point is not None
            }
            if asked:
                ready.update(zip(asked, self._try(folds, list(asked.values())), strict=True))

        def score(spot: Spot) -> float:
            if spot not in tried:
                look_at([spot])
                if spot not in ready:
                    return math.inf
                tried[spot] = ready.pop(spot)
                self._forget(tried)
            return tried[spot].score

        def look_ahead(spots: Sequence[Spot]) -> None:
            if folds.is_small:
                with suppress(NumericalError):  # of a spot that may never be asked for
                    look_at([spot for spot in spots if spot not in tried])

        def best(spots: list[Spot]) -> Spot:
            look_ahead(spots)
            return min(spots, key=score)

        far_steps = [round(2 * math.log(theta / start.theta) / STEPS[2]) for theta in FAR_THETAS]
        thetas = (0, *far_steps) if free[2] else (0,)
        here = best([(0, 0, k, TRUSTS[0], DIAGONALS[0]) for k in thetas])
        here = best([(*here[:3], trust, here[4]) for trust in trusts])
        if whitened:
            here = best([(*here[:4], diagonal) for diagonal in DIAGONALS])
        rest = here[3:]
        directions = [(0, 0, -1), (0, 0, 1), (-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0)]
        lattice.descend(
            lambda steps: score((*steps, *rest)),
            here[:3],
            directions,
            lambda near: look_ahead([(*steps, *rest) for steps in near]),
        )
        return list(tried.values())

    @staticmethod
    def _forget(tried: dict[Spot, TriedSetting]) -> None:
        """Keep the large answers of the best settings only, of equal ones the first: see `run`."""
        kept = [key for key, one in tried.items() if one.parts is not None]
        while len(kept) > KEPT:
            worst = max(reversed(kept), key=lambda key: (tried[key].score, tried[key].nll))
            tried[worst] = replace(tried[worst], parts=None)
            kept.remove(worst)


def _choice(
    fit: WeightFit, setting: SoftmaxSetting, weights: Tensor, best: TriedSetting | None
) -> Choice:
    """The choice for a model of all shots."""
    shots, settings = fit.shots, fit.settings
    values = weights.tolist()
    has_text = shots.zero_shot is not None
    alpha, text = values[0], values[-1] if has_text else 1.0
    discriminant = values[1] * degrees_of_freedom(shots) if len(values) - has_text > 1 else 0.0
    # Given values are kept to the last digit.
    if settings.alpha != "auto":
        alpha = float(settings.alpha)
    if settings.gain != "auto":
        text = float(settings.gain) if has_text else 1.0
    if settings.discriminant != "auto" and discriminant:
        discriminant = float(settings.discriminant)
    return Choice(
        beta=setting.beta,
        noise=NOVELTY_NOISE if settings.noise == "auto" else float(settings.noise),
        alpha=alpha,
        eta=0.0,
        gain=text,
        nll=math.nan if best is None else best.nll,
        accuracy=math.nan if best is None else best.accuracy,
        score=math.nan if best is None else best.score,
        tau=setting.tau,
        shrinkage=setting.shrinkage,
        diagonal=setting.diagonal,
        offset=setting.trust * fit.gain,
        discriminant=discriminant,
        label_noise=0.0 if best is None else best.label_noise.share,
    )


def _search_table(tried: Sequence[TriedSetting], gain: float) -> dict[str, NDArray[Any]]:
    """Every setting that was tried, as columns, the choice first.

    `at_edge` says whether a setting lies within a step of the limits of the search.
    """
    rows = []
    for candidate in tried:
        setting = candidate.setting
        edge = any(
            value * math.exp(-step / 2) < low or value * math.exp(step / 2) > high
            for value, step, (low, high) in zip(setting[:3], STEPS, RANGES, strict=True)
        )
        own = {name: getattr(setting, name) for name in ("shrinkage", "beta", "tau", "diagonal")}
        figures = {name: getattr(candidate, name) for name in ("nll", "accuracy", "score")}
        rows.append({**own, "offset": setting.trust * gain, **figures, "at_edge": float(edge)})
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
