"""Methods that train a small head on features by cross-entropy: what TaskRes and its kin share.

Nothing is chosen: the settings follow the papers, the last epoch counts. The temperature, and what
the model says of its own shots, come from training anew in folds of them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.errors import DataError
from gpcache.methods.base import FeatureClassifier
from gpcache.methods.cache.choosing import folds_protocol
from gpcache.methods.cache.model import HeldOutReport
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.training import Training, train
from gpcache.metrics import Calibration, fit_calibration
from gpcache.support.checks import is_auto, positive, whole

Parameters = list[Tensor]


class TrainedHeadClassifier(FeatureClassifier):
    """Base of trained heads; a subclass names its parameters and what it makes of them."""

    _optimiser: ClassVar[Literal["adamw", "adam", "sgd"]] = "adamw"
    #: Whether the parameters have a row for each class.
    _per_class: ClassVar[bool] = False
    learns_from_views: ClassVar[bool] = True

    def __init__(
        self,
        *,
        text_prior: TextPrior | None = None,
        epochs: int = 100,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        calibrate: bool = True,
        n_folds: int = 4,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        random_state: int = 0,
    ) -> None:
        self.text_prior = text_prior
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.calibrate = calibrate
        self.n_folds = n_folds
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    # What a subclass fills in.

    def _start(self, text: Tensor) -> Parameters:
        """What is trained, at step 0, for unit text vectors (c, d)."""
        raise AssertionError("a trained head names its parameters")

    def _head(self, parameters: Parameters, features: Tensor, text: Tensor) -> Tensor:
        """Logits (m, c) of rows (m, d), from unit text vectors (c, d)."""
        raise AssertionError("a trained head says what it makes of its parameters")

    def _penalty(self, parameters: Parameters, text: Tensor, shots: Shots) -> Tensor | None:
        """What is added to the loss."""
        return None

    def _prepare(self) -> None:
        """What is settled before training, once for the shots and their folds."""

    # What all have.

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
        views: ArrayLike | None = None,
    ) -> Self:
        """Train on shots X (n, d) with labels y (n,), and on augmented views (n, v, d) of them.

        A `validation` set, if given, sets the temperature and nothing else.
        """
        self._check_options()
        features, labels = self._read_training(X, y)
        if self.text_prior is None:
            raise DataError(f"{type(self).__name__} needs text: give it text_prior=TextPrior(…).")
        self._read_text()
        numbers = self._label_numbers(labels)
        zero_shot = self.text_prior.logit_scale * features @ self._unit_text.mT
        classes = len(self.classes_)
        shots = Shots.make(features, numbers, zero_shot, classes=classes, residual=False)
        if views is not None:
            shots = shots.with_views(self._read_views(views, features))
        self._prepare()
        self.parameters_, self.training_loss_ = self._trained(shots)
        self._calibrate(shots, validation)
        return self

    def restored(self, parameters: Parameters) -> None:
        """Take parameters that were trained before."""
        self._read_text()
        self.parameters_ = parameters

    def _read_text(self) -> None:
        scaled = self._text_vectors()
        assert scaled is not None
        assert self.text_prior is not None
        self._unit_text = scaled / self.text_prior.logit_scale

    def _check_options(self) -> None:
        if not is_auto(self.epochs):
            whole("epochs", self.epochs, least=0)
        whole("batch_size", self.batch_size, least=1)
        whole("n_folds", self.n_folds, least=2)
        whole("random_state", self.random_state, least=0)
        positive("learning_rate", self.learning_rate, owner=self, auto=False)
        positive("weight_decay", self.weight_decay, owner=self, allow_zero=True, auto=False)

    def _trained(self, shots: Shots) -> tuple[Parameters, list[float]]:
        text = self._unit_text
        parameters = [start.clone().requires_grad_() for start in self._start(text)]
        queries, labels = shots.samples()
        penalised = self._penalty(parameters, text, shots) is not None
        if self._per_class:
            # Of a class without a shot every image says that it is not it: it keeps its text.
            present = (~shots.absent).to(text)[:, None]
            for parameter in parameters:
                parameter.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: gradient * present
                )

        def logits(rows: Tensor) -> Tensor:
            return self._head(parameters, queries[rows], text)

        def penalty() -> Tensor:
            found = self._penalty(parameters, text, shots)
            assert found is not None
            return found

        history = train(
            parameters,
            logits,
            labels,
            self._training(),
            penalty=penalty if penalised else None,
            description=type(self).__name__,
        )
        return [parameter.detach() for parameter in parameters], history

    def _training(self) -> Training:
        return Training(
            self.epochs,
            self.batch_size,
            self.learning_rate,
            self.weight_decay,
            seed=int(self.random_state),
            optimiser=self._optimiser,
        )

    def _calibrate(self, shots: Shots, validation: Any) -> None:
        self._accept_calibration(Calibration())
        protocol = "none: most classes have one shot" if self.calibrate else "none: not asked for"
        if validation is not None:
            features, labels = self._read_validation(validation)
            self._accept_calibration(fit_calibration(self._logits(features), labels))
            self.loo_ = HeldOutReport.empty(len(shots), shots.n_classes, "none: not asked for")
            return
        if not self.calibrate or not shots.can_be_held_out():
            self.loo_ = HeldOutReport.empty(len(shots), shots.n_classes, protocol)
            return
        fold = shots.folds(self.n_folds, int(self.random_state))
        numbers = torch.unique(fold[fold >= 0]).tolist()
        found = []
        for k in numbers:
            parameters, _ = self._trained(shots[fold != k])
            with torch.no_grad():
                found.append(self._head(parameters, shots.features[fold == k], self._unit_text))
        held = torch.cat([torch.nonzero(fold == k).flatten() for k in numbers])
        logits, labels = torch.cat(found), shots.labels[held]
        self._accept_calibration(fit_calibration(logits, labels))
        self.loo_ = HeldOutReport.of(
            logits, labels, held, fold[held], len(shots), folds_protocol(len(numbers))
        )

    def _logits(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            return self._head(self.parameters_, features, self._unit_text)
