"""GPCache and GPCache-F (Ding et al., 2024): a Gaussian-process posterior in place of the cache.

    logits = gain · s f W + α · k(f) (K + noise·I)⁻¹ V / variance(f)^η

with κ(x, y) = exp(−β(1 − φ(x)ᵀφ(y))). The paper has gain 1, V = Y, and φ raw or a projection that
was learned from unlabelled images (`GPCacheClassifier.paper`). The defaults differ where it
measured better (docs/defaults.md): V = Y − softmax(gain · s f W), so that far from all shots the
answer falls back to the text, as far as held-out shots found the text trustworthy, with V = 0 for
classes that have no shot; φ whitened; η = 0.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

import torch
from numpy.typing import ArrayLike

from gpcache.errors import ProtocolError
from gpcache.gp import ExactPrecision
from gpcache.gp.feature_maps import Projection
from gpcache.methods.base import State
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.cache.recipe import Likelihood
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.setup import precision_of, trainer_of
from gpcache.methods.cache.trainable import move_classes, move_keys, move_metric
from gpcache.methods.cache.training import Trainer
from gpcache.methods.options import (
    Approximation,
    Regression,
    Selection,
    SelectionRows,
    Space,
    Training,
    Weights,
    Whitened,
)
from gpcache.methods.text_prior import TextPrior
from gpcache.support.checks import one_of, positive, whole

PUBLICATION = (
    "Ding et al., 2024, Calibrated Cache Model for Few-Shot Vision-Language Model Adaptation"
)
# The paper's GPCache: regression on labels in raw space, divided by variance^η.
PAPER: dict[str, Any] = {
    "likelihood": Regression(prior="zero_shot", confidence_scaling=True),
    "kernel_space": "raw",
    "weights": Weights(text=1.0),
    "selection": Selection("validation", criterion="accuracy", strategy="grid"),
}


class GPCacheClassifier(CacheClassifier):
    """Gaussian-process cache on image features; every choice is made on held-out shots.

    Parameters
    ----------
    text_prior : TextPrior, optional
        Text vectors of the classes, matched by name. Without it the shots decide alone.
    likelihood : {"softmax", "gaussian"} or Regression, default="softmax"
        "softmax" treats labels as classes: the posterior mode of a Gaussian process, a linear
        discriminant and the text are added with non-negative weights. "gaussian" regresses on
        the labels, as the paper does; `Regression` says how.
    approximation : {"exact", "grouped", "nystrom", "fourier", "class_mean"} or a value
        The exact posterior, or an approximation: `Grouped(n_groups)`, `Nystrom(n_landmarks)`,
        `Fourier(n_features)`, `ClassMean()`.
    kernel_space : {"whitened", "centred", "raw"} or Whitened
        The space of the kernel; `Whitened(shrinkage)` fixes the shrinkage of the whitening.
    projection : callable or array of shape (d, d), optional
        The similarity projection, applied first: a matrix P means normalise(P f + f).
    beta, tau : float or "auto"
        Sharpness of the kernel, and variance of the prior (softmax).
    weights : "auto" or Weights
        Weights of cache, text and discriminant.
    selection : {"auto", "loo", "folds", "validation"} or Selection
        Rows to choose hyper-parameters on; `Selection` also sets criterion, strategy and folds.
    device, dtype : "auto" or torch's
        "auto": a GPU in float32 if there is one, else the CPU in float64.
    random_state : int
        Seed of folds, groups, landmarks and frequencies.

    Attributes
    ----------
    alpha_, gain_, discriminant_ : float
        The weights in use: of the cache, the text and the discriminant.
    beta_, tau_, shrinkage_, noise_, eta_, temperature_ : float
        The other hyper-parameters in use.
    label_noise_ : float
        Estimated share of wrong labels among the shots. Where it matters, each shot counts as
        much as its label is believed.
    loo_ : HeldOutReport
        Held-out logits, accuracy, NLL and ECE of the shots, and how they were held out.
    search_ : dict of arrays
        Every setting that was tried, the choice first; `at_edge` marks those at a limit of the
        search.
    fitted_ : Fitted
        The fitted value: shots, model, calibration.
    classes_ : array of shape (n_classes,)
        Class names in sorted order.
    """

    publication = PUBLICATION
    _likelihoods = ("softmax", "gaussian")

    def __init__(
        self,
        *,
        text_prior: TextPrior | None = None,
        likelihood: Likelihood | Regression = "softmax",
        approximation: Approximation = "exact",
        kernel_space: Space | Whitened = "whitened",
        projection: Projection | ArrayLike | None = None,
        beta: float | Auto = "auto",
        tau: float | Auto = "auto",
        weights: Auto | Weights = "auto",
        selection: SelectionRows | Selection = "auto",
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        random_state: int = 0,
    ) -> None:
        self.text_prior = text_prior
        self.likelihood = likelihood
        self.approximation = approximation
        self.kernel_space = kernel_space
        self.projection = projection
        self.beta = beta
        self.tau = tau
        self.weights = weights
        self.selection = selection
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    @classmethod
    def paper(cls, text_prior: TextPrior | None = None, **options: Any) -> Self:
        """The paper to the letter: raw space, labels as targets, η on, validation accuracy."""
        return cls.from_options(text_prior=text_prior, **(PAPER | options))

    @classmethod
    def _saved_options(cls, state: State) -> dict[str, Any]:
        # Models of version 0.1 know regression alone, and do not say so.
        return {"likelihood": "gaussian"} | super()._saved_options(state)


class PaperGPCacheClassifier(CacheClassifier):
    """GPCache as it was published: regression on labels in raw space, divided by variance^η.

    A validation set chooses if one is given to `fit`, else leave-one-out in closed form.
    Parameters and attributes are those of `GPCacheClassifier`; None takes what the paper has.
    `GPCacheClassifier.paper` is the same with a validation set required.
    """

    publication = PUBLICATION
    _presets: ClassVar[dict[str, Any]] = PAPER | {
        "selection": Selection(criterion="accuracy", strategy="grid")
    }

    def __init__(
        self,
        *,
        text_prior: TextPrior | None = None,
        likelihood: Regression | None = None,
        approximation: Approximation = "exact",
        kernel_space: Space | Whitened = "raw",
        projection: Projection | ArrayLike | None = None,
        beta: float | Auto = "auto",
        weights: Auto | Weights | None = None,
        selection: SelectionRows | Selection | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        random_state: int = 0,
    ) -> None:
        self.text_prior = text_prior
        self.likelihood = likelihood
        self.approximation = approximation
        self.kernel_space = kernel_space
        self.projection = projection
        self.beta = beta
        self.weights = weights
        self.selection = selection
        self.device = device
        self.dtype = dtype
        self.random_state = random_state


class GPCacheFClassifier(CacheClassifier):
    """GPCache, trained on its own shots and, if given, on augmented views of them.

    Parameters
    ----------
    training : Training, optional
        What is trained, and how.
    likelihood : Regression, optional
        The regression that is trained.
    text_prior, approximation, kernel_space, projection, beta, weights, selection, device, dtype, \
random_state
        As in `GPCacheClassifier`.

    Attributes
    ----------
    epochs_ : int
        After how many epochs training stopped; 0 is the untrained model.
    training_loss_ : list of float
        Mean loss of each of these epochs.
    """

    publication = PUBLICATION
    trains = True
    _presets: ClassVar[dict[str, Any]] = {"training": Training(), "likelihood": Regression()}
    learns_from_views = True

    def __init__(
        self,
        *,
        text_prior: TextPrior | None = None,
        training: Training | None = None,
        likelihood: Regression | None = None,
        approximation: Approximation = "exact",
        kernel_space: Space | Whitened = "whitened",
        projection: Projection | ArrayLike | None = None,
        beta: float | Auto = "auto",
        weights: Auto | Weights = "auto",
        selection: SelectionRows | Selection = "auto",
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        random_state: int = 0,
    ) -> None:
        self.text_prior = text_prior
        self.training = training
        self.likelihood = likelihood
        self.approximation = approximation
        self.kernel_space = kernel_space
        self.projection = projection
        self.beta = beta
        self.weights = weights
        self.selection = selection
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    @classmethod
    def paper(cls, text_prior: TextPrior | None = None, **options: Any) -> Self:
        """The paper to the letter: the preset of GPCache, all keys trained, the last epoch."""
        training = Training(learning_rate=1e-3, epsilon=1e-4, stopping="last")
        preset = PAPER | {"training": training}
        return cls.from_options(text_prior=text_prior, **(preset | options))

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
        views: ArrayLike | None = None,
    ) -> Self:
        """As `GPCacheClassifier.fit`; augmented `views` (n, v, d) of the shots are queries too."""
        return self._fit(X, y, validation, views)

    def _trainer(self) -> Trainer:
        training = self._given()["training"]
        one_of("trains", training.trains, ("keys", "metric", "classes"), owner=self)
        one_of("loss", training.loss, ("plain", "leave_one_out"), owner=self)
        whole("rank", training.rank, least=1)
        positive("pull", training.pull, owner=self, allow_zero=True, auto=False)
        leaves_out = training.loss == "leave_one_out"
        if leaves_out and precision_of(self._options(), self)[0] is not ExactPrecision:
            raise ProtocolError(
                "loss='leave_one_out' has a closed form for the exact posterior alone: "
                "use approximation='exact' or loss='plain'."
            )
        move: Any = move_keys
        if training.trains == "metric":
            move = partial(move_metric, rank=training.rank, seed=int(self.random_state))
        elif training.trains == "classes":
            scale = 1.0 if self.text_prior is None else self.text_prior.logit_scale
            move = partial(move_classes, logit_scale=scale)
        return trainer_of(
            training,
            self,
            move=move,
            leaves_out=leaves_out,
            pull=float(training.pull),
            precision_gradient=training.precision_gradient,
            moves_text=training.trains == "classes",
        )
