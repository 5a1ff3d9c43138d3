"""What every method shares: input checks, labels and text by name, logits → predictions."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, get_type_hints

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from gpcache.errors import DataError, NumericalError
from gpcache.gp.feature_maps import Projection
from gpcache.methods.reading import projection_map, unit_tensor
from gpcache.methods.text_prior import TextPrior, require_text_prior
from gpcache.metrics import Calibration
from gpcache.similarity import SimilarityProjection
from gpcache.support.checks import label_array, refuse_nan, refuse_twins, shown, to_numpy
from gpcache.support.devices import resolve_device, resolve_dtype

if TYPE_CHECKING:
    from gpcache.methods.cache.model import Explanation
    from gpcache.methods.conformal import ConformalSets, Protocol

Arrays = dict[str, NDArray[Any]]

# Options that are arrays or belong to a machine, not to the model.
_NOT_OPTIONS = ("text_prior", "prompt_vectors", "encoder", "projection", "device", "dtype")


class State(NamedTuple):
    """A fitted method as plain numbers and arrays: `settings` as JSON holds them, `arrays` by name.

    What can be computed again cheaply, such as a factorisation, is not kept: a model that was
    fitted on a GPU comes back on a CPU.
    """

    settings: dict[str, Any]
    arrays: Arrays


class Answers(NamedTuple):
    """What a method says of rows (m, d): logits (m, c), novelty (m,), reasons if asked for."""

    logits: Tensor
    novelty: NDArray[np.float64]
    explanation: Explanation | None = None


@dataclass(frozen=True, eq=False)
class RowAnswers:
    """All answers about rows X (m): see `FeatureClassifier.answer`."""

    logits: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    novelty: NDArray[np.float64]
    explanation: Explanation | None = None
    sets: ConformalSets | None = None


class FeatureClassifier(ClassifierMixin, BaseEstimator):
    """A classifier on image features (n, d), with or without text."""

    text_prior: TextPrior | None
    device: str | torch.device
    dtype: str | torch.dtype
    classes_: NDArray[Any]
    n_features_in_: int
    temperature_: float
    #: The paper that a method comes from; whether it trains; and what it cannot do without: "text",
    #: "shots", "prompts" (a vector for each sentence of a class), "spatial features", "encoder".
    publication: ClassVar[str]
    trains: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("shots",)
    #: Whether `fit` takes augmented `views` of the shots, and learns from each of them.
    learns_from_views: ClassVar[bool] = False
    #: Whether `add`, `remove` and `relabel` change a fitted model.
    can_update: ClassVar[bool] = False
    #: Whether `gpcache.model.onnx` can write it as a graph.
    exports_to_onnx: ClassVar[bool] = False
    #: Whether it keeps the shots, so that answers can be explained by them.
    has_keys: ClassVar[bool] = False
    #: How the temperature follows the entropy of an answer; 0 where nothing could tell.
    entropy_slope_: float = 0.0

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from rows X (n, d) with labels y (n,)."""

    @abstractmethod
    def _logits(self, features: Tensor) -> Tensor:
        """Logits (m, c) of unit rows (m, d)."""

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Make the estimator from options by their flat names, as files and specs hold them."""
        return cls(**options)

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """The options that `from_options` takes, with their type hints."""
        hints = get_type_hints(cls.__init__)
        del hints["return"]
        return hints

    # Reading input.

    def _read_training(self, X: ArrayLike, y: ArrayLike) -> tuple[Tensor, NDArray[Any]]:
        """Unit rows and labels; sets device, width and classes."""
        self._device = resolve_device(self.device)
        self._dtype = resolve_dtype(self.dtype, self._device)
        array, labels = self._read_labelled(X, y)
        return self._unit(array, "X"), labels

    def _read_labelled(self, X: ArrayLike, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
        """Rows as they are, and labels; sets width and classes: the text's, if there is text."""
        if y is None:
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        refuse_nan("y", y)
        array, labels = self._validated(X, to_numpy(y))
        if self.text_prior is not None:
            require_text_prior(self.text_prior)
        labels = column_or_1d(labels, warn=True)
        with warnings.catch_warnings():
            # One shot a class is what we are here for, not a sign of regression.
            warnings.filterwarnings("ignore", message="The number of unique classes is greater")
            check_classification_targets(labels)
        seen = np.unique(labels)
        refuse_twins(seen)
        if self.text_prior is None:
            self.classes_ = seen
        else:
            self.text_prior.aligned(seen)
            self.classes_ = self.text_prior.classes
            width = self.text_prior.vectors.shape[1]
            if width != array.shape[1]:
                raise DataError(
                    f"X has {array.shape[1]} features but the text vectors have {width}: "
                    "both must come from the same encoder."
                )
        return array, labels

    def _read_queries(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        array = self._validated(X, reset=False)
        return self._unit(array, "X")

    def _validated(self, X: ArrayLike, *y: Any, **options: Any) -> Any:
        """scikit-learn's checks, each failure as one sentence; values are checked in `_unit`."""
        array = to_numpy(X)
        if isinstance(array, np.ndarray) and array.ndim == 1:
            raise DataError(
                "Expected 2D array, got 1D array instead: X has one row per image. "
                "Reshape your data with X.reshape(1, -1) if it is a single row."
            )
        try:
            return validate_data(
                self, array, *y, ensure_all_finite=False, dtype="numeric", **options
            )
        except ValueError as error:
            raise DataError(" ".join(str(error).split())) from None

    def _unit(self, array: NDArray[Any], name: str) -> Tensor:
        return unit_tensor(array, name, self._device, self._dtype)

    def _read_validation(self, validation: Any) -> tuple[Tensor, Tensor]:
        """Unit rows (m, d) and class numbers (m,) of a validation set (X, y)."""
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            raise DataError("validation must be a pair (X, y) of rows and their labels.")
        features = self._read_queries(validation[0])
        labels = label_array("validation", validation[1])
        if len(labels) != len(features):
            raise DataError(
                f"The validation set has {len(features)} rows and {len(labels)} labels."
            )
        return features, self._label_numbers(labels)

    def _read_views(self, views: ArrayLike, features: Tensor) -> Tensor:
        """Augmented views (n, v, d) of the rows (n, d), as unit rows."""
        array = np.asarray(to_numpy(views))
        n, width = features.shape
        if array.ndim != 3 or array.shape[0] != n or array.shape[2] != width:
            raise DataError(
                f"views must have shape ({n}, number of views, {width}), got {array.shape}."
            )
        return self._unit(array.reshape(-1, width), "views").view(array.shape)

    def _read_projection(self, projection: Any) -> Projection | None:
        return projection_map(projection, self.n_features_in_, self._device, self._dtype)

    def _label_numbers(self, labels: NDArray[Any], classes: NDArray[Any] | None = None) -> Tensor:
        """Labels → numbers of `classes`, by default the model's; each must be known."""
        classes = self.classes_ if classes is None else classes
        number = {name: i for i, name in enumerate(classes.tolist())}
        found = [number.get(label, -1) for label in labels.tolist()]
        if -1 in found:
            raise DataError(
                f"Label {shown(labels[found.index(-1)])} is none of the "
                f"{len(number)} known classes."
            )
        return torch.tensor(found, device=self._device)

    def _text_vectors(
        self, prior: TextPrior | None = None, classes: NDArray[Any] | None = None
    ) -> Tensor | None:
        """logit_scale · W (c, d) in the order of the classes, so that zero-shot logits are f Wᵀ."""
        prior = self.text_prior if prior is None else prior
        if prior is None:
            return None
        vectors = torch.as_tensor(prior.aligned(self.classes_ if classes is None else classes))
        return (prior.logit_scale * vectors).to(self._device, self._dtype)

    def with_projection(self, projection: SimilarityProjection | None) -> Self:
        """The estimator with this similarity projection in its slot, if it has one."""
        if projection is None:
            return self
        if "projection" not in self.get_params(deep=False):
            raise DataError(
                f"{type(self).__name__} compares no images with each other and takes no "
                "projection: leave it out, or use another method, such as gpcache."
            )
        return self.set_params(projection=projection)  # type: ignore[no-any-return]

    # Answering.

    def logits(self, X: ArrayLike) -> NDArray[np.float64]:
        """Logits (m, c), one column for each of classes_, before the temperature."""
        features = self._read_queries(X)
        return self._logits(features).double().cpu().numpy()

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Logits (m, c); with two classes their difference (m,), as scikit-learn has it."""
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each row."""
        column = self.logits(X).argmax(1)
        labels: NDArray[Any] = self.classes_[column]
        return labels

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities (m, c): softmax of the logits, calibrated on rows that were held out."""
        return self._probabilities(torch.as_tensor(self.logits(X)))

    def _probabilities(self, logits: Tensor) -> NDArray[np.float64]:
        found = self._calibration.probabilities(logits.double().cpu()).numpy()
        if not np.isfinite(found).all():
            raise NumericalError("The model gives NaN for a row: its parameters are beyond reason.")
        return found

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Logarithms (m, c) of `predict_proba`."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def answer(self, X: ArrayLike, *, top: int = 0, error: float | None = None) -> RowAnswers:
        """Everything about rows X (m, d) from one computation.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.
        top : int, default=0
            How many shots to name as reasons; 0 names none. Ignored by methods without keys.
        error : float, optional
            The rate at which prediction sets may miss the true class; None makes no sets.

        Returns
        -------
        RowAnswers
            Logits, probabilities, novelty (0: like a shot, 1: like none), explanation and sets.
        """
        features = self._read_queries(X)
        logits, novelty, explanation = self._answer(features, top=top if self.has_keys else 0)
        probabilities, sets = self._probabilities(logits), None
        if error is not None:
            from gpcache.methods.conformal import sets_of

            sets = sets_of(self, features, probabilities, error=error)
        return RowAnswers(logits.double().cpu().numpy(), probabilities, novelty, explanation, sets)

    def _answer(self, features: Tensor, *, top: int) -> Answers:
        """Logits, novelty and reasons of unit rows; a method without keys has no reasons."""
        logits = self._logits(features)
        novelty: NDArray[np.float64] = 1 - self._probabilities(logits).max(1)
        return Answers(logits, novelty)

    def predict_set(
        self,
        X: ArrayLike,
        *,
        error: float = 0.1,
        class_conditional: bool = False,
        protocol: Protocol = "auto",
        calibration: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> ConformalSets:
        """For each row the classes that cannot be ruled out: a share `error` misses the true one.

        See `gpcache.methods.conformal` for how the promise is kept and what it rests on.
        """
        from gpcache.methods.conformal import conformal_sets

        return conformal_sets(
            self,
            X,
            error=error,
            class_conditional=class_conditional,
            protocol=protocol,
            calibration=calibration,
        )

    @property
    def _calibration(self) -> Calibration:
        return Calibration(self.temperature_, self.entropy_slope_)

    def _accept_calibration(self, calibration: Calibration) -> None:
        self.temperature_, self.entropy_slope_ = calibration

    # Saving.

    def state(self) -> State:
        """Everything that a fitted model needs to answer, be updated and report."""
        settings: dict[str, Any] = {
            "options": {
                # numpy's numbers are welcome as options, but JSON has none of them.
                key: value.item() if isinstance(value, np.generic) else value
                for key, value in self._flat_options().items()
                if key not in _NOT_OPTIONS
            },
            "classes": self.classes_.tolist(),
            "width": int(self.n_features_in_),
            "temperature": float(self.temperature_),
            "entropy_slope": float(self.entropy_slope_),
        }
        arrays: Arrays = {}
        if self.text_prior is not None:
            names = np.asarray(self.text_prior.class_names).tolist()
            settings["text"] = {"classes": names, "scale": self.text_prior.logit_scale}
            arrays["text"] = np.asarray(self.text_prior.vectors)
        state = State(settings, arrays)
        self._write_state(state)
        return state

    @classmethod
    def from_state(cls, state: State, *, device: str | torch.device = "auto") -> Self:
        """The fitted model, on `device`."""
        settings, arrays = state
        prior = None
        if "text" in settings:
            text = settings["text"]
            prior = TextPrior(text["classes"], arrays["text"], text["scale"])
            # They have length one already; to scale them again would move their last bits.
            object.__setattr__(prior, "vectors", arrays["text"])
        options = cls._saved_options(state)
        model = cls.from_options(**options, text_prior=prior, device=device)
        model._device = resolve_device(device)
        model._dtype = resolve_dtype("auto", model._device)
        model.classes_ = np.array(settings["classes"])
        model.n_features_in_ = settings["width"]
        model.temperature_ = settings["temperature"]
        model.entropy_slope_ = settings["entropy_slope"]
        model._read_state(state)
        return model

    def _flat_options(self) -> dict[str, Any]:
        """The options by their flat names."""
        return self.get_params(deep=False)  # type: ignore[no-any-return]

    @classmethod
    def _saved_options(cls, state: State) -> dict[str, Any]:
        """The flat options of a saved model, those that are arrays included."""
        return dict(state.settings["options"])

    def _write_state(self, state: State) -> None:
        """Add what this method has learned."""

    def _read_state(self, state: State) -> None:
        """Take what `_write_state` wrote."""

    def _tensor(self, arrays: Arrays, name: str) -> Tensor | None:
        """A saved array as a tensor where and how the model computes; None if it is not there."""
        if name not in arrays:
            return None
        found = torch.as_tensor(arrays[name], device=self._device)
        return found.to(self._dtype) if found.is_floating_point() else found


def add_tensors(arrays: Arrays, **tensors: Tensor | None) -> None:
    """Put tensors that are there among the arrays of a state."""
    for name, tensor in tensors.items():
        if tensor is not None:
            arrays[name] = tensor.detach().cpu().numpy()
