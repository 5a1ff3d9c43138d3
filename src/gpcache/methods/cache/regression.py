"""The Gaussian likelihood: hyper-parameters chosen on shots that the model has not seen.

What is learned from labels, such as a whitening, is learned again without the held-out rows. So no
choice and no figure depends on rows that the model has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.gp import ExactPrecision, Precision
from gpcache.gp.sweep import Sweep, SweepPoint
from gpcache.gp.whitened_products import Differences, LabelledRows
from gpcache.methods.cache.held_out import (
    HeldOutLogits,
    best_without,
    cross_fitted,
    folds_protocol,
    report_folds,
)
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.recipe import Recipe, Task
from gpcache.methods.cache.search import (
    COLUMNS,
    CacheOutputs,
    Choice,
    SearchOptions,
    search,
    shipped,
    weigh,
)
from gpcache.methods.cache.shots import Shots
from gpcache.metrics import Calibration, fit_calibration
from gpcache.support.devices import free_memory
from gpcache.support.progress import progress_bar
from gpcache.support.threads import take_free_cores

LEAVE_ONE_OUT = "leave-one-out"
# Up to this number of shots, novelty is computed again after every change.
FEW = 200


def build(recipe: Recipe, shots: Shots, text: Tensor | None, choice: Choice) -> CacheModel:
    """The model of these shots at a choice."""
    feature_map = recipe.feature_map(shots)
    keys = feature_map(shots.features)
    return CacheModel(feature_map, recipe.condition(shots, keys, choice), text, choice)


class HeldOutPart:
    """A model of shots, and the rows that it is asked about.

    Without such rows, the shots are left out one by one, where their class has another shot.
    """

    def __init__(
        self,
        recipe: Recipe,
        shots: Shots,
        asked: Shots | None = None,
        *,
        trained: CacheModel | None = None,
        siblings: int = 1,
    ) -> None:
        """Map and keys are those of a `trained` model, if there is one.

        `siblings` is how many parts there will be, which share the memory.
        """
        self._shots, self._asked = shots, shots if asked is None else asked
        self._rows: slice | Tensor = slice(None)
        if trained is None:
            feature_map = recipe.feature_map(shots)
            self._keys = feature_map(shots.features)
        else:
            feature_map, self._keys = trained.feature_map, trained.precision.keys
        self._queries = None
        if asked is not None:
            self._queries = feature_map(asked.features)
        else:
            self._rows = torch.nonzero(shots.with_company()).flatten()
            self._asked = shots[self._rows]
        self._precision = recipe.precision
        self._plan = recipe.plan(shots)
        # The exact posterior is what default fits sweep: similarities are computed once.
        self._sweep = None
        if recipe.precision is ExactPrecision:
            self._sweep = Sweep(self._keys, self._queries, keep=self._fits(siblings))

    def _fits(self, siblings: int) -> bool:
        """Whether the similarities of all parts take no more than a quarter of the free memory."""
        n = len(self._keys) + (0 if self._queries is None else len(self._queries))
        required = siblings * len(self._keys) * n * self._keys.element_size()
        return required <= free_memory(self._keys.device) // 4

    def at(
        self, beta: float, noises: Sequence[float], gain: float, *, with_variance: bool
    ) -> list[CacheOutputs]:
        """The outputs for each noise; the variance is (m, c) or (m, 1)."""
        values = self._shots.at_gain(gain).values
        if self._sweep is not None:
            points = self._sweep.at(values, beta, noises, with_variance=with_variance)
        else:
            points = [self._one(values, beta, noise) for noise in noises]
        outputs = []
        for mean, variance, likelihood in points:
            variance = variance[self._rows] if variance is not None and with_variance else None
            text, labels = self._asked.zero_shot, self._asked.labels
            outputs.append(CacheOutputs(mean[self._rows], variance, text, labels, likelihood))
        return outputs

    def _one(self, values: Tensor, beta: float, noise: float) -> SweepPoint:
        precision = self._precision(self._plan, self._keys, values, beta=beta, noise=noise)
        if self._queries is None:
            mean, variance = precision.leave_one_out()
        else:
            mean, variance = precision.posterior(self._queries)
        likelihood = (
            float(precision.log_marginal_likelihood()) if precision.uses_noise else float("nan")
        )
        return SweepPoint(mean, precision.variance_of_classes(variance), likelihood)


class HeldOutModels:
    """Outputs for held-out rows from models of the other shots, at any (β, noise, gain)."""

    def __init__(
        self, parts: Sequence[HeldOutPart], rows: Tensor, *, with_variance: bool, protocol: str
    ) -> None:
        """The parts together answer about the shots `rows`, in that order; `protocol` says how."""
        self._parts, self._with_variance = parts, with_variance
        self.rows, self.protocol = rows, protocol
        self._last: tuple[tuple[float, Sequence[float], float], list[CacheOutputs]] | None = None

    @classmethod
    def of(
        cls, recipe: Recipe, shots: Shots, *, with_variance: bool, coarse: bool = False
    ) -> HeldOutModels:
        """The shots left out one by one, or in folds in which everything is learned again."""
        if recipe.uses_loo:
            rows = torch.nonzero(shots.with_company()).flatten()
            parts, protocol = [HeldOutPart(recipe, shots)], LEAVE_ONE_OUT
        else:
            folds = recipe.folds(shots, recipe.n_folds // 2 if coarse else None)
            parts = [
                HeldOutPart(recipe, shots[train], shots[held], siblings=len(folds))
                for train, held in folds
            ]
            rows = torch.cat([held for _, held in folds])
            protocol = folds_protocol(len(folds))
        return cls(parts, rows, with_variance=with_variance, protocol=protocol)

    def __call__(self, beta: float, noises: Sequence[float], gain: float) -> list[CacheOutputs]:
        """One answer for each noise. The last ones are kept: a report asks for them again."""
        place = (beta, noises, gain)
        if self._last is None or self._last[0] != place:
            answers = [part.at(*place, with_variance=self._with_variance) for part in self._parts]
            together = [CacheOutputs.together(parts) for parts in zip(*answers, strict=True)]
            self._last = (place, together)
        return self._last[1]

    def at(self, choice: Choice) -> CacheOutputs:
        """The answers at a choice."""
        return self(choice.beta, [choice.noise], choice.gain)[0]


@dataclass(frozen=True, eq=False)
class RegressionSearch:
    """Every choice that was tried, the best first, and the held-out models of the shots, if any.

    `compared` are the choices with losses of the same shots, those of the numbers `rows`.
    """

    seen: Sequence[Choice]
    settings: SearchOptions
    models: HeldOutModels | None = None
    compared: Sequence[Choice] = ()
    rows: Tensor | None = None

    @property
    def choice(self) -> Choice:
        """The choice itself."""
        return replace(self.seen[0], losses=None)

    def nested(self, shots: Shots, seed: int) -> Tensor | None:
        """Probabilities (k, c) of the held-out rows, all chosen on the other folds.

        Each fold gets the setting that is best on the rows of the other folds. Its weights are
        fitted on those rows, too.
        """
        models, compared = self.models, self.compared
        if models is None or self.rows is None:
            return None

        def logits_at(setting: int, other_rows: Tensor) -> Tensor:
            held_out = models.at(compared[setting])
            place = compared[setting].place
            return held_out.logits(weigh(held_out.rows(other_rows), self.settings, place))

        known = torch.stack([one.losses for one in compared if one.losses is not None])
        losses = known.new_zeros(len(compared), len(shots))
        losses[:, self.rows] = known
        penalties = known.new_tensor([one.score for one in compared]) - known.mean(1)
        fold = report_folds(shots, models.rows, seed)
        chosen = best_without(losses[:, models.rows], penalties, fold)
        return cross_fitted(logits_at, chosen, fold, shots.labels[models.rows])


def choose(task: Task) -> RegressionSearch:
    """Choose what is "auto" on unseen rows; take the defaults if there are none."""
    recipe, shots, validation = task.recipe, task.shots, task.validation
    with_text = shots.zero_shot is not None
    settings = restricted(task.settings, shots)
    all_given = settings.all_given(uses_noise=recipe.precision.uses_noise, with_text=with_text)
    if all_given or (validation is None and not shots.can_be_held_out):
        return RegressionSearch([shipped(settings, with_text=with_text)], settings)
    if validation is not None:
        return RegressionSearch(search_on(validation, task), settings)
    with_variance = settings.eta != 0.0
    models = HeldOutModels.of(recipe, shots, with_variance=with_variance, coarse=True)
    tried = compared = _searched(models, task, settings, shots=shots.per_class)
    rows = models.rows
    if not recipe.uses_loo:
        # Few folds are enough to choose β and noise. The weight of the cache needs many
        # folds: their models have nearly as many shots as the final one.
        models = HeldOutModels.of(recipe, shots, with_variance=with_variance)
        best = tried[0]
        fixed = replace(settings, beta=best.beta, noise=best.noise)
        if settings.residual:
            fixed = replace(fixed, gain=best.gain)
        tried = _searched(models, task, fixed, shots=shots.per_class) + tried
    return RegressionSearch(tried, settings, models, compared, rows)


def search_on(validation: Shots, task: Task, trained: CacheModel | None = None) -> list[Choice]:
    """Settings that were tried on a validation set, the best first.

    For a `trained` model they are chosen with its map, keys and text.
    """
    if trained is not None:
        validation = replace(validation, zero_shot=trained.zero_shot(validation.features))
    part = HeldOutPart(task.recipe, task.shots, validation, trained=trained)
    rows = torch.arange(len(validation), device=validation.labels.device)
    with_variance = task.settings.eta != 0.0
    models = HeldOutModels([part], rows, with_variance=with_variance, protocol="validation set")
    return _searched(models, task, restricted(task.settings, task.shots), shots=np.inf)


def restricted(settings: SearchOptions, shots: Shots) -> SearchOptions:
    """The settings that held-out rows may choose: not the gain, if classes have no shots."""
    known = 0 if shots.zero_shot is None else shots.n_classes
    if settings.gain == "auto" and len(torch.unique(shots.labels)) != known:
        return replace(settings, gain=1.0)
    return settings


def _searched(
    models: HeldOutModels, task: Task, settings: SearchOptions, *, shots: float
) -> list[Choice]:
    with progress_bar(f"{task.name}: choosing", unit="setting") as bar:

        def evaluate(beta: float, noises: Sequence[float], gain: float) -> list[CacheOutputs]:
            take_free_cores()
            outputs = models(beta, noises, gain)
            bar.update(len(noises))
            return outputs

        return search(evaluate, settings, shots=shots, uses_noise=task.recipe.precision.uses_noise)


def search_table(seen: Sequence[Choice]) -> dict[str, NDArray[Any]]:
    """Every setting that was tried, as columns, the choice first."""
    return {name: np.array([getattr(one, name) for one in seen]) for name in COLUMNS}


def held_out_logits(
    recipe: Recipe, shots: Shots, choice: Choice, models: HeldOutModels | None = None
) -> HeldOutLogits:
    """Logits of held-out rows at a choice, with keys that are the shots themselves."""
    if not bool(shots.with_company().any()):
        return HeldOutLogits.none(shots, "no class has two shots")
    models = models or HeldOutModels.of(recipe, shots, with_variance=choice.eta != 0)
    return HeldOutLogits(models.at(choice).logits(choice), models.rows, models.protocol)


def held_out_calibration(
    task: Task, choice: Choice, models: HeldOutModels | None
) -> tuple[HeldOutLogits, Calibration]:
    """Logits of held-out shots at a choice, and the calibration that they give."""
    shots = task.shots.at_gain(choice.gain)
    held = held_out_logits(task.recipe, shots, choice, models)
    if shots.can_be_held_out:
        return held, fit_calibration(held.logits, shots.labels[held.rows])
    return held, Calibration(slope=task.settings.shipped_slope(task.text is not None))


def held_out_variance(recipe: Recipe, shots: Shots, choice: Choice) -> NDArray[np.float64]:
    """Held-out variance (n,) of each shot; NaN if it cannot be held out.

    With groups of classes, it is that of the nearest group. The model of a fold has fewer shots
    than the final one, and a higher variance at every row. The variance with all shots is
    extrapolated from models that lack two folds of m, as a + b / shots.
    """
    by_shot = np.full(len(shots), np.nan)
    if not (shots.can_be_held_out and recipe.precision.uses_noise):
        return by_shot
    if recipe.uses_loo:
        models = HeldOutModels.of(recipe, shots, with_variance=True)
        variance = models.at(choice).variance
        assert variance is not None
        by_shot[models.rows.cpu().numpy()] = least_variance(variance)
        return by_shot
    folds = recipe.folds(shots)
    for k, (train, held) in enumerate(folds):
        rows = held.cpu().numpy()
        by_shot[rows] = lacking_one = _variance_without(recipe, shots, choice, train, held)
        if len(folds) > 2:
            fewer = train[~torch.isin(train, folds[k - 1][1])]
            lacking_two = _variance_without(recipe, shots, choice, fewer, held)
            expected = lacking_one - (1 - 2 / len(folds)) * (lacking_two - lacking_one)
            by_shot[rows] = expected.clip(0, lacking_one)
    return by_shot


def _variance_without(
    recipe: Recipe, shots: Shots, choice: Choice, train: Tensor, held: Tensor
) -> NDArray[np.float64]:
    """The variance of held-out rows, from a model of the training rows only."""
    known, queries, space = shots[train], shots.features[held], recipe.space
    if recipe.precision is ExactPrecision:
        rows = LabelledRows(known.features, known.labels, queries, known.sample_weight)
        differences = Differences.of(space, [rows], known.n_classes)
        if differences is not None:
            similar = differences.products(space.diagonal).at(space.shrinkage, queries.dtype)
            return least_variance(similar.variance(choice.beta, choice.noise).mT)
    feature_map = recipe.feature_map(known)
    precision = recipe.condition(known, feature_map(known.features), choice)
    return least_variance(precision.variance(feature_map(queries)))


def least_variance(variance: Tensor) -> NDArray[np.float64]:
    """The least variance over groups or classes: (m, g) → (m,)."""
    return variance.amin(1).double().cpu().numpy()


@dataclass(frozen=True, eq=False)
class NoveltyBefore:
    """The novelty of a model before its shots changed, and its posterior then.

    Held-out novelty fits the feature space again for every fold, which takes seconds where shots
    are many. A few changed shots hardly change the space, but a copy of a shot makes that shot far
    less novel. So novelty is multiplied by what the change does to the leave-one-out variance in
    the space of the model. A shot that came later had no part in that space: its variance there
    is its novelty.
    """

    recipe: Recipe
    shots: Shots
    keys: Tensor
    choice: Choice
    known: NDArray[np.float64] | None

    def after(self, precision: Precision, shots: Shots, rows: Tensor) -> NDArray[np.float64]:
        """The novelty of shots that were these rows (n,), −1 if new; NaN if alone in a class."""
        novelty = least_variance(precision.leave_one_out().variance)
        is_old = (rows >= 0).cpu().numpy()
        novelty[is_old] *= self._share[rows[rows >= 0].cpu().numpy()]
        novelty[~shots.with_company().cpu().numpy()] = np.nan
        return novelty.clip(0, 1)

    @cached_property
    def _share(self) -> NDArray[np.float64]:
        """Held-out novelty (n,) by the leave-one-out variance; 1 where it is unknown."""
        held_out = self.known
        if held_out is None:
            held_out = held_out_variance(self.recipe, self.shots, self.choice)
        own = self.recipe.condition(self.shots, self.keys, self.choice).leave_one_out()
        return np.nan_to_num(held_out / least_variance(own.variance), nan=1.0)
