"""The base class of methods that train a small head on features by cross-entropy, such as TaskRes.

No hyper-parameter is chosen: the settings follow the papers, and the last epoch counts. The
temperature and the held-out figures come from cross-validation: the head is trained in each fold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.errors import DataError
from gpcache.methods.base import FeatureClassifier, State, add_tensors
from gpcache.methods.cache.held_out import HeldOutLogits, HeldOutReport, folds_protocol
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots, fold_rows
from gpcache.methods.training import Schedule, train
from gpcache.metrics import Calibration, fit_calibration
from gpcache.support.checks import is_auto, positive, whole
from gpcache.support.devices import explained_memory_errors

Parameters = list[Tensor]


class TrainedHeadClassifier(FeatureClassifier):
    """Base of trained heads; a subclass defines its parameters and the logits that they give."""

    #: Options of every head, which each constructor lists.
    epochs: int | Auto
    batch_size: int
    learning_rate: float
    weight_decay: float
    calibrate: bool
    n_folds: int
    random_state: int

    _optimiser: ClassVar[Literal["adamw", "adam", "sgd"]] = "adamw"
    #: Whether the parameters have a row for each class.
    _per_class: ClassVar[bool] = False
    learns_from_views: ClassVar[bool] = True
    #: Epochs at WARM_UP_RATE before the cosine, and the epsilon of Adam.
    _warm_up_epochs: ClassVar[int] = 0
    _epsilon: ClassVar[float] = 1e-4

    # For subclasses to define.

    def _start(self) -> Parameters:
        """The parameters at step 0."""
        raise AssertionError("a trained head defines its parameters")

    def _head(self, parameters: Parameters, features: Tensor) -> Tensor:
        """Logits (m, c) of rows (m, d)."""
        raise AssertionError("a trained head defines its logits")

    def _penalty(self, parameters: Parameters, shots: Shots) -> Tensor | float:
        """A penalty that is added to the loss."""
        return 0.0

    def _automatic_epochs(self, shots: Shots) -> int:
        """The authors' number of epochs for these shots."""
        raise DataError(f"epochs of {type(self).__name__} must be a whole number, got 'auto'.")

    def _prepare(self) -> None:
        """Prepare the training, once for the shots and their folds."""

    def _trained_parts(self, shots: Shots) -> tuple[Parameters, Callable[[], Parameters]]:
        """What is trained, and a function that makes the parameters of the head from it."""
        trained = [start.clone().requires_grad_() for start in self._start()]
        if self._per_class:
            # Every image is a negative example of a class without shots: it keeps its text instead.
            present = (~shots.absent).to(self._unit_text)[:, None]
            for parameter in trained:
                parameter.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: gradient * present
                )
        return trained, lambda: trained

    # Shared by all heads.

    @explained_memory_errors("A fit", "Use fewer shots.")
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
        views: ArrayLike | None = None,
    ) -> Self:
        """Train on shots, and on augmented views of them if given.

        Parameters
        ----------
        X : array of shape (n, d)
            Features of the shots.
        y : array of shape (n,)
            Labels of the shots.
        validation : tuple of arrays, optional
            Rows (X, y) to fit the temperature on; nothing else is chosen on them.
        views : array of shape (n, v, d), optional
            Augmented views of the shots.

        Returns
        -------
        TrainedHeadClassifier
            The fitted estimator.

        Raises
        ------
        DataError
            If there is no text.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache.methods import TaskResClassifier, TextPrior
        >>> prior = TextPrior(["cat", "dog"], np.eye(2))
        >>> model = TaskResClassifier(text_prior=prior, epochs=2, calibrate=False)
        >>> model.fit(np.eye(2), ["cat", "dog"]).predict(np.eye(2)).tolist()
        ['cat', 'dog']
        """
        self._check_options()
        features, labels = self._read_training(X, y)
        if self.text_prior is None:
            raise DataError(f"{type(self).__name__} needs text: give it text_prior=TextPrior(…).")
        self._read_text()
        numbers = self._label_numbers(labels)
        zero_shot = self._logit_scale * features @ self._unit_text.mT
        shots = Shots(features, numbers, len(self.classes_), zero_shot)
        if views is not None:
            shots = replace(shots, views=self._read_views(views, features))
        self._prepare()
        self.parameters_, self.training_loss_ = self._trained(shots)
        self._calibrate(shots, validation)
        return self

    def _take(self, parameters: Parameters) -> None:
        """Set the trained parameters."""
        self.parameters_ = parameters

    def _read_text(self) -> None:
        assert self.text_prior is not None
        self._unit_text, self._logit_scale = self._unit_text_and_scale()
        self._text_length = self.text_prior.length

    def _check_options(self) -> None:
        if not is_auto(self.epochs):
            whole("epochs", self.epochs, least=0)
        whole("batch_size", self.batch_size, least=1)
        whole("n_folds", self.n_folds, least=2)
        whole("random_state", self.random_state, least=0)
        positive("learning_rate", self.learning_rate, owner=self, auto=False)
        positive("weight_decay", self.weight_decay, owner=self, allow_zero=True, auto=False)

    def _trained(self, shots: Shots) -> tuple[Parameters, list[float]]:
        trained, parameters = self._trained_parts(shots)
        queries, labels = shots.samples()
        history = train(
            trained,
            lambda rows: self._head(parameters(), queries[rows]),
            labels,
            self._training(shots),
            penalty=lambda: self._penalty(trained, shots),
            description=type(self).__name__,
        )
        with torch.no_grad():
            return [one.detach() for one in parameters()], history

    def _training(self, shots: Shots) -> Schedule:
        return Schedule(
            self._automatic_epochs(shots) if is_auto(self.epochs) else int(self.epochs),
            self.batch_size,
            self.learning_rate,
            self.weight_decay,
            self._epsilon,
            seed=int(self.random_state),
            optimiser=self._optimiser,
            warm_up_epochs=self._warm_up_epochs,
        )

    def _calibrate(self, shots: Shots, validation: Any) -> None:
        self._accept_calibration(Calibration())
        asked = self.calibrate and validation is None
        reason = "none: most classes have one shot" if asked else "none: not requested"
        self.loo_ = HeldOutReport.empty(len(shots), shots.n_classes, reason)
        if validation is not None:
            features, labels = self._read_validation(validation)
            self._accept_calibration(fit_calibration(self._logits(features), labels))
        elif asked and shots.has_pairs:
            folds = fold_rows(shots.folds(self.n_folds, int(self.random_state)))
            logits = []
            for train_rows, held in folds:
                parameters, _ = self._trained(shots[train_rows])
                with torch.no_grad():
                    logits.append(self._head(parameters, shots.features[held]))
            rows = torch.cat([held for _, held in folds])
            held_out = HeldOutLogits(torch.cat(logits), rows, folds_protocol(len(folds)))
            self._accept_calibration(fit_calibration(held_out.logits, shots.labels[rows]))
            self.loo_ = HeldOutReport.of_shots(shots, held_out, int(self.random_state))

    def _write_state(self, state: State) -> None:
        named = {f"parameter{i}": one for i, one in enumerate(self.parameters_)}
        add_tensors(state.arrays, **named)
        state.settings["training_loss"] = self.training_loss_
        self.loo_.write({}, *state)

    def _read_state(self, state: State) -> None:
        settings, arrays = state
        self._read_text()
        numbered = (self._tensor(arrays, f"parameter{i}") for i in range(len(arrays)))
        self._take([one for one in numbered if one is not None])
        self.training_loss_ = settings["training_loss"]
        self.loo_, _ = HeldOutReport.read(settings, arrays)

    def _logits(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            return self._head(self.parameters_, features)
