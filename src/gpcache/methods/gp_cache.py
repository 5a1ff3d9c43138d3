"""GPCache and GPCache-F (Ding et al., 2024): a Gaussian-process posterior in place of the cache.

    logits = gain · s f W + α · k(f) (K + noise·I)⁻¹ V / variance(f)^η

with κ(x, y) = exp(−β(1 − φ(x)ᵀφ(y))). In the paper gain = 1, V = Y, and φ is the identity or a
projection that was learned from unlabelled images (`GPCacheClassifier.paper`). The defaults differ
where measurements were better (docs/concepts/choices.md): φ whitens, η = 0, and
V = Y − softmax(gain · s f W), so that far from all shots the answer falls back to the text. V = 0
for classes without shots.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    "approximation": "exact",
    "kernel_space": "raw",
    "weights": Weights(text=1.0),
    "selection": Selection("validation", criterion="accuracy", strategy="grid"),
}


@dataclass(kw_only=True, eq=False, repr=False)
class GPCacheClassifier(CacheClassifier):
    """Gaussian-process cache on image features; every choice is made on held-out shots.

    Parameters
    ----------
    text_prior : TextPrior, optional
        Text vectors of the classes, matched by name. Without it, only the shots decide.
    likelihood : {"softmax", "gaussian"} or Regression, default="softmax"
        "softmax" treats labels as classes: the posterior mode of a Gaussian process, a linear
        discriminant and the text are added with non-negative weights. "gaussian" regresses on the
        labels, as the paper does; `Regression` sets its options.
    approximation : {"auto", "exact", "explicit", "grouped", "nystrom", "fourier", "class_mean"} \
or a value, default="auto"
        The exact posterior, or an approximation: `Explicit(n_features)`, `Grouped(n_groups)`,
        `Nystrom(n_landmarks)`, `Fourier(n_features)`, `ClassMean()`. "auto" is exact up to 8,000
        shots, if memory allows, and takes explicit features beyond: any number of shots, read in
        batches and not kept. `fitted_.approximation` says which one was taken.
    kernel_space : {"whitened", "centred", "raw"} or Whitened, default="whitened"
        The space of the kernel; `Whitened(shrinkage)` fixes the shrinkage of the whitening.
    projection : callable or array of shape (d, d), optional
        Similarity projection that is applied first: a matrix P means normalise(P f + f).
    beta : float or "auto", default="auto"
        Sharpness of the kernel.
    tau : float or "auto", default="auto"
        Variance of the prior (softmax).
    weights : "auto" or Weights, default="auto"
        Weights of cache, text and discriminant.
    selection : {"auto", "loo", "folds", "validation"} or Selection, default="auto"
        Rows to choose hyper-parameters on; `Selection` also sets criterion, strategy and folds.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="auto"
        "auto" is float32 on a GPU and float64 on a CPU.
    random_state : int, default=0
        Seed of folds, groups, landmarks and frequencies.

    Attributes
    ----------
    alpha_, gain_, discriminant_ : float
        Weights in use: of the cache, the text and the discriminant.
    beta_, tau_, shrinkage_, noise_, eta_, temperature_ : float
        The other hyper-parameters in use.
    label_noise_ : float
        Estimated share of wrong labels among the shots. From 2 % on, a shot whose label looks wrong
        gets less weight.
    loo_ : HeldOutReport
        Held-out logits, accuracy, NLL and ECE of the shots, and how they were held out.
    search_ : dict of arrays
        Every setting that was tried, the choice first; `at_edge` marks those at a limit of the
        search.
    fitted_ : Fitted
        The fitted value: shots, model, calibration.
    classes_ : array of shape (n_classes,)
        Class names in sorted order.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.model_selection import train_test_split
    >>> from gpcache import GPCacheClassifier
    >>> X, y = load_digits(return_X_y=True)  # pixels here; usually features of an encoder
    >>> X, X_test, y, y_test = train_test_split(X, y, train_size=160, stratify=y, random_state=0)
    >>> model = GPCacheClassifier().fit(X, y)
    >>> round(model.loo_.accuracy, 2), round(model.score(X_test, y_test), 2)
    (0.93, 0.93)
    """

    text_prior: TextPrior | None = None
    likelihood: Likelihood | Regression = "softmax"
    approximation: Approximation = "auto"
    kernel_space: Space | Whitened = "whitened"
    projection: Projection | ArrayLike | None = None
    beta: float | Auto = "auto"
    tau: float | Auto = "auto"
    weights: Auto | Weights = "auto"
    selection: SelectionRows | Selection = "auto"
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = PUBLICATION
    _likelihoods = ("softmax", "gaussian")

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
        views: ArrayLike | None = None,
    ) -> Self:
        """Fit the model on shots.

        Hyper-parameters given as "auto" are chosen on held-out shots, or on the validation set if
        there is one. Do not pass test rows here.

        Parameters
        ----------
        X : array of shape (n, d)
            Features of the shots. A mapped file (`numpy.memmap`) and `StoredRows` of a feature
            store are read in batches where shots are many.
        y : array of shape (n,)
            Labels of the shots.
        sample_weight : array of shape (n,), optional
            How much each shot counts: 2 is a shot that was given twice. A shot of weight 0 is left
            out, and later row numbers count the other shots only. It needs the softmax likelihood,
            and no explicit features. Novelty does not depend on it.
        validation : tuple of arrays, optional
            Rows (X, y) to choose hyper-parameters on.
        views : array of shape (n, v, d), optional
            Refused: this method does not train. Pass the mean of the views of an image in X.

        Returns
        -------
        GPCacheClassifier
            The fitted estimator.

        Raises
        ------
        ProtocolError
            If ``selection="validation"`` and there is no validation set.
        DataError
            If the input cannot be used.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.datasets import load_digits
        >>> from gpcache import GPCacheClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> model = GPCacheClassifier().fit(X[:60], y[:60], sample_weight=np.full(60, 0.5))
        >>> model.predict(X[60:63]).tolist()
        [3, 7, 3]
        """
        return self._fit(X, y, sample_weight, validation, views)

    @classmethod
    def paper(cls, text_prior: TextPrior | None = None, **options: Any) -> Self:
        """Make the estimator with the settings of the paper.

        These are raw features, labels as targets, confidence scaling, and hyper-parameters with the
        best accuracy on a validation set.

        Parameters
        ----------
        text_prior : TextPrior, optional
            Text vectors of the classes.
        **options
            Further options by their flat names.

        Returns
        -------
        GPCacheClassifier
            The estimator; `fit` needs ``validation=(X_val, y_val)``.

        Examples
        --------
        >>> from gpcache import GPCacheClassifier
        >>> GPCacheClassifier.paper().kernel_space
        'raw'
        """
        return cls.from_options(text_prior=text_prior, **(PAPER | options))

    @classmethod
    def _saved_options(cls, state: State) -> dict[str, Any]:
        # Models of version 0.1 are always regressions, and their files do not say so.
        return {"likelihood": "gaussian"} | super()._saved_options(state)


@dataclass(kw_only=True, eq=False, repr=False)
class PaperGPCacheClassifier(CacheClassifier):
    """GPCache as published: regression on labels with raw features and confidence scaling.

    Hyper-parameters are chosen on the validation set if `fit` gets one, otherwise by leave-one-out
    in closed form. None means the value of the paper. `GPCacheClassifier.paper` is the same
    but requires a validation set.

    Parameters
    ----------
    text_prior : TextPrior, optional
        Text vectors of the classes.
    likelihood : Regression, optional
        Options of the regression.
    approximation : {"exact", "grouped", "nystrom", "fourier", "class_mean"} or a value
        As in `GPCacheClassifier`.
    kernel_space : {"whitened", "centred", "raw"} or Whitened, default="raw"
        The space of the kernel.
    projection : callable or array of shape (d, d), optional
        Similarity projection that is applied first.
    beta : float or "auto", default="auto"
        Sharpness of the kernel.
    weights : "auto" or Weights, optional
        Weights of cache and text.
    selection : {"auto", "loo", "folds", "validation"} or Selection, optional
        Rows to choose hyper-parameters on.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="auto"
        "auto" is float32 on a GPU and float64 on a CPU.
    random_state : int, default=0
        Seed of groups, landmarks and frequencies.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import PaperGPCacheClassifier
    >>> X, y = np.vstack([np.eye(3) + 0.1, np.eye(3) + 0.2]), ["cat", "dog", "fox"] * 2
    >>> PaperGPCacheClassifier().fit(X, y).predict(np.eye(3)).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    likelihood: Regression | None = None
    approximation: Approximation = "exact"
    kernel_space: Space | Whitened = "raw"
    projection: Projection | ArrayLike | None = None
    beta: float | Auto = "auto"
    weights: Auto | Weights | None = None
    selection: SelectionRows | Selection | None = None
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = PUBLICATION
    _presets: ClassVar[dict[str, Any]] = PAPER | {
        "selection": Selection(criterion="accuracy", strategy="grid")
    }


@dataclass(kw_only=True, eq=False, repr=False)
class GPCacheFClassifier(CacheClassifier):
    """GPCache whose keys are trained on the shots and, if given, on augmented views of them.

    Parameters
    ----------
    text_prior : TextPrior, optional
        Text vectors of the classes.
    training : Training, optional
        What is trained, and how.
    likelihood : Regression, optional
        The regression that is trained.
    approximation : {"exact", "grouped", "nystrom", "fourier", "class_mean"} or a value
        As in `GPCacheClassifier`.
    kernel_space : {"whitened", "centred", "raw"} or Whitened, default="whitened"
        The space of the kernel.
    projection : callable or array of shape (d, d), optional
        Similarity projection that is applied first.
    beta : float or "auto", default="auto"
        Sharpness of the kernel.
    weights : "auto" or Weights, default="auto"
        Weights of cache and text.
    selection : {"auto", "loo", "folds", "validation"} or Selection, default="auto"
        Rows to choose hyper-parameters on.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="auto"
        "auto" is float32 on a GPU and float64 on a CPU.
    random_state : int, default=0
        Seed of folds, groups, landmarks and batches.

    Attributes
    ----------
    epochs_ : int
        Number of epochs after which training stopped; 0 is the untrained model.
    training_loss_ : list of float
        Mean loss of each of these epochs.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import GPCacheFClassifier
    >>> from gpcache.methods import Training
    >>> X, y = np.vstack([np.eye(3) + 0.1, np.eye(3) + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = GPCacheFClassifier(training=Training(epochs=2, calibrate=False)).fit(X, y)
    >>> model.predict(np.eye(3)).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    training: Training | None = None
    likelihood: Regression | None = None
    approximation: Approximation = "exact"
    kernel_space: Space | Whitened = "whitened"
    projection: Projection | ArrayLike | None = None
    beta: float | Auto = "auto"
    weights: Auto | Weights = "auto"
    selection: SelectionRows | Selection = "auto"
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = PUBLICATION
    trains = True
    _presets: ClassVar[dict[str, Any]] = {"training": Training(), "likelihood": Regression()}
    learns_from_views = True

    @classmethod
    def paper(cls, text_prior: TextPrior | None = None, **options: Any) -> Self:
        """Make the estimator with the settings of the paper: every key trained, the last epoch.

        Parameters
        ----------
        text_prior : TextPrior, optional
            Text vectors of the classes.
        **options
            Further options by their flat names.

        Returns
        -------
        GPCacheFClassifier
            The estimator; `fit` needs ``validation=(X_val, y_val)``.

        Examples
        --------
        >>> from gpcache import GPCacheFClassifier
        >>> GPCacheFClassifier.paper().training.stopping
        'last'
        """
        training = Training(learning_rate=1e-3, epsilon=1e-4, stopping="last")
        preset = PAPER | {"training": training}
        return cls.from_options(text_prior=text_prior, **(preset | options))

    def _trainer(self) -> Trainer:
        training = self._given()["training"]
        one_of("trains", training.trains, ("keys", "metric", "classes"), owner=self)
        one_of("loss", training.loss, ("plain", "leave_one_out"), owner=self)
        whole("rank", training.rank, least=1)
        positive("pull", training.pull, owner=self, allow_zero=True, auto=False)
        leaves_out = training.loss == "leave_one_out"
        if leaves_out and precision_of(self._options(), self)[0] is not ExactPrecision:
            raise ProtocolError(
                "loss='leave_one_out' needs the exact posterior: "
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
