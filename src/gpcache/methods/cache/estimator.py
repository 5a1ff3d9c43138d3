"""Cache models: text logits plus a posterior over labelled keys. Everything but the two formulas.

    logits = gain · zero_shot + α · mean / variance^η

A subclass says which precision gives mean and variance, and whether keys are trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpcache.errors import DataError, ProtocolError
from gpcache.gp import GroupedPrecision, Precision
from gpcache.gp.feature_maps import KernelSpace, Projection, projected
from gpcache.gp.kernels import unit_rows
from gpcache.methods.base import FeatureClassifier
from gpcache.methods.cache import softmax
from gpcache.methods.cache.choosing import SelectionMixin
from gpcache.methods.cache.model import CacheModel, Explanation
from gpcache.methods.cache.search import Auto, Choice, Criterion, Defaults, Settings
from gpcache.methods.cache.shots import Evidence, Recipe, Shots
from gpcache.methods.cache.updates import UpdatesMixin
from gpcache.methods.text_prior import TextPrior
from gpcache.support.checks import (
    is_auto,
    label_array,
    one_of,
    positive,
    whole,
)

# The shrinkage of regression where none is asked for.
SHRINKAGE = 4.0

Selection = Literal["auto", "loo", "folds", "validation"]


class CacheClassifier(SelectionMixin, UpdatesMixin, FeatureClassifier):
    """Base of the cache methods; see `GPCacheClassifier` for the options."""

    _defaults = Defaults()

    def __init__(
        self,
        *,
        text_prior: TextPrior | None = None,
        alpha: float | Auto = "auto",
        beta: float | Auto = "auto",
        gain: float | Auto = 1.0,
        kernel_space: Literal["raw", "centred", "whitened"] = "raw",
        shrinkage: float | Auto = 4.0,
        projection: Projection | ArrayLike | None = None,
        criterion: Criterion = "nll",
        selection: Selection = "auto",
        strategy: Literal["adaptive", "grid"] = "adaptive",
        n_folds: int = 8,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        random_state: int = 0,
    ) -> None:
        self.text_prior = text_prior
        self.alpha = alpha
        self.beta = beta
        self.gain = gain
        self.kernel_space = kernel_space
        self.shrinkage = shrinkage
        self.projection = projection
        self.criterion = criterion
        self.selection = selection
        self.strategy = strategy
        self.n_folds = n_folds
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    # What a subclass may change.

    @property
    def _is_softmax(self) -> bool:
        """Whether the likelihood is softmax instead of regression."""
        return False

    def _precision(self) -> tuple[type[Precision], dict[str, Any]]:
        """The precision and the options of its plan."""
        raise AssertionError("a cache method names its precision")

    def _numbers(self) -> dict[str, float | Auto]:
        """The hyper-parameters that this method has, as they were given."""
        return {"alpha": self.alpha, "beta": self.beta, "gain": self.gain}

    def _residual(self) -> bool:
        """Whether the cache regresses on what the text leaves unsaid."""
        return False

    # Fitting.

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Learn from shots X (n, d) with labels y (n,).

        Hyper-parameters given as "auto" are chosen on shots that are held out, or on `validation`
        rows (X, y) if given. The test set has no place here.
        """
        settings = self._settings()
        features, labels = self._read_training(X, y)
        if self.selection == "validation" and validation is None:
            raise ProtocolError(
                f"{type(self).__name__} with selection='validation' chooses on a validation set: "
                "pass fit(X, y, validation=(X_val, y_val)), or use selection='auto'."
            )
        self._text = self._text_vectors()
        self._shots = self._make_shots(features, self._label_numbers(labels))
        self._recipe = Recipe(self._kernel_space(), *self._precision())
        if self._recipe.space.projection is not None:  # else folds would speak of their own rows
            projected(self._recipe.space.projection, features)
        held_out = (
            None if validation is None else self._make_shots(*self._read_validation(validation))
        )
        evidence = self._select(settings, held_out)
        self._finish(held_out, evidence)
        return self

    def _finish(self, validation: Shots | None, evidence: Evidence | None) -> None:
        """The model at the chosen numbers, and its temperature. Trained methods override this."""
        self._model = self._build(self._shots)
        self._calibrate(validation, evidence)

    def _settings(self) -> Settings:
        """The options, checked."""
        numbers: dict[str, float | Auto] = {"noise": "auto", "eta": 0.0}
        numbers.update(self._numbers())
        for name, value in numbers.items():
            if not is_auto(value):
                zero = name in ("eta", "alpha", "gain")
                numbers[name] = positive(name, value, owner=self, allow_zero=zero)
        one_of("criterion", self.criterion, ("nll", "accuracy", "marginal_likelihood"), owner=self)
        one_of("selection", self.selection, ("auto", "loo", "folds", "validation"), owner=self)
        one_of("strategy", self.strategy, ("adaptive", "grid"), owner=self)
        if not is_auto(self.shrinkage):
            positive("shrinkage", self.shrinkage, owner=self)
        whole("n_folds", self.n_folds, least=4)
        whole("random_state", self.random_state, least=0)
        if self.criterion == "marginal_likelihood" and not self._precision()[0].uses_noise:
            raise ProtocolError(
                "A plain kernel cache is no probability model and has no marginal likelihood: "
                "use criterion='nll' or 'accuracy'."
            )
        return Settings(
            **numbers,
            criterion=self.criterion,
            strategy=self.strategy,
            defaults=self._defaults,
            residual=self._residual(),
        )

    def _kernel_space(self) -> KernelSpace:
        one_of("kernel_space", self.kernel_space, ("raw", "centred", "whitened"), owner=self)
        projection = self._read_projection(self.projection)
        shrinkage = SHRINKAGE if self.shrinkage == "auto" else float(self.shrinkage)
        diagonal = softmax.DIAGONALS[0] if self._is_softmax else 0.0
        space = KernelSpace(self.kernel_space, shrinkage, projection, diagonal)
        if self.selection == "loo" and space.sees_labels:
            raise ProtocolError(
                "Leave-one-out would leak: a whitening has seen the label that is left out. "
                "Use selection='folds', which learns it again without the held-out shots."
            )
        if space.sees_labels and not self._shots.can_be_held_out():
            # One shot a class says nothing about the scatter within classes.
            if self._is_softmax:
                return replace(space, name="decorrelated", shrinkage=softmax.ONE_SHOT_SHRINKAGE)
            # Without text nothing else sets the scale of the logits, and how alike the images of a
            # data set are should not: centring takes that out.
            return replace(space, name="centred" if self._text is None else "raw")
        return space

    def _make_shots(self, features: Tensor, labels: Tensor) -> Shots:
        zero_shot = None if self._text is None else features @ self._text.mT
        return Shots.make(
            features, labels, zero_shot, classes=len(self.classes_), residual=self._residual()
        )

    def _build(self, shots: Shots) -> CacheModel:
        """The model of these shots at the chosen numbers."""
        feature_map = self._recipe.space.fit(shots.features, shots.labels)
        precision = self._condition(shots, feature_map(shots.features))
        return CacheModel(feature_map, precision, self._text, self._choice)

    def _condition(self, shots: Shots, keys: Tensor, choice: Choice | None = None) -> Precision:
        """The posterior of these shots, with keys in the kernel's space, at the chosen numbers."""
        choice = self._choice if choice is None else choice
        return self._recipe.precision(
            self._recipe.plan(shots), keys, shots.values, beta=choice.beta, noise=choice.noise
        )

    # Answers.

    def _logits(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            return self._model.logits(features)

    def posterior(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean (m, c) and variance of the cache: (m,), or (m, g) when classes are grouped."""
        features = self._read_queries(X)
        with torch.no_grad():
            mean, variance = self._model.posterior(features)
        if not isinstance(self._model.precision, GroupedPrecision):
            variance = variance[:, 0]
        return mean.double().cpu().numpy(), variance.double().cpu().numpy()

    def novelty(self, X: ArrayLike, *, quick: bool = False) -> NDArray[np.float64]:
        """How unlike all shots each row (m,) is, from 0 to 1: the variance of the posterior.

        Compare it with `held_out_novelty_`, which is what unseen rows of known classes have.
        `quick` prepares, for thousands of shots and once, what answers within 1 % of the variance
        without n² operations a row, where the shots allow it.
        """
        features = self._read_queries(X)
        with torch.no_grad():
            variance = self._model.variance(features, quick=quick)
        return variance.amin(1).double().cpu().numpy()

    def explain(
        self, X: ArrayLike, *, top: int | None = 5, labels: ArrayLike | None = None
    ) -> Explanation:
        """The shots that speak for and against each row's label (the predicted one by default).

        `top` shots are listed, the loudest first; None lists all.
        """
        if top is not None:
            whole("top", top, least=1)
        features = self._read_queries(X)
        model = self._model
        with torch.no_grad():
            unscaled = model.feature_map.unscaled(features)
            weights, values = model.shares(unit_rows(unscaled))
            mean = weights @ values
            cache = torch.full_like(mean, self._choice.alpha)
            if self._choice.eta:
                variance = model.precision.variance(unit_rows(unscaled))
                cache = model.cache_factor(variance).expand_as(mean)
            text, scores = torch.zeros_like(mean), model.discriminant_logits(unscaled)
            if model.text is not None:
                text = self._choice.gain * (features @ model.text.mT)
            if scores is None:
                scores = torch.zeros_like(mean)
            if labels is None:
                column = (cache * mean + scores + text).argmax(1)
            else:
                column = self._label_numbers(label_array("explain", labels))
                if len(column) != len(features):
                    raise DataError(f"explain got {len(features)} rows and {len(column)} labels.")
            rows = torch.arange(len(features), device=mean.device)
            shares = weights * values.mT[column] * cache[rows, column, None]
            order = shares.abs().argsort(1, descending=True)[:, :top]
        return Explanation(
            self.classes_[column.cpu().numpy()],
            order.cpu().numpy(),
            shares.gather(1, order).double().cpu().numpy(),
            (cache * mean)[rows, column].double().cpu().numpy(),
            text[rows, column].double().cpu().numpy(),
            scores[rows, column].double().cpu().numpy(),
        )
