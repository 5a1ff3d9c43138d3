"""What a cache estimator keeps: shots, recipe, model, calibration and held-out figures.

`fit` chooses hyper-parameters, builds or trains the model, and calibrates it. `added`, `removed`,
`relabelled` and `with_text` keep hyper-parameters, temperature and feature map: at these choices
the result equals a fit. The estimator then decides whether to choose again. The exact posterior of
regression is updated in O(n²), the softmax likelihood by a warm start; approximations are cheap to
build again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.errors import ProtocolError
from gpcache.gp import PRECISIONS, ExactPrecision
from gpcache.methods.cache import explicit, regression, softmax, softmax_search, softmax_weights
from gpcache.methods.cache.explicit import Streamed
from gpcache.methods.cache.held_out import HeldOutLogits, HeldOutReport
from gpcache.methods.cache.memory import ensure_fit_memory, fitting
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.recipe import Recipe, Task
from gpcache.methods.cache.regression import FEW, NoveltyBefore
from gpcache.methods.cache.row_stream import RowStream
from gpcache.methods.cache.search import Choice, SearchOptions
from gpcache.methods.cache.shots import Shots, fold_rows
from gpcache.methods.cache.training import TrainedCache, Trainer, choose_start
from gpcache.metrics import Calibration, fit_calibration

NOT_COMPUTED = "not computed, because it takes training: call held_out()"
# Photos of one burst, and copies, would answer for each other.
SETS_AT_ONCE = "leave-one-out in closed form; bursts and copies are left out together"


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted cache.

    `text` is the text of the classes as it was given, `search` the table of settings that were
    tried. A trained cache has its `trainer`, the choice that it was `trained_at`, the `epochs` and
    the loss of each. `known_report` and `known_novelty` are held-out figures that were computed
    with the fit. `changed` counts the shots that were added, removed or relabelled since the
    hyper-parameters were chosen; `validated` says that they were chosen on a validation set. A
    model in explicit features does not keep its shots: `streamed` is what it knows of them, and
    `shots` are the ones that the fit held out, of the numbers `kept_rows` (k,) there (None in a
    model that was loaded). After an update of many shots, `before` has the novelty of the rows
    `rows_before` (n,); −1 is a new shot.
    """

    shots: Shots
    recipe: Recipe
    text: Tensor | None
    model: CacheModel
    settings: SearchOptions
    calibration: Calibration
    search: dict[str, NDArray[Any]]
    trainer: Trainer | None = None
    trained_at: Choice | None = None
    epochs: int = 0
    losses: list[float] = field(default_factory=list)
    known_report: HeldOutReport | None = None
    known_novelty: NDArray[np.float64] | None = None
    changed: int = 0
    validated: bool = False
    streamed: Streamed | None = None
    kept_rows: Tensor | None = None
    before: NoveltyBefore | None = None
    rows_before: Tensor | None = None

    def __repr__(self) -> str:
        return (
            f"Fitted({self.approximation}, {self.n_rows:,} shots of {self.shots.n_classes:,} "
            "classes)"
        )

    @property
    def approximation(self) -> str:
        """How the posterior was computed, in words."""
        if self.streamed is not None:
            return f"explicit features ({len(self.model.precision.keys):,})"
        name = {kind: name for name, kind in PRECISIONS.items()}.get(self.recipe.precision)
        return name or self.recipe.precision.__name__.lower()

    @property
    def n_rows(self) -> int:
        """The number of shots that the model has learned from, kept or not."""
        return len(self.shots) if self.streamed is None else self.streamed.n_rows

    @property
    def choice(self) -> Choice:
        """The hyper-parameters in use."""
        return self.model.choice

    @property
    def training(self) -> TrainedCache | None:
        """The training of the keys on the present shots; None if keys are not trained."""
        if self.trainer is None or self.trained_at is None:
            return None
        task = Task(self.shots, self.recipe, self.text, self.settings)
        return TrainedCache(self.trainer, task, self.choice, self.trained_at)

    @property
    def sees_labels(self) -> bool:
        """Whether the feature space or the keys were learned from labels."""
        return self.recipe.space.sees_labels or self.trainer is not None

    @property
    def can_choose_again(self) -> bool:
        """Whether the shots alone are enough to choose the hyper-parameters again."""
        return self.trainer is None and not self.validated and self.streamed is None

    # Held-out figures.

    @cached_property
    def report(self) -> HeldOutReport:
        """Held-out figures at the hyper-parameters in use, without any training."""
        if self.known_report is not None:
            return self.known_report
        if self.trainer is not None:
            return HeldOutReport.empty(len(self.shots), self.shots.n_classes, NOT_COMPUTED)
        return self.held_out()

    @cached_property
    def novelty(self) -> NDArray[np.float64]:
        """Held-out novelty of each shot (n,); NaN if unknown."""
        if self.known_novelty is not None:
            return self.known_novelty
        if self.trainer is not None:
            return np.full(len(self.shots), np.nan)
        with fitting(self.shots):
            if self.before is not None and self.rows_before is not None:
                return self.before.after(self.model.precision, self.shots, self.rows_before)
            return regression.held_out_variance(self.recipe, self.shots, self.choice)

    def held_out(self, sets: Tensor | None = None) -> HeldOutReport:
        """Hold the shots out now; shots of one set (n,) together, if labels shaped the model."""
        shots, recipe, choice = self.shots, self.recipe, self.choice
        if self.training is not None:
            return self.training.held_out(self.epochs)[0]
        if self.streamed is not None:
            return self.report
        with fitting(shots):
            if recipe.is_softmax:
                n_folds = recipe.n_folds // 2
                fold = shots.folds(n_folds, recipe.seed)
                if sets is not None:
                    fold = shots.folds_of_sets(sets.to(shots.labels.device), n_folds)
                held = softmax.held_out_logits(recipe, shots, self.text, choice, fold_rows(fold))
            else:
                held = regression.held_out_logits(recipe, shots, choice)
            return HeldOutReport.of_shots(shots, held, recipe.seed)

    def held_out_in(self, sets: Tensor) -> tuple[HeldOutReport, NDArray[np.float64]]:
        """`report` and `novelty`; the shots of one set (n,) are left out together if possible."""
        exact, shots = self.model.closed_form, self.shots
        if exact is not None and not self.sees_labels:
            mean, variance = exact.leave_out(sets.to(shots.labels.device))
            logits = self.model.fused(shots.zero_shot, mean, variance)
            rows = torch.arange(len(shots), device=shots.labels.device)
            held = HeldOutLogits(logits, rows, SETS_AT_ONCE)
            report = HeldOutReport.of(shots.labels, held, self.calibration.probabilities(logits))
            return report, variance[:, 0].double().cpu().numpy()
        separate = len(torch.unique(sets)) == len(sets)
        if separate or self.streamed is not None or not self.recipe.is_softmax:
            return self.report, self.novelty
        return self.held_out(sets), self.novelty

    # Updates.

    def added(self, features: Tensor, labels: Tensor) -> Fitted:
        """With further shots: unit rows (k, d) of class numbers (k,)."""
        zero_shot = None if self.text is None else features @ self.text.mT
        shots = self.shots.joined(Shots(features, labels, self.shots.n_classes, zero_shot))
        keys = self.model.feature_map(features)
        known = torch.arange(len(self.shots), device=labels.device)
        rows = torch.cat([known, torch.full_like(labels, -1)])
        if (exact := self.model.closed_form) is not None:
            exact = exact.add(keys, shots.values[len(self.shots) :])
        keys = torch.cat([self.model.precision.keys, keys])
        return self._updated(shots, exact, keys, len(labels), rows)

    def added_in_batches(self, rows: RowStream) -> Fitted:
        """With further shots of a model in explicit features, which does not keep them."""
        assert self.streamed is not None
        model, streamed = explicit.added(self.model, self.streamed, rows)
        changed = self.changed + len(rows)
        return replace(self, model=model, streamed=streamed, changed=changed)

    def removed(self, rows: Tensor) -> Fitted:
        """Without the shots of these row numbers (k,)."""
        kept = torch.ones(len(self.shots), dtype=torch.bool, device=rows.device)
        kept[rows] = False
        if (exact := self.model.closed_form) is not None:
            exact = exact.remove(rows)
        keys, remaining = self.model.precision.keys[kept], torch.nonzero(kept).flatten()
        return self._updated(self.shots[kept], exact, keys, len(rows), remaining)

    def relabelled(self, rows: Tensor, labels: Tensor) -> Fitted:
        """With other class numbers (k,) for the shots of these row numbers (k,)."""
        numbers = self.shots.labels.clone()
        numbers[rows] = labels
        shots, keys = replace(self.shots, labels=numbers), self.model.precision.keys
        return self._updated(shots, self.model.closed_form, keys, len(rows))

    def with_classes(self, numbers: Tensor, source: Tensor, text: Tensor | None) -> Fitted:
        """With other classes.

        Old class k becomes `numbers[k]`, −1 for none; new class j was `source[j]`, −1 for none.
        """
        self.require_shots("change classes or text")
        shots = self.shots.with_classes(numbers, len(source), text)
        changed = replace(self, text=text, model=replace(self.model, text=text))
        keys = self.model.precision.keys
        return changed._updated(shots, self.model.closed_form, keys, 0, columns=source)

    def require_shots(self, purpose: str) -> None:
        """Refuse what a model cannot do that does not keep its shots."""
        if self.streamed is not None:
            raise ProtocolError(
                f"To {purpose}, a model must keep its shots, and one in explicit features does "
                "not: fit it again."
            )

    def _updated(
        self,
        shots: Shots,
        exact: ExactPrecision | None,
        keys: Tensor,
        count: int,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> Fitted:
        """The model of these shots with keys (n, d'), `count` of them changed.

        `exact` is their posterior of regression, where it is known in closed form. `rows` (n,) and
        `columns` (c,) are the old numbers of shots and classes, −1 for new ones; None where all
        stayed. The solver of the softmax likelihood starts from there.
        """
        if exact is not None:
            # Where a class got its first shot or lost its last, the values of all shots change.
            model = replace(self.model, precision=exact.with_values(shots.values))
        else:
            precision = self.recipe.condition(shots, keys, self.choice)
            model = replace(self.model, precision=precision)
            if model.is_softmax:
                model = softmax.updated(self.model, precision, shots, rows, columns)
        changed = self.changed + count
        fitted = replace(self, shots=shots, model=model, known_report=None, changed=changed)
        report = novelty = before = rows_before = None
        if fitted.training is None:
            before, rows_before = self._before(rows)
        elif fitted.training.trainer.calibrate:
            report, novelty = fitted.training.held_out(self.epochs)
        return replace(
            fitted,
            known_report=report,
            known_novelty=novelty,
            before=before,
            rows_before=rows_before,
        )

    def _before(self, rows: Tensor | None) -> tuple[NoveltyBefore | None, Tensor]:
        """What the novelty of shots of these rows (n,), −1 for new ones, is computed from.

        None where all of it is computed again after a change.
        """
        before, rows_before = self.before, self.rows_before
        if rows_before is None:
            rows_before = torch.arange(len(self.shots), device=self.shots.labels.device)
            slow = self.recipe.space.sees_labels and self.recipe.precision is ExactPrecision
            if slow and len(self.shots) > FEW:
                known = vars(self).get("novelty", self.known_novelty)  # computed already, or read
                keys = self.model.precision.keys
                before = NoveltyBefore(self.recipe, self.shots, keys, self.choice, known)
        if rows is not None:
            rows_before = torch.where(rows < 0, -1, rows_before[rows.clamp(min=0)])
        return before, rows_before


def fit(task: Task, trainer: Trainer | None = None) -> Fitted:
    """Choose, build or train, and calibrate; on a validation set if one is given."""
    n_held = 0 if task.validation is None else len(task.validation)
    ensure_fit_memory(task.recipe, task.shots, n_held, trained=trainer is not None)
    if task.recipe.is_softmax:
        fitted = _fit_softmax(task)
    elif trainer is not None:
        fitted = _fit_trained(task, trainer)
    else:
        fitted = _fit_regression(task)
    return replace(fitted, validated=task.validation is not None)


def fit_streamed(rows: RowStream, task: Task, *, n_features: int) -> Fitted:
    """Choose, build and calibrate in explicit features, without keeping the rows."""
    settings, validation = task.settings, task.validation
    learned = explicit.learn(
        rows, task.recipe, settings, validation, n_features=n_features, name=task.name
    )
    choice = learned.model.choice
    return Fitted(
        learned.kept.at_gain(choice.gain),
        task.recipe.at(choice.shrinkage, choice.diagonal),
        task.text,
        learned.model,
        settings,
        learned.calibration,
        learned.search,
        known_report=learned.report,
        known_novelty=learned.novelty,
        validated=validation is not None,
        streamed=learned.streamed,
        kept_rows=learned.rows,
    )


def _fit_regression(task: Task) -> Fitted:
    recipe, text, settings, validation = task.recipe, task.text, task.settings, task.validation
    chosen = regression.choose(task)
    choice = chosen.choice
    shots = task.shots.at_gain(choice.gain)
    model = regression.build(recipe, shots, text, choice)
    report = None
    if validation is not None:
        calibration = fit_calibration(model.logits(validation.features), validation.labels)
    else:
        held, calibration = regression.held_out_calibration(task, choice, chosen.models)
        nested = chosen.nested(shots, recipe.seed)
        report = HeldOutReport.of_shots(shots, held, recipe.seed, nested)
    table = regression.search_table(chosen.seen)
    return Fitted(shots, recipe, text, model, settings, calibration, table, known_report=report)


def _fit_softmax(task: Task) -> Fitted:
    text, settings, validation = task.text, task.settings, task.validation
    chosen = softmax_search.choose(task.recipe, task.shots, settings, validation, name=task.name)
    choice, table = chosen.choice, chosen.search
    shots = chosen.with_label_weights(task.shots).at_gain(choice.gain)
    recipe = task.recipe.at(choice.shrinkage, choice.diagonal)
    model = softmax.build(recipe, shots, text, choice, chosen.start)
    calibration, report = Calibration(), None
    if validation is not None:
        calibration = fit_calibration(model.logits(validation.features), validation.labels)
    elif chosen.held_out is not None:
        logits, rows, _ = chosen.held_out
        if chosen.calibrates:
            weights = None if shots.weights is None else shots.weights[rows]
            pull = softmax_weights.CALIBRATION_PULL / len(rows)
            calibration = fit_calibration(logits, shots.labels[rows], weights, pull=pull)
        report = HeldOutReport.of_shots(shots, chosen.held_out, recipe.seed, chosen.nested)
    return Fitted(shots, recipe, text, model, settings, calibration, table, known_report=report)


def _fit_trained(task: Task, trainer: Trainer) -> Fitted:
    chosen, trained_at = choose_start(trainer, task)
    task = replace(task, shots=task.shots.at_gain(chosen.choice.gain))
    trained = TrainedCache(trainer, task, chosen.choice, trained_at).fit(chosen.models)
    return Fitted(
        task.shots.at_gain(trained.model.choice.gain),
        task.recipe,
        task.text,
        trained.model,
        task.settings,
        trained.calibration,
        regression.search_table(trained.seen or chosen.seen),
        trainer,
        trained_at,
        trained.epochs,
        trained.losses,
        trained.report,
        trained.novelty,
    )


def with_class_names(
    fitted: Fitted, old: NDArray[Any], new: NDArray[Any], text: Tensor | None
) -> Fitted:
    """The fitted value with another list of classes, and their text."""
    before, after = old.tolist(), new.tolist()
    if text is None and before == after:
        return fitted
    device = fitted.shots.labels.device
    place, number = ({name: i for i, name in enumerate(names)} for names in (before, after))
    numbers = torch.tensor([number.get(name, -1) for name in before], device=device)
    source = torch.tensor([place.get(name, -1) for name in after], device=device)
    return fitted.with_classes(numbers, source, text)
