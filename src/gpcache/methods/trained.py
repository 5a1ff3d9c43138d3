"""A cache trained by cross-entropy on its shots: what Tip-Adapter-F and GPCache-F share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gpcache.gp.feature_maps import FeatureMap
from gpcache.methods.arguments import one_of, positive, whole
from gpcache.methods.cache import CacheClassifier
from gpcache.methods.model import CacheModel
from gpcache.methods.moves import Move, move_free_keys
from gpcache.methods.nested import best_without, cross_fitted
from gpcache.methods.selection import folds_protocol
from gpcache.methods.shots import Evidence, Shots
from gpcache.methods.training import Training, train
from gpcache.probability import (
    Calibration,
    fit_calibration,
    fit_temperature,
    smoothed_losses,
)
from gpcache.search import Settings

# Training may stop at these shares of its epochs: few, so that chance does not choose.
STOPS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Each fold costs a whole training.
FOLDS = 4

Watch = Callable[[int, CacheModel], None]


class TrainedCacheMixin(CacheClassifier):
    """Start from the training-free model and train it; its numbers are that model's.

    With `stopping="held_out"` training anew in each fold of the shots (or a validation set) says
    after which epoch to stop, not to train at all included; the temperature and `loo_` come from
    the same folds (for what is reported of a fold, the others say when to stop; the numbers are the
    training-free model's, which has seen all shots). With a validation set the numbers are searched
    again once training is over. `calibrate=False` saves the folds: the last epoch counts, the
    temperature is that of the training-free model, and `loo_` is computed when it is asked for.
    """

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

    def _build(self, shots: Shots) -> CacheModel:
        return self._trained(shots, until=self.epochs_)

    def _trained(
        self, shots: Shots, *, until: int, watch: Watch | None = None, stops: tuple[int, ...] = ()
    ) -> CacheModel:
        """The model after so many epochs; `watch` sees it at each of the stops on the way."""
        feature_map = self._recipe.space.fit(shots.features, shots.labels)
        move = self._move(shots, feature_map)
        plan, choice = self._recipe.plan(shots), self._choice
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
        if shots is self._shots:
            self.training_loss_ = history
        for parameter in move.parameters:
            parameter.requires_grad_(False)
        return model()

    def _finish(self, validation: Shots | None, evidence: Evidence | None) -> None:
        self.epochs_ = self.epochs
        chooses = self.stopping == "held_out" and self.epochs > 0
        if validation is not None:
            if chooses:
                self.epochs_ = self._stop_on(validation)
            trained = self._build(self._shots)
            # The text may have moved, too.
            self._select(
                self._settings(),
                replace(validation, zero_shot=trained.zero_shot(validation.features)),
                trained,
            )
            precision = self._condition(self._shots, trained.precision.keys)
            self._model = replace(trained, precision=precision, choice=self._choice)
            self._calibrate(validation, evidence)
            return
        if self.calibrate and not self._is_silent():
            logits, rows, protocol, nested = self._in_folds(
                self._stops() if chooses else (self.epochs,)
            )
            self._accept_calibration(fit_calibration(logits, self._shots.labels[rows]))
            self._report = self._make_report(logits, rows, protocol, nested)
            self._model = self._build(self._shots)
            return
        self._model = self._build(self._shots)
        if self._is_silent():
            self._accept_calibration(Calibration(slope=self._shipped_slope()))
            self._report = self._novelty = None
            return
        evidence = evidence or self._evidence(self._choice.eta != 0, coarse=False)
        logits, rows, _ = self._untrained_logits(evidence)
        self._accept_calibration(fit_calibration(logits, self._shots.labels[rows]))
        self._report = self._novelty = None

    # Where to stop.

    def _stops(self) -> tuple[int, ...]:
        return tuple(sorted({round(share * self.epochs) for share in STOPS}))

    def _in_folds(self, stops: tuple[int, ...]) -> tuple[Tensor, Tensor, str, Tensor]:
        """Held-out logits (k, c) at the best stop, which becomes `epochs_`, rows and protocol.

        Last come probabilities (k, c) for which the other folds said when to stop.
        """
        shots, folds = self._shots, self._fold_rows(min(self.n_folds, FOLDS))
        seen: dict[int, list[Tensor]] = {stop: [] for stop in stops}
        unlike: dict[int, list[Tensor]] = {stop: [] for stop in stops}
        for rows, held in folds:
            asked = shots.features[held]

            def watch(epoch: int, model: CacheModel, asked: Tensor = asked) -> None:
                seen[epoch].append(model.logits(asked))
                unlike[epoch].append(model.posterior(asked).variance.amin(1))

            self._trained(shots[rows], until=max(stops), watch=watch, stops=stops)
        rows = torch.cat([held for _, held in folds])
        logits = {stop: torch.cat(parts) for stop, parts in seen.items()}
        labels, fold = shots.labels[rows], self._judged(rows)
        losses = _losses(logits, labels)
        self.epochs_ = stops[int(losses.mean(1).argmin())]
        self._novelty = np.full(len(shots), np.nan)
        if self._recipe.precision.uses_noise:
            found = torch.cat(unlike[self.epochs_])
            self._novelty[rows.cpu().numpy()] = found.double().cpu().numpy()
        chosen = best_without(losses, losses.new_zeros(len(stops)), fold)
        nested = cross_fitted(lambda stop, _: logits[stops[stop]], chosen, fold, labels)
        return logits[self.epochs_], rows, folds_protocol(len(folds)), nested

    def _stop_on(self, validation: Shots) -> int:
        """The stop that is best on a validation set."""
        logits: dict[int, Tensor] = {}

        def watch(epoch: int, model: CacheModel) -> None:
            logits[epoch] = model.logits(validation.features)

        stops = self._stops()
        self._trained(self._shots, until=self.epochs, watch=watch, stops=stops)
        return stops[int(_losses(logits, validation.labels).mean(1).argmin())]

    def _held_out_logits(self, evidence: Evidence | None) -> tuple[Tensor, Tensor, str]:
        if not bool(self._shots.with_company().any()):
            return super()._held_out_logits(evidence)
        return self._in_folds((self.epochs_,))[:3]

    @property
    def held_out_novelty_(self) -> NDArray[np.float64]:
        """How unlike all others each shot (n,) is, trained anew without it; NaN if not counted."""
        check_is_fitted(self)
        if self._novelty is None:
            if self._is_silent():
                self._novelty = np.full(len(self._shots), np.nan)
            else:
                self._in_folds((self.epochs_,))
        assert self._novelty is not None
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


def _losses(logits: dict[int, Tensor], labels: Tensor) -> Tensor:
    """What each row says of each stop (v, k): its smoothed NLL at the stop's own temperature."""
    return torch.stack(
        [smoothed_losses(one / fit_temperature(one, labels), labels) for one in logits.values()]
    )
