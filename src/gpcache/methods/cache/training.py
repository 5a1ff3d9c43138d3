"""Training a cache by cross-entropy on its shots: what Tip-Adapter-F and GPCache-F share.

Training starts from the training-free model. Held-out folds of the shots (or a validation set)
decide after which epoch to stop, possibly before the first. Temperature and held-out figures come
from the same folds; for the figures of a fold, the other folds decide when to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.gp.feature_maps import FeatureMap
from gpcache.methods.cache import regression
from gpcache.methods.cache.held_out import (
    HeldOutLogits,
    HeldOutReport,
    best_without,
    cross_fitted,
    report_folds,
)
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.recipe import Task
from gpcache.methods.cache.search import CacheOutputs, Choice, SearchOptions, shipped, weigh
from gpcache.methods.cache.shots import Shots
from gpcache.methods.cache.trainable import Move, move_free_keys
from gpcache.methods.training import Schedule, train
from gpcache.metrics import Calibration, fit_calibration, fit_temperature, smoothed_losses
from gpcache.support.checks import is_auto

# Training may stop at these shares of its epochs. There are few, to limit selection by chance.
STOPS = (0.0, 0.25, 0.5, 0.75, 1.0)
# `loo_` and the command line print this: some choices of a trained cache are not cross-validated.
TRAINED_PROTOCOL = (
    "{}-fold cross-validation; keys are trained again in each fold; "
    "alpha, beta, noise and gain were chosen on all shots"
)
# Each fold costs a whole training.
FOLDS = 4

Watch = Callable[[int, CacheModel], None]


@dataclass(frozen=True, eq=False)
class Trainer:
    """How a cache is trained.

    Parameters
    ----------
    training : Schedule
        Optimiser and schedule.
    move : callable
        What training moves: `move(shots, feature_map, text)`.
    stops : tuple of int
        Epochs after which training may stop.
    calibrate : bool
        Whether to train in folds of the shots: for the stop, the temperature and the held-out
        figures. Otherwise the last epoch counts, and the temperature is that of untrained keys.
    leaves_out : bool
        Whether a query is answered without its own key while training.
    pull : float
        Weight of the mean squared distance that the parameters have moved.
    precision_gradient : bool
        Whether the precision's dependence on the keys is differentiated.
    moves_text : bool
        Whether the text is trained, too.
    start : (alpha, beta), optional
        Where training starts instead of at the chosen hyper-parameters. The weights of text and
        cache are then fitted on held-out rows once keys are trained.
    name : str
        What progress bars show.
    """

    training: Schedule
    move: Callable[[Shots, FeatureMap, Tensor | None], Move] = move_free_keys
    stops: tuple[int, ...] = (0,)
    calibrate: bool = True
    leaves_out: bool = False
    pull: float = 0.0
    precision_gradient: bool = True
    moves_text: bool = False
    start: tuple[float, float] | None = None
    name: str = "training"

    def refits_weights(self, shots: Shots) -> bool:
        """Whether training starts at `start`, so that the weights are fitted afterwards.

        If classes have no shots, training starts at the chosen hyper-parameters: in a wide kernel
        every shot votes on every query, also on those of classes without shots.
        """
        moved = self.start is not None and self.training.epochs > 0
        return moved and not bool(shots.absent.any())

    def started(self, settings: SearchOptions, *, with_text: bool) -> Choice:
        """The hyper-parameters at `start`, or those that the user gave."""
        assert self.start is not None
        alpha = self.start[0] if is_auto(settings.alpha) else settings.alpha
        beta = self.start[1] if is_auto(settings.beta) else settings.beta
        return shipped(replace(settings, alpha=alpha, beta=beta), with_text=with_text)


def stops_of(epochs: int, stopping: str) -> tuple[int, ...]:
    """The epochs after which training may stop: the last one, or one of `STOPS`."""
    if stopping == "last":
        return (epochs,)
    return tuple(sorted({round(share * epochs) for share in STOPS}))


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model, its epochs and the loss of each.

    `seen` are the choices that were tried after training, if any, the best first. `report` and
    `novelty` (n,) are held-out figures, where they were computed.
    """

    model: CacheModel
    epochs: int
    losses: list[float]
    calibration: Calibration
    seen: Sequence[Choice] = ()
    report: HeldOutReport | None = None
    novelty: NDArray[np.float64] | None = None


def choose_start(trainer: Trainer, task: Task) -> tuple[regression.RegressionSearch, Choice]:
    """The hyper-parameters that were chosen without training, and those to train at."""
    if not trainer.refits_weights(task.shots):
        chosen = regression.choose(task)
        return chosen, chosen.choice
    with_text = task.text is not None
    start = trainer.started(task.settings, with_text=with_text)
    if task.validation is not None or task.shots.can_be_held_out:
        return regression.RegressionSearch([start], task.settings), start
    chosen = regression.choose(task)
    # With text the weight of the cache matters, and no unseen row can fit it afterwards here.
    return chosen, chosen.choice if with_text else start


@dataclass(frozen=True, eq=False)
class TrainedCache:
    """Trains a cache on the shots of a task, at the choice `trained_at`."""

    trainer: Trainer
    task: Task
    choice: Choice
    trained_at: Choice

    def train(
        self, shots: Shots, *, until: int, watch: Watch | None = None, stops: Sequence[int] = ()
    ) -> tuple[CacheModel, list[float]]:
        """The model of these shots after some epochs, and the loss of each.

        `watch` sees the model at the stops.
        """
        trainer, recipe, choice = self.trainer, self.task.recipe, self.trained_at
        feature_map, plan = recipe.feature_map(shots), recipe.plan(shots)
        # The hyper-parameters, and so the targets, may have been chosen since.
        shots = shots.at_gain(choice.gain)
        move = trainer.move(shots, feature_map, self.task.text)
        queries, labels, own_keys = _queries(shots)

        def model() -> CacheModel:
            place = move.place()
            precision = recipe.precision(
                plan,
                place.keys,
                shots.values,
                beta=choice.beta,
                noise=choice.noise,
                precision_gradient=trainer.precision_gradient,
            )
            return CacheModel(place.feature_map, precision, place.text, choice)

        # Mapping wide features takes most of a step: do it once if the map does not change.
        mapped = feature_map(queries)

        def logits(rows: Tensor) -> Tensor:
            current = model()
            return current.training_logits(
                queries[rows],
                mapped=mapped[rows] if current.feature_map is feature_map else None,
                without=own_keys[rows] if trainer.leaves_out else None,
            )

        @torch.no_grad()
        def look(epoch: int) -> None:
            if watch is not None and epoch in stops:
                watch(epoch, model())

        starts = [parameter.detach().clone() for parameter in move.parameters]

        def pull() -> Tensor:
            pairs = zip(move.parameters, starts, strict=True)
            moved = torch.stack([(now - start).square().sum() for now, start in pairs])
            return trainer.pull / len(shots) * moved.sum()

        history = train(
            move.parameters,
            logits,
            labels,
            trainer.training,
            penalty=pull if trainer.pull else None,
            until=until,
            after_epoch=look,
            description=trainer.name,
        )
        for parameter in move.parameters:
            parameter.requires_grad_(False)
        return model(), history

    def settled(self, model: CacheModel, shots: Shots, choice: Choice) -> CacheModel:
        """A model of these shots at a choice: it need not have been trained there."""
        if model.choice == choice:
            return model
        precision = self.task.recipe.condition(shots, model.precision.keys, choice)
        return replace(model, precision=precision, choice=choice)

    # Where to stop.

    def fit(self, models: regression.HeldOutModels | None) -> Trained:
        """Train, stop and calibrate."""
        task, shots = self.task, self.task.shots
        if task.validation is not None:
            return self._stop_on(task.validation)
        if self.trainer.calibrate and shots.can_be_held_out:
            return self._stop_in_folds()
        epochs = self.trainer.training.epochs
        model, losses = self.train(shots, until=epochs)
        model = self.settled(model, shots, self.choice)
        _, calibration = regression.held_out_calibration(task, self.choice, models)
        report, novelty = self.held_out(epochs) if self.trainer.calibrate else (None, None)
        return Trained(model, epochs, losses, calibration, report=report, novelty=novelty)

    def _stop_on(self, validation: Shots) -> Trained:
        """Take the stop that is best on a validation set, which also chooses hyper-parameters."""
        shots, labels = self.task.shots, validation.labels
        best_loss, best = torch.inf, None

        def watch(epoch: int, model: CacheModel) -> None:
            nonlocal best_loss, best
            tried = regression.search_on(validation, self.task, model)
            choice = replace(tried[0], losses=None)
            # The keys are about to move on.
            keys = model.precision.keys.clone()
            precision = self.task.recipe.condition(shots, keys, choice)
            at_choice = replace(model, precision=precision, choice=choice)
            logits = at_choice.logits(validation.features)
            loss = float(_losses([logits], labels).mean())
            if loss < best_loss:
                best_loss = loss
                best = Trained(at_choice, epoch, [], fit_calibration(logits, labels), tried)

        stops = self.trainer.stops
        _, history = self.train(shots, until=stops[-1], watch=watch, stops=stops)
        assert best is not None
        return replace(best, losses=history[: best.epochs])

    def _stop_in_folds(self) -> Trained:
        """Take the stop that is best on held-out folds, which also give the held-out figures."""
        stops, shots, seed = self.trainer.stops, self.task.shots, self.task.recipe.seed
        outputs = self.in_folds(stops)
        labels = shots.labels[outputs.rows]
        fold = report_folds(shots, outputs.rows, seed)
        settings = regression.restricted(self.task.settings, shots)
        refits = self.trainer.refits_weights(shots)

        def with_fitted_weights(held_out: CacheOutputs) -> Choice:
            return weigh(held_out, settings, self.choice.place) if refits else self.choice

        choices = [with_fitted_weights(one) for one in outputs.held_out]
        logits = [one.logits(choice) for one, choice in zip(outputs.held_out, choices, strict=True)]
        losses = _losses(logits, labels)
        best = int(losses.mean(1).argmin())

        def logits_at(stop: int, other_rows: Tensor) -> Tensor:
            held_out = outputs.held_out[stop]
            return held_out.logits(with_fitted_weights(held_out.rows(other_rows)))

        chosen = best_without(losses, losses.new_zeros(len(stops)), fold)
        nested = cross_fitted(logits_at, chosen, fold, labels)
        held_out = HeldOutLogits(logits[best], outputs.rows, outputs.protocol)
        model, history = self.train(shots, until=stops[best])
        return Trained(
            self.settled(model, shots, replace(choices[best], losses=None)),
            stops[best],
            history,
            fit_calibration(logits[best], labels),
            [choices[best]] if refits else (),
            HeldOutReport.of_shots(shots, held_out, seed, nested),
            self._novelty(outputs.held_out[best], outputs.rows),
        )

    def in_folds(self, stops: Sequence[int]) -> InFolds:
        """Outputs for held-out rows at each stop, from models that were trained without them."""
        shots, recipe = self.task.shots, self.task.recipe
        folds = recipe.folds(shots, min(recipe.n_folds, FOLDS))
        parts: dict[int, list[CacheOutputs]] = {stop: [] for stop in stops}
        for rows, held in folds:

            def watch(
                epoch: int, model: CacheModel, known: Shots = shots[rows], test: Shots = shots[held]
            ) -> None:
                model = self.settled(model, known, self.choice)
                mean, variance = model.posterior(test.features)
                spread = model.precision.variance_of_classes(variance)
                zero_shot = model.zero_shot(test.features)
                parts[epoch].append(CacheOutputs(mean, spread, zero_shot, test.labels))

            self.train(shots[rows], until=max(stops), watch=watch, stops=stops)
        rows = torch.cat([held for _, held in folds])
        return InFolds(
            [CacheOutputs.together(outputs) for outputs in parts.values()],
            rows,
            TRAINED_PROTOCOL.format(len(folds)),
        )

    def _novelty(self, outputs: CacheOutputs, rows: Tensor) -> NDArray[np.float64]:
        """Novelty of all shots (n,); NaN except for these rows (k,)."""
        novelty = np.full(len(self.task.shots), np.nan)
        if self.task.recipe.precision.uses_noise and outputs.variance is not None:
            novelty[rows.cpu().numpy()] = regression.least_variance(outputs.variance)
        return novelty

    def held_out(self, epochs: int) -> tuple[HeldOutReport, NDArray[np.float64]]:
        """The figures and novelty of the shots, trained again without them in folds."""
        shots, novelty = self.task.shots, np.full(len(self.task.shots), np.nan)
        held_out = HeldOutLogits.none(shots, "no class has two shots")
        if bool(shots.with_company().any()):
            outputs = self.in_folds((epochs,))
            logits = outputs.held_out[0].logits(self.choice)
            held_out = HeldOutLogits(logits, outputs.rows, outputs.protocol)
            if shots.can_be_held_out:
                novelty = self._novelty(outputs.held_out[0], outputs.rows)
        return HeldOutReport.of_shots(shots, held_out, self.task.recipe.seed), novelty


class InFolds(NamedTuple):
    """Outputs for held-out rows (k,) at each stop, and how they were held out."""

    held_out: list[CacheOutputs]
    rows: Tensor
    protocol: str


def _queries(shots: Shots) -> tuple[Tensor, Tensor, Tensor]:
    """Rows to train on (N, d): shots and views; their labels (N,) and their own keys (N,)."""
    own_keys = torch.arange(len(shots), device=shots.labels.device)
    if shots.views is None:
        return shots.features, shots.labels, own_keys
    together = torch.cat([shots.features[:, None], shots.views], 1)
    own_keys = own_keys.repeat_interleave(together.shape[1])
    return together.flatten(0, 1), shots.labels[own_keys], own_keys


def _losses(logits: Sequence[Tensor], labels: Tensor) -> Tensor:
    """The loss of each row at each stop (v, k): smoothed NLL at the stop's own temperature."""
    return torch.stack(
        [smoothed_losses(one / fit_temperature(one, labels), labels) for one in logits]
    )
