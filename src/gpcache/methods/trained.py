"""Keys trained by cross-entropy on the shots: what Tip-Adapter-F and GPCache-F share."""

from __future__ import annotations

from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.gp.feature_maps import FeatureMap
from gpcache.methods.arguments import positive, whole
from gpcache.methods.cache import CacheClassifier
from gpcache.methods.model import CacheModel
from gpcache.methods.shots import Evidence, Shots
from gpcache.methods.training import Training, train
from gpcache.probability import fit_temperature
from gpcache.search import Choice, Settings


class TrainedKeysMixin(CacheClassifier):
    """Start from the training-free model, then move its keys; text, labels and map stay.

    Hyper-parameters are those of the training-free model. With a validation set they are searched
    again once the keys are trained. Without one, the temperature comes from training anew in each
    fold of the shots; `calibrate=False` saves that time, takes the temperature of the training-free
    model, and computes `loo_` only when it is asked for.
    """

    _trains_keys = True
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
        calibrate: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
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

    def _start(self, shots: Shots, feature_map: FeatureMap) -> Tensor:
        """What is trained, at step 0."""
        return feature_map(shots.features)

    def _from_parameter(self, parameter: Tensor, feature_map: FeatureMap) -> Tensor:
        """Keys in the kernel's space from what is trained."""
        return parameter

    def _keys(self, shots: Shots, feature_map: FeatureMap, choice: Choice) -> Tensor:
        parameter = self._start(shots, feature_map).clone().requires_grad_()
        queries, labels = shots.features, shots.labels
        if shots.views is not None:
            width = queries.shape[1]
            queries = torch.cat([queries[:, None], shots.views], 1).reshape(-1, width)
            labels = labels.repeat_interleave(1 + shots.views.shape[1])
        zero_shot = None if self._text is None else queries @ self._text.mT
        mapped = feature_map(queries)
        plan = self._recipe.plan(shots)

        def logits(rows: Tensor) -> Tensor:
            precision = self._recipe.precision(
                plan,
                self._from_parameter(parameter, feature_map),
                shots.values,
                beta=choice.beta,
                noise=choice.noise,
                precision_gradient=self.precision_gradient,
            )
            model = CacheModel(feature_map, precision, self._text, choice)
            text = None if zero_shot is None else zero_shot[rows]
            return model.fused(text, *precision.posterior(mapped[rows]))

        history = train(
            [parameter], logits, labels, self._training(), description=type(self).__name__
        )
        if shots is self._shots:
            self.training_loss_ = history
        with torch.no_grad():
            return self._from_parameter(parameter.detach(), feature_map)

    def _calibrate(self, validation: Shots | None, evidence: Evidence | None) -> None:
        if self.calibrate or validation is not None or self._is_silent():
            super()._calibrate(validation, evidence)
            return
        evidence = evidence or self._evidence(self._choice.eta != 0, coarse=False)
        logits, rows, _ = self._untrained_logits(evidence)
        self.temperature_ = fit_temperature(logits, self._shots.labels[rows])
        self._report = self._novelty = None

    def _training(self) -> Training:
        return Training(
            self.epochs,
            self.batch_size,
            self.learning_rate,
            self.weight_decay,
            seed=int(self.random_state),
        )

    def _settings(self) -> Settings:
        whole("epochs", self.epochs, least=0)
        whole("batch_size", self.batch_size, least=1)
        positive("learning_rate", self.learning_rate, owner=self, auto=False)
        positive("weight_decay", self.weight_decay, owner=self, allow_zero=True, auto=False)
        return super()._settings()

    def _make_shots(self, features: Tensor, labels: Tensor) -> Shots:
        shots = super()._make_shots(features, labels)
        # Only the shots themselves have views; validation rows come after them, without.
        views, self._views = getattr(self, "_views", None), None
        return shots if views is None else shots.with_views(self._read_views(views, features))
