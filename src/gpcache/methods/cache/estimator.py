"""The estimator of cache models: text logits plus a posterior over labelled keys.

    logits = gain · zero_shot + α · mean / variance^η        (Gaussian likelihood)

An estimator reads its input, calls `gpcache.methods.cache.fitted.fit`, and answers through the
`Fitted` value that it keeps.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from typing import Any, ClassVar, Self, get_type_hints

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gpcache.errors import DataError, ProtocolError
from gpcache.gp import GroupedPrecision
from gpcache.gp.feature_maps import Projection, projected
from gpcache.methods.base import Answers, FeatureClassifier, State
from gpcache.methods.cache.fitted import Fitted, fit
from gpcache.methods.cache.held_out import HeldOutReport
from gpcache.methods.cache.memory import fitting
from gpcache.methods.cache.model import Explanation, Reasons
from gpcache.methods.cache.saving import read_cache, saved_shots, write_cache
from gpcache.methods.cache.search import Choice, Defaults
from gpcache.methods.cache.setup import recipe_of, settings_of
from gpcache.methods.cache.shots import Shots
from gpcache.methods.cache.training import Trainer
from gpcache.methods.options import (
    GROUPS,
    OPTION_NAMES,
    TRAINING_NAMES,
    CacheOptions,
    Training,
    flattened,
    grouped,
)
from gpcache.methods.projections import add_projection, saved_projection
from gpcache.methods.text_prior import TextPrior, require_text_prior
from gpcache.support.checks import label_array, same_kind, shown, whole


class CacheClassifier(FeatureClassifier):
    """Base of the cache methods; see `GPCacheClassifier` for the options."""

    _defaults = Defaults()
    can_update = True
    has_keys = True
    exports_to_onnx = True
    #: What a parameter that is None stands for, and options that the method does not leave open.
    _presets: ClassVar[dict[str, Any]] = {}
    _fixed: ClassVar[dict[str, Any]] = {}
    _likelihoods: ClassVar[tuple[str, ...]] = ("gaussian",)
    fitted_: Fitted

    projection: Projection | ArrayLike | None
    random_state: int

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Say where an option is that has moved into a group."""
        known = inspect.signature(cls.__init__).parameters
        for name in options:
            if name not in known and name in GROUPS:
                raise TypeError(f"{cls.__name__} takes {name} as {GROUPS[name]}.")
        return super().__new__(cls)

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Make the estimator from options by their flat names, as files and specs hold them."""
        return cls(**grouped(options, cls()._given()))

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        own = super().option_types()
        flat = get_type_hints(CacheOptions) | get_type_hints(Training)
        known = {name for name, place in GROUPS.items() if place.split("=")[0] in own} | set(own)
        return own | {name: hint for name, hint in flat.items() if name in known}

    # What a method says of itself.

    def _given(self) -> dict[str, Any]:
        """The constructor's parameters, None replaced by what the method has instead."""
        given = self.get_params(deep=False)
        return {
            name: self._presets.get(name) if value is None else value
            for name, value in given.items()
        }

    def _options(self) -> CacheOptions:
        """All options by their flat names."""
        flat = flattened(self._given()) | self._fixed
        return CacheOptions(**{name: flat[name] for name in OPTION_NAMES if name in flat})

    def _trainer(self) -> Trainer | None:
        """How the cache is trained, if it is."""
        return None

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
        return self._fit(X, y, validation, None)

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        validation: tuple[ArrayLike, ArrayLike] | None,
        views: ArrayLike | None,
    ) -> Self:
        options = self._options()
        settings = settings_of(options, self)
        trainer = self._trainer()
        features, labels = self._read_training(X, y)
        if options.selection == "validation" and validation is None:
            raise ProtocolError(
                f"{type(self).__name__} with selection='validation' chooses on a validation set: "
                "pass fit(X, y, validation=(X_val, y_val)), or use selection='auto'."
            )
        text = self._text_vectors()
        shots = self._make_shots(features, self._label_numbers(labels), text, settings.residual)
        if views is not None:
            shots = replace(shots, views=self._read_views(views, features))
        recipe = recipe_of(options, shots, self._read_projection(self.projection), self)
        if recipe.space.projection is not None:  # else folds would complain of their own rows
            projected(recipe.space.projection, features)
        held_out = None
        if validation is not None:
            rows = self._read_validation(validation)
            held_out = self._make_shots(*rows, text, settings.residual)
        name = type(self).__name__
        with fitting(shots):
            self._keep(fit(shots, recipe, text, settings, held_out, trainer, name=name))
        return self

    def _keep(self, fitted: Fitted, classes: NDArray[Any] | None = None) -> None:
        """Take a fitted value, and show its hyper-parameters."""
        self.fitted_ = fitted
        self.classes_ = self.classes_ if classes is None else classes
        choice = fitted.choice
        self.alpha_, self.beta_, self.eta_ = choice.alpha, choice.beta, choice.eta
        self.noise_, self.gain_ = choice.noise, choice.gain
        self.search_ = fitted.search
        self._accept_calibration(fitted.calibration)
        if fitted.recipe.is_softmax:
            self.tau_, self.shrinkage_ = choice.tau, choice.shrinkage
            self.discriminant_, self.label_noise_ = choice.discriminant, choice.label_noise
        if fitted.training is not None:
            self.epochs_, self.training_loss_ = fitted.epochs, fitted.losses

    def _make_shots(
        self, features: Tensor, labels: Tensor, text: Tensor | None, residual: bool
    ) -> Shots:
        zero_shot = None if text is None else features @ text.mT
        return Shots(features, labels, len(self.classes_), zero_shot, residual=residual)

    # Answers.

    def _logits(self, features: Tensor) -> Tensor:
        return self.fitted_.model.logits(features)

    def _answer(self, features: Tensor, *, top: int) -> Answers:
        found = self.fitted_.model.answer(features, variance=True, quick=True, top=top)
        assert found.variance is not None
        reasons = None if found.reasons is None else self._explanation(found.reasons)
        return Answers(found.logits, _array(found.variance.amin(1)), reasons)

    def posterior(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean (m, c) and variance of the cache: (m,), or (m, g) when classes are grouped."""
        features = self._read_queries(X)
        with torch.no_grad():
            mean, variance = self.fitted_.model.posterior(features)
        if not isinstance(self.fitted_.model.precision, GroupedPrecision):
            variance = variance[:, 0]
        return _array(mean), _array(variance)

    def novelty(self, X: ArrayLike, *, quick: bool = False) -> NDArray[np.float64]:
        """How unlike all shots each row (m,) is, from 0 to 1: the variance of the posterior.

        Compare it with `held_out_novelty_`, which is what unseen rows of known classes have.
        `quick` prepares, for thousands of shots and once, what answers within 1 % of the variance
        without n² operations a row, where the shots allow it.
        """
        features = self._read_queries(X)
        with torch.no_grad():
            variance = self.fitted_.model.variance(features, quick=quick)
        return _array(variance.amin(1))

    def explain(
        self, X: ArrayLike, *, top: int | None = 5, labels: ArrayLike | None = None
    ) -> Explanation:
        """The shots that speak for and against each row's label (the predicted one by default).

        `top` shots are listed, the largest share first; None lists all.
        """
        if top is not None:
            whole("top", top, least=1)
        features, column = self._read_queries(X), None
        if labels is not None:
            column = self._label_numbers(label_array("explain", labels))
            if len(column) != len(features):
                raise DataError(f"explain got {len(features)} rows and {len(column)} labels.")
        found = self.fitted_.model.answer(features, top=top, column=column)
        assert found.reasons is not None
        return self._explanation(found.reasons)

    def _explanation(self, reasons: Reasons) -> Explanation:
        names = self.classes_[reasons.column.cpu().numpy()]
        return Explanation(
            names, reasons.shots.cpu().numpy(), *(_array(part) for part in reasons[2:])
        )

    # Held-out figures.

    @property
    def loo_(self) -> HeldOutReport:
        """Accuracy, NLL and ECE on the shots themselves, each held out: no validation set needed.

        Whatever was learned from labels is learned again without the held-out rows. After an
        update they are computed when first asked for. Nothing is trained here: where figures would
        take training, they are those of the fit, or none; see `held_out`.
        """
        check_is_fitted(self)
        return self.fitted_.report

    def held_out(self) -> HeldOutReport:
        """Hold the shots out now, at the hyper-parameters in use; a trained cache is trained."""
        check_is_fitted(self)
        return self.fitted_.held_out()

    @property
    def held_out_novelty_(self) -> NDArray[np.float64]:
        """How unlike all others each shot (n,) is, as if it had not been seen; NaN if unknown."""
        check_is_fitted(self)
        return self.fitted_.novelty

    # Updates.

    def add(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Append shots X (k, d) with labels y (k,); without text, new classes are welcome."""
        features = self._read_queries(X)
        labels = label_array("add", y)
        if len(labels) != len(features):
            raise DataError(f"add got {len(features)} rows and {len(labels)} labels.")
        if not same_kind(labels, self.classes_):
            raise DataError(
                f"Label {shown(labels[0])} is of another kind than the classes "
                f"({shown(self.classes_[0])}, …): use text with text and numbers with numbers."
            )
        unknown = [label for label in labels.tolist() if label is None or label != label]
        if unknown:
            raise DataError(f"Label {shown(unknown[0])} names no class: give every row a label.")
        self._warn_of_kept_scaling()
        fitted, classes = self.fitted_, self.classes_
        if self.text_prior is None:
            classes = np.unique(np.concatenate([classes, labels]))
            fitted = self._with_classes(fitted, classes, None)
        numbers = self._label_numbers(labels, classes)
        with fitting(fitted.shots):
            self._keep(fitted.added(features, numbers), classes)
        return self

    def remove(self, rows: ArrayLike) -> Self:
        """Forget the shots of these row numbers, as if they had never been seen."""
        gone = self._row_numbers(rows)
        if len(gone) == len(self.fitted_.shots):
            raise DataError("remove would leave no shot at all: keep at least one.")
        self._warn_of_kept_scaling()
        with fitting(self.fitted_.shots):
            self._keep_without_empty_classes(self.fitted_.removed(gone))
        return self

    def relabel(self, rows: ArrayLike, y: ArrayLike) -> Self:
        """Give the shots of these row numbers other labels; each must be a known class."""
        changed = self._row_numbers(rows)
        labels = self._label_numbers(label_array("relabel", y))
        if len(labels) != len(changed):
            raise DataError(f"relabel got {len(changed)} rows and {len(labels)} labels.")
        self._warn_of_kept_scaling()
        with fitting(self.fitted_.shots):
            self._keep_without_empty_classes(self.fitted_.relabelled(changed, labels))
        return self

    def set_text(self, text_prior: TextPrior) -> Self:
        """Answer with other text, and thus other classes; all classes with shots must be in it.

        Exact: the posterior is that of the same shots with the values that the text gives them.
        """
        check_is_fitted(self)
        if self.text_prior is None:
            raise DataError("A model without text cannot be given one: fit it with a text_prior.")
        require_text_prior(text_prior)
        training = self.fitted_.training
        if training is not None and training.trainer.moves_text:
            raise DataError("The text of this model was trained with its keys: fit it again.")
        if text_prior.vectors.shape[1] != self.n_features_in_:
            raise DataError(
                f"The text vectors have {text_prior.vectors.shape[1]} columns, the shots "
                f"{self.n_features_in_}: both must come from the same encoder."
            )
        used = torch.unique(self.fitted_.shots.labels).cpu().numpy()
        text_prior.aligned(self.classes_[used])
        classes = text_prior.classes
        text = self._text_vectors(text_prior, classes)
        self._keep(self._with_classes(self.fitted_, classes, text), classes)
        self.text_prior = text_prior
        return self

    def _keep_without_empty_classes(self, fitted: Fitted) -> None:
        """Without text, a class is its shots: when they are gone, so is the class."""
        classes = self.classes_
        if self.text_prior is None:
            classes = classes[torch.unique(fitted.shots.labels).cpu().numpy()]
            fitted = self._with_classes(fitted, classes, None)
        self._keep(fitted, classes)

    def _with_classes(self, fitted: Fitted, classes: NDArray[Any], text: Tensor | None) -> Fitted:
        """The fitted value with another list of classes, and their text."""
        old, new = self.classes_.tolist(), classes.tolist()
        if text is None and old == new:
            return fitted
        device = fitted.shots.labels.device
        place, number = ({name: i for i, name in enumerate(names)} for names in (old, new))
        numbers = torch.tensor([number.get(name, -1) for name in old], device=device)
        source = torch.tensor([place.get(name, -1) for name in new], device=device)
        return fitted.with_classes(numbers, source, text)

    def _row_numbers(self, rows: ArrayLike) -> Tensor:
        check_is_fitted(self)
        numbers = np.atleast_1d(np.asarray(rows))
        n = len(self.fitted_.shots)
        if not len(numbers):
            numbers = numbers.astype(np.int64)
        if numbers.dtype.kind not in "iu" or (numbers < 0).any() or (numbers >= n).any():
            raise DataError(f"Row numbers must be whole numbers from 0 to {n - 1}.")
        if len(np.unique(numbers)) != len(numbers):
            raise DataError("A row number stands there more than once.")
        return torch.as_tensor(numbers.astype(np.int64), device=self.fitted_.shots.labels.device)

    def _warn_of_kept_scaling(self) -> None:
        if self.fitted_.recipe.space.sees_labels:
            warnings.warn(
                "An update keeps the learned feature scaling: fit on all shots to learn it again.",
                stacklevel=3,
            )

    # Saving.

    def _flat_options(self) -> dict[str, Any]:
        known = {*OPTION_NAMES, *TRAINING_NAMES, "random_state"}
        return {name: one for name, one in flattened(self._given()).items() if name in known}

    @classmethod
    def _saved_options(cls, state: State) -> dict[str, Any]:
        return super()._saved_options(state) | saved_projection(state)

    def _write_state(self, state: State) -> None:
        add_projection(self.projection, state)
        write_cache(self.fitted_, state)

    def _read_state(self, state: State) -> None:
        def tensors(name: str) -> Tensor | None:
            return self._tensor(state.arrays, name)

        options, text = self._options(), self._text_vectors()
        settings = settings_of(options, self)
        features, labels = tensors("features"), tensors("labels")
        if features is None or labels is None or tensors("keys") is None:
            raise DataError("The saved model lacks its shots.")
        choice = Choice.from_settings(state.settings["choice"])
        shots = self._make_shots(features, labels, text, settings.residual)
        shots = saved_shots(shots, choice, tensors)
        recipe = recipe_of(options, shots, self._read_projection(self.projection), self)
        calibration, trainer = self._calibration, self._trainer()
        self._keep(read_cache(state, tensors, shots, recipe, text, settings, calibration, trainer))


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().cpu().numpy()
