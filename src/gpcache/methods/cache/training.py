"""A cache trained by cross-entropy on its shots: what Tip-Adapter-F and GPCache-F share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gpcache.gp.feature_maps import FeatureMap
from gpcache.methods.cache.choosing import folds_protocol
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.nested import best_without, cross_fitted
from gpcache.methods.cache.search import Choice, HeldOut, Settings, weigh
from gpcache.methods.cache.shots import Evidence, Shots
from gpcache.methods.cache.trainable import Move, move_free_keys
from gpcache.methods.training import Training, train
from gpcache.metrics import (
    Calibration,
    fit_calibration,
    fit_temperature,
    smoothed_losses,
)
from gpcache.support.checks import one_of, positive, whole

# Training may stop at these shares of its epochs: few, so that chance does not choose.
STOPS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Each fold costs a whole training.
FOLDS = 4

Watch = Callable[[int, CacheModel], None]


class _InFolds(NamedTuple):
    """What held-out rows (k,) were told at each stop, how unlike all others they were, and how."""

    held_out: list[HeldOut]
    novelty: list[NDArray[np.float64]]
    rows: Tensor
    protocol: str


class TrainedCacheMixin(CacheClassifier):
    """Start from the training-free model and train it.

    Its numbers are that model's, which has seen all shots, unless a method has a start of its own
    and is weighed afterwards. With `stopping="held_out"` training anew in each fold of the shots
    (or a validation set) says after which epoch to stop, not to train at all included; the
    temperature and `loo_` come from the same folds (for what is reported of a fold, the others say
    when to stop). With a validation set the numbers are searched again at each of the stops.
    `calibrate=False` saves the folds: the last epoch counts, the temperature is that of untrained
    keys at the same numbers, and `loo_` is computed when it is asked for.
    """

    learns_from_views: ClassVar[bool] = True
    #: Whether the weights of text and cache are found anew on held-out folds: they are where
    #: training does not start at numbers that such rows have chosen.
    _weighs_anew = False
    #: Whether the precision's own dependence on the keys is differentiated (the paper's *nograd*
    #: says no).
    precision_gradient = True

    def __init__(
        self,
        *,
        epochs: int = 20,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        epsilon: float = 1e-4,
        stopping: Literal["held_out", "last"] = "held_out",
        calibrate: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.epsilon = epsilon
        self.stopping = stopping
        self.calibrate = calibrate

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
        views: ArrayLike | None = None,
    ) -> Self:
        """As the parent's; `views` (n, v, d) of the shots, augmented, are queries too."""
        self._views = views
        return super().fit(X, y, validation=validation)

    @property
    def _leaves_out(self) -> bool:
        """Whether a query is answered without its own key while training."""
        return False

    @property
    def _pull(self) -> float:
        """Weight of the way that the parameters have gone."""
        return 0.0

    def _move(self, shots: Shots, feature_map: FeatureMap) -> Move:
        """What training moves."""
        return move_free_keys(shots, feature_map, self._text)

    # Training.

    def _start(self, judged: bool) -> Choice:
        """The numbers to train at; `judged` says whether unseen rows will weigh the result."""
        return self._choice

    def _build(self, shots: Shots) -> CacheModel:
        model, self.training_loss_ = self._trained(shots, until=self.epochs_)
        return self._settled(model, shots)

    def _settled(self, model: CacheModel, shots: Shots) -> CacheModel:
        """A model of these shots at the chosen numbers: it need not have been trained at them."""
        if model.choice == self._choice:
            return model
        precision = self._condition(shots, model.precision.keys)
        return replace(model, precision=precision, choice=self._choice)

    def _trained(
        self, shots: Shots, *, until: int, watch: Watch | None = None, stops: tuple[int, ...] = ()
    ) -> tuple[CacheModel, list[float]]:
        """The model after so many epochs, and the loss of each; `watch` sees it at the stops."""
        feature_map = self._recipe.space.fit(shots.features, shots.labels)
        plan, choice = self._recipe.plan(shots), self._trained_at
        # The numbers of the model may have been chosen since, and with them what is regressed on.
        shots = shots.at_gain(choice.gain)
        move = self._move(shots, feature_map)
        queries, labels, own = _queries(shots)

        def model() -> CacheModel:
            place = move.place()
            precision = self._recipe.precision(
                plan,
                place.keys,
                shots.values,
                beta=choice.beta,
                noise=choice.noise,
                precision_gradient=self.precision_gradient,
            )
            return CacheModel(place.feature_map, precision, place.text, choice)

        # Mapping them is most of a step where features are wide: once is enough if the map stays.
        mapped = feature_map(queries)

        def logits(rows: Tensor) -> Tensor:
            current = model()
            return current.answer(
                queries[rows],
                mapped=mapped[rows] if current.feature_map is feature_map else None,
                without=own[rows] if self._leaves_out else None,
            )

        @torch.no_grad()
        def look(epoch: int) -> None:
            if watch is not None and epoch in stops:
                watch(epoch, model())

        starts = [parameter.detach().clone() for parameter in move.parameters]

        def pull() -> Tensor:
            pairs = zip(move.parameters, starts, strict=True)
            return self._pull / len(shots) * torch.stack([_far(*pair) for pair in pairs]).sum()

        history = train(
            move.parameters,
            logits,
            labels,
            self._training(),
            penalty=pull if self._pull else None,
            until=until,
            after_epoch=look,
            description=type(self).__name__,
        )
        for parameter in move.parameters:
            parameter.requires_grad_(False)
        return model(), history

    def _finish(self, validation: Shots | None, evidence: Evidence | None) -> None:
        self.epochs_ = self.epochs
        silent = self._is_silent()
        self._trained_at = self._start(judged=validation is not None or not silent)
        if validation is not None:
            self._stop_on(validation)
            self._calibrate(validation, evidence)
            return
        if self.calibrate and not silent:
            self._stop_in_folds()
            self._model = self._build(self._shots)
            return
        self._model = self._build(self._shots)
        self._report = self._novelty = None
        if silent:
            self._accept_calibration(Calibration(slope=self._shipped_slope()))
            return
        evidence = evidence or self._evidence(self._choice.eta != 0, coarse=False)
        logits, rows, _ = self._untrained_logits(evidence)
        self._accept_calibration(fit_calibration(logits, self._shots.labels[rows]))

    # Where to stop.

    def _stops(self) -> tuple[int, ...]:
        if self.stopping == "last":
            return (self.epochs,)
        return tuple(sorted({round(share * self.epochs) for share in STOPS}))

    def _stop_on(self, validation: Shots) -> None:
        """Take the stop that is best on a validation set, its numbers chosen there, too."""
        settings, shots, labels = self._settings(), self._shots, validation.labels
        best = torch.inf

        def watch(epoch: int, model: CacheModel) -> None:
            nonlocal best
            seen = self._search_on(validation, settings, model)
            choice = replace(seen[0], losses=None)
            # The keys are about to move on.
            keys = model.precision.keys.clone()
            precision = self._condition(shots.at_gain(choice.gain), keys, choice)
            found = replace(model, precision=precision, choice=choice)
            loss = float(_losses([found.logits(validation.features)], labels).mean())
            if loss < best:
                best, self.epochs_, self._model = loss, epoch, found
                self._accept(seen)

        stops = self._stops()
        _, history = self._trained(shots, until=stops[-1], watch=watch, stops=stops)
        self.training_loss_ = history[: self.epochs_]

    def _stop_in_folds(self) -> None:
        """Take the stop that is best on held-out folds; they say the rest of held-out rows, too."""
        stops, choice = self._stops(), self._choice
        place = (choice.beta, choice.noise, choice.gain)
        seen = self._in_folds(stops)
        labels, fold = self._shots.labels[seen.rows], self._judged(seen.rows)
        settings = self._judged_by_shots(self._settings())

        def weighed(held_out: HeldOut) -> Choice:
            return weigh(held_out, settings, place) if self._weighs_anew else self._choice

        choices = [weighed(one) for one in seen.held_out]
        logits = [one.logits(choice) for one, choice in zip(seen.held_out, choices, strict=True)]
        losses = _losses(logits, labels)
        best = int(losses.mean(1).argmin())
        self.epochs_ = stops[best]
        if self._weighs_anew:
            self._accept([choices[best]])
        self._novelty = seen.novelty[best]
        self._accept_calibration(fit_calibration(logits[best], labels))

        def logits_at(stop: int, others: Tensor) -> Tensor:
            held_out = seen.held_out[stop]
            return held_out.logits(weighed(held_out.rows(others)))

        chosen = best_without(losses, losses.new_zeros(len(stops)), fold)
        nested = cross_fitted(logits_at, chosen, fold, labels)
        self._report = self._make_report(logits[best], seen.rows, seen.protocol, nested)

    def _in_folds(self, stops: tuple[int, ...]) -> _InFolds:
        """What models that were trained without them say of held-out rows, at each stop."""
        shots, folds = self._shots, self._fold_rows(min(self.n_folds, FOLDS))
        parts: dict[int, list[HeldOut]] = {stop: [] for stop in stops}
        unlike: dict[int, list[Tensor]] = {stop: [] for stop in stops}
        for rows, held in folds:

            def watch(
                epoch: int, model: CacheModel, mine: Shots = shots[rows], asked: Shots = shots[held]
            ) -> None:
                model = self._settled(model, mine)
                mean, variance = model.posterior(asked.features)
                spread = model.precision.variance_of_classes(variance)
                zero_shot = model.zero_shot(asked.features)
                parts[epoch].append(HeldOut(mean, spread, zero_shot, asked.labels))
                unlike[epoch].append(variance.amin(1))

            self._trained(shots[rows], until=max(stops), watch=watch, stops=stops)
        rows = torch.cat([held for _, held in folds])
        return _InFolds(
            [HeldOut.together(found) for found in parts.values()],
            [self._novelty_of(torch.cat(found), rows) for found in unlike.values()],
            rows,
            folds_protocol(len(folds)),
        )

    def _novelty_of(self, variance: Tensor, rows: Tensor) -> NDArray[np.float64]:
        """Of all shots (n,), known for these rows (k,)."""
        novelty = np.full(len(self._shots), np.nan)
        if self._recipe.precision.uses_noise:
            novelty[rows.cpu().numpy()] = variance.double().cpu().numpy()
        return novelty

    def _held_out_logits(self, evidence: Evidence | None) -> tuple[Tensor, Tensor, str]:
        if not bool(self._shots.with_company().any()):
            return super()._held_out_logits(evidence)
        seen = self._in_folds((self.epochs_,))
        self._novelty = seen.novelty[0]
        return seen.held_out[0].logits(self._choice), seen.rows, seen.protocol

    @property
    def held_out_novelty_(self) -> NDArray[np.float64]:
        """How unlike all others each shot (n,) is, trained anew without it; NaN if not counted."""
        check_is_fitted(self)
        if self._novelty is None:
            if self._is_silent():
                self._novelty = np.full(len(self._shots), np.nan)
            else:
                self._novelty = self._in_folds((self.epochs_,)).novelty[0]
        return self._novelty

    # Options.

    def _training(self) -> Training:
        return Training(
            self.epochs,
            self.batch_size,
            self.learning_rate,
            self.weight_decay,
            self.epsilon,
            seed=int(self.random_state),
        )

    def _settings(self) -> Settings:
        whole("epochs", self.epochs, least=0)
        whole("batch_size", self.batch_size, least=1)
        positive("learning_rate", self.learning_rate, owner=self, auto=False)
        positive("weight_decay", self.weight_decay, owner=self, allow_zero=True, auto=False)
        positive("epsilon", self.epsilon, owner=self, auto=False)
        one_of("stopping", self.stopping, ("held_out", "last"), owner=self)
        return super()._settings()

    def _make_shots(self, features: Tensor, labels: Tensor) -> Shots:
        shots = super()._make_shots(features, labels)
        # Only the shots themselves have views; validation rows come after them, without.
        views, self._views = getattr(self, "_views", None), None
        return shots if views is None else shots.with_views(self._read_views(views, features))


def _queries(shots: Shots) -> tuple[Tensor, Tensor, Tensor]:
    """Rows to train on (N, d), the shots and their views; their labels and their own keys (N,)."""
    own = torch.arange(len(shots), device=shots.labels.device)
    if shots.views is None:
        return shots.features, shots.labels, own
    together = torch.cat([shots.features[:, None], shots.views], 1)
    own = own.repeat_interleave(together.shape[1])
    return together.flatten(0, 1), shots.labels[own], own


def _far(parameter: Tensor, start: Tensor) -> Tensor:
    return (parameter - start).square().sum()


def _losses(logits: Sequence[Tensor], labels: Tensor) -> Tensor:
    """What each row says of each stop (v, k): its smoothed NLL at the stop's own temperature."""
    return torch.stack(
        [smoothed_losses(one / fit_temperature(one, labels), labels) for one in logits]
    )
