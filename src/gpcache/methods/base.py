"""The base class of all methods: input checks, labels and text by name, logits → predictions."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast, get_type_hints

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from gpcache.errors import DataError, NumericalError
from gpcache.gp.feature_maps import Projection
from gpcache.methods.reading import (
    add_projection,
    projection_map,
    saved_projection,
    unit_tensor,
)
from gpcache.methods.text_prior import CLIP_TEXT_LENGTH, TextPrior, require_text_prior
from gpcache.metrics import Calibration
from gpcache.similarity import SimilarityProjection
from gpcache.support.checks import label_array, refuse_missing, refuse_twins, shown, to_numpy
from gpcache.support.devices import explained_memory_errors, resolve_device, resolve_dtype
from gpcache.support.threads import limited_threads

if TYPE_CHECKING:
    from gpcache.methods.cache.model import Explanation
    from gpcache.methods.conformal import ConformalSets, Protocol

Arrays = dict[str, NDArray[Any]]

# Options that are arrays or belong to a machine, not to the model.
_NOT_OPTIONS = ("text_prior", "prompt_vectors", "encoder", "projection", "device", "dtype")

# The first words of scikit-learn's message.
COMPLEX = "Complex data not supported"


class State(NamedTuple):
    """A fitted method as plain values and arrays.

    Values that can be computed again cheaply, such as a factorisation, are not stored. A model that
    was fitted on a GPU can therefore be restored on a CPU.

    Parameters
    ----------
    settings : dict
        Values as JSON holds them.
    arrays : dict of arrays
        Arrays by name.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import state_of
    >>> state = state_of(GPCacheClassifier().fit(np.eye(4), ["a", "a", "b", "b"]))
    >>> state.settings["method"], sorted(state.arrays)[:2]
    ('gpcache', ['coefficients', 'features'])
    """

    settings: dict[str, Any]
    arrays: Arrays


class Answers(NamedTuple):
    """Answers about rows (m, d): logits (m, c), novelty (m,), and reasons if requested."""

    logits: Tensor
    novelty: NDArray[np.float64]
    explanation: Explanation | None = None


@dataclass(frozen=True, eq=False)
class RowAnswers:
    """All answers about m rows, as `FeatureClassifier.answer` returns them."""

    logits: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    novelty: NDArray[np.float64]
    explanation: Explanation | None = None
    sets: ConformalSets | None = None


class FeatureClassifier(ClassifierMixin, BaseEstimator):
    """Base class of the estimators: a scikit-learn classifier on image features.

    Features are rows of shape (n, d) and are scaled to length one. Labels may be text or numbers.
    Text vectors (`TextPrior`) are matched with labels by name.

    A subclass defines `fit` and `_logits`; see `CONTRIBUTING.md`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import FeatureClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = GPCacheClassifier().fit(X[:60], y[:60])
    >>> isinstance(model, FeatureClassifier), model.predict(X[60:63]).tolist()
    (True, [3, 7, 3])
    """

    text_prior: TextPrior | None
    device: str | torch.device
    dtype: str | torch.dtype
    classes_: NDArray[Any]
    n_features_in_: int
    temperature_: float
    #: The paper of the method; whether it trains; and what it requires: "text", "shots", "prompts"
    #: (a vector for each sentence of a class), "spatial features", "encoder".
    publication: ClassVar[str]
    trains: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("shots",)
    #: Whether `fit` takes augmented `views` of the shots, and learns from each of them.
    learns_from_views: ClassVar[bool] = False
    #: Whether `add`, `remove` and `relabel` change a fitted model.
    can_update: ClassVar[bool] = False
    #: Whether `gpcache.model.onnx` can write it as a graph.
    exports_to_onnx: ClassVar[bool] = False
    #: How the temperature depends on the entropy of an answer; 0 if it could not be fitted.
    entropy_slope_: float = 0.0

    @property
    def has_keys(self) -> bool:
        """Whether it keeps the shots, so that answers can be explained by them."""
        return False

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the model on labelled features.

        Parameters
        ----------
        X : array of shape (n, d)
            Features.
        y : array of shape (n,)
            Labels.

        Returns
        -------
        FeatureClassifier
            The fitted estimator.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache.methods import LinearProbeClassifier
        >>> LinearProbeClassifier().fit(np.eye(4), ["a", "a", "b", "b"]).classes_.tolist()
        ['a', 'b']
        """

    @abstractmethod
    def _logits(self, features: Tensor) -> Tensor:
        """Logits (m, c) of unit rows (m, d)."""

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Create the estimator from options by their flat names, as in files and specs.

        Parameters
        ----------
        **options
            Options by name; `option_types` lists them.

        Returns
        -------
        FeatureClassifier
            The estimator, not fitted.

        Examples
        --------
        >>> from gpcache import GPCacheClassifier
        >>> GPCacheClassifier.from_options(shrinkage=4.0).kernel_space
        Whitened(shrinkage=4.0)
        """
        return cls(**options)

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """List the options that `from_options` takes, with their type hints.

        Returns
        -------
        dict
            Type hints by option name.

        Examples
        --------
        >>> from gpcache.methods import LinearProbeClassifier
        >>> "strength" in LinearProbeClassifier.option_types()
        True
        """
        hints = get_type_hints(cls.__init__)
        del hints["return"]
        return hints

    # Reading input.

    def _read_training(self, X: ArrayLike, y: ArrayLike) -> tuple[Tensor, NDArray[Any]]:
        """Unit rows and labels; sets device, width and classes."""
        array, labels = self._read_rows(X, y)
        return self._unit(array, "X"), labels

    def _read_rows(self, X: ArrayLike, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
        """Rows as they are, and labels; sets device, width and classes (of the text, if any)."""
        self._device = resolve_device(self.device)
        self._dtype = resolve_dtype(self.dtype, self._device)
        if y is None:
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        refuse_missing("y", y)
        array, labels = self._validated(X, to_numpy(y))
        if self.text_prior is not None:
            require_text_prior(self.text_prior)
        labels = column_or_1d(labels, warn=True)
        with warnings.catch_warnings():
            # One shot a class is normal here, not a sign of regression.
            warnings.filterwarnings("ignore", message="The number of unique classes is greater")
            check_classification_targets(labels)
        classes = np.unique(labels)
        refuse_twins(classes)
        if self.text_prior is None:
            self.classes_ = classes
        else:
            self.text_prior.aligned(classes)
            self.classes_ = self.text_prior.classes
            width = self.text_prior.vectors.shape[1]
            if width != array.shape[1]:
                raise DataError(
                    f"X has {array.shape[1]} features but the text vectors have {width}: "
                    "both must come from the same encoder."
                )
        return array, labels

    def _read_queries(self, X: ArrayLike) -> Tensor:
        if self._is_plain(X):
            return self._unit(cast("NDArray[Any]", X), "X")
        check_is_fitted(self)
        return self._unit(self._validated(X, reset=False), "X")

    def _is_plain(self, X: Any) -> bool:
        """Whether X needs none of scikit-learn's checks, which take longer than to answer a row.

        It is an array of numbers of the width that was fitted, and no column has a name.
        """
        return (
            type(X) is np.ndarray
            and X.ndim == 2
            and len(X) > 0
            and X.dtype.kind in "fiu"
            and X.dtype.isnative
            and X.shape[1] == getattr(self, "n_features_in_", None)
            and not hasattr(self, "feature_names_in_")
        )

    def _validated(self, X: ArrayLike, *y: Any, **options: Any) -> Any:
        """scikit-learn's checks, each failure as one sentence; values are checked in `_unit`."""
        array = to_numpy(X)
        try:
            array = np.asarray(array) if isinstance(array, list | tuple) else array
            if isinstance(array, np.ndarray) and array.ndim == 1:
                raise DataError(
                    "Expected 2D array, got 1D array instead: X has one row per image. "
                    "Reshape your data with X.reshape(1, -1) if it is a single row."
                )
            return validate_data(
                self, array, *y, ensure_all_finite=False, dtype="numeric", **options
            )
        except ValueError as error:
            sentence = " ".join(str(error).split())
            if sentence.startswith(COMPLEX):  # and all numbers of the array
                sentence = f"{COMPLEX}: give real numbers, such as array.real."
            raise DataError(sentence) from None

    def _unit(self, array: NDArray[Any], name: str) -> Tensor:
        with limited_threads(array.size, self._device):
            return unit_tensor(array, name, self._device, self._dtype)

    def _read_validation(self, validation: Any) -> tuple[Tensor, Tensor]:
        """Unit rows (m, d) and class numbers (m,) of a validation set (X, y)."""
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            raise DataError("validation must be a pair (X, y) of rows and their labels.")
        features = self._read_queries(validation[0])
        refuse_missing("validation", validation[1])
        labels = label_array("validation", validation[1])
        if len(labels) != len(features):
            raise DataError(
                f"The validation set has {len(features)} rows and {len(labels)} labels."
            )
        return features, self._label_numbers(labels)

    def _check_views(self, views: ArrayLike | None) -> None:
        if views is not None and not self.learns_from_views:
            raise DataError(
                f"{type(self).__name__} takes one vector per image: pass the mean of its views."
            )

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
        """Labels → their positions in `classes`, by default the model's; each must be known."""
        classes = self.classes_ if classes is None else classes
        number = {name: i for i, name in enumerate(classes.tolist())}
        positions = [number.get(label, -1) for label in labels.tolist()]
        if -1 in positions:
            raise DataError(
                f"Label {shown(labels[positions.index(-1)])} is none of the "
                f"{len(number)} known classes."
            )
        return torch.tensor(positions, device=self._device)

    def _text_vectors(
        self, prior: TextPrior | None = None, classes: NDArray[Any] | None = None
    ) -> Tensor | None:
        """logit_scale · W (c, d) in the order of the classes, so that zero-shot logits are f Wᵀ."""
        prior = self.text_prior if prior is None else prior
        if prior is None:
            return None
        vectors = torch.as_tensor(prior.aligned(self.classes_ if classes is None else classes))
        return (prior.logit_scale * vectors).to(self._device, self._dtype)

    def _unit_text_and_scale(self) -> tuple[Tensor, float]:
        """Unit text vectors (c, d) and the logit scale, of a method that needs text."""
        assert self.text_prior is not None
        scaled, scale = self._text_vectors(), self.text_prior.logit_scale
        assert scaled is not None
        return scaled / scale, scale

    def with_projection(self, projection: SimilarityProjection | None) -> Self:
        """Set a similarity projection.

        Parameters
        ----------
        projection : SimilarityProjection or None
            The projection; None changes nothing.

        Returns
        -------
        FeatureClassifier
            This estimator.

        Raises
        ------
        DataError
            If the method does not compare images with each other, and therefore takes no
            projection.

        Examples
        --------
        >>> from gpcache import GPCacheClassifier
        >>> GPCacheClassifier().with_projection(None).projection is None
        True
        """
        if projection is None:
            return self
        if "projection" not in self.get_params(deep=False):
            raise DataError(
                f"{type(self).__name__} does not compare images with each other and takes no "
                "projection: leave it out, or use another method, such as gpcache."
            )
        return self.set_params(projection=projection)  # type: ignore[no-any-return]

    # Answering.

    @explained_memory_errors("A prediction", "Ask about fewer rows at once.")
    def logits(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute logits, before the temperature.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.

        Returns
        -------
        array of shape (m, c)
            Logits; column i belongs to ``classes_[i]``.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> model = GPCacheClassifier().fit(np.eye(4), ["a", "a", "b", "b"])
        >>> model.logits(np.eye(4)[:1]).shape
        (1, 2)
        """
        features = self._read_queries(X)
        return self._logits(features).double().cpu().numpy()

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute logits in the form that scikit-learn expects.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.

        Returns
        -------
        array of shape (m, c) or (m,)
            Logits; with two classes their difference.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> model = GPCacheClassifier().fit(np.eye(4), ["a", "a", "b", "b"])
        >>> model.decision_function(np.eye(4)[:1]).shape
        (1,)
        """
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the most probable class of each row.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.

        Returns
        -------
        array of shape (m,)
            Class labels.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from gpcache import GPCacheClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> GPCacheClassifier().fit(X[:60], y[:60]).predict(X[60:63])
        array([3, 7, 3])
        """
        column = self.logits(X).argmax(1)
        labels: NDArray[Any] = self.classes_[column]
        return labels

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict calibrated probabilities.

        The calibration is fitted on held-out rows.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.

        Returns
        -------
        array of shape (m, c)
            Probabilities; column i belongs to ``classes_[i]``.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from gpcache import GPCacheClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> model = GPCacheClassifier().fit(X[:60], y[:60])
        >>> model.predict_proba(X[60:61]).sum().round(6)
        np.float64(1.0)
        """
        return self._probabilities(torch.as_tensor(self.logits(X)))

    def _probabilities(self, logits: Tensor) -> NDArray[np.float64]:
        host = logits.double().cpu()
        with limited_threads(host.numel(), host.device):
            probabilities = self._calibration.probabilities(host).numpy()
        if not np.isfinite(probabilities).all():
            raise NumericalError(
                "The model gives NaN for a row: use less extreme hyper-parameters."
            )
        return probabilities

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict the logarithms of `predict_proba`.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.

        Returns
        -------
        array of shape (m, c)
            Logarithms of the probabilities.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> model = GPCacheClassifier().fit(np.eye(4), ["a", "a", "b", "b"])
        >>> bool((model.predict_log_proba(np.eye(4)) <= 0).all())
        True
        """
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    @explained_memory_errors("A prediction", "Ask about fewer rows at once.")
    def answer(
        self,
        X: ArrayLike,
        *,
        top: int = 0,
        error: float | None = None,
        class_conditional: bool = False,
    ) -> RowAnswers:
        """Compute everything about rows at once: logits, probabilities, novelty, reasons and sets.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.
        top : int, default=0
            Number of shots to name as reasons; 0 names none. Methods without keys ignore it.
        error : float, optional
            Rate at which prediction sets may miss the true class; None makes no sets.
        class_conditional : bool, default=False
            Whether this rate holds for every class on its own.

        Returns
        -------
        RowAnswers
            Logits, probabilities, novelty (0: like a shot, 1: like none), explanation and sets.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from gpcache import GPCacheClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> answers = GPCacheClassifier().fit(X[:60], y[:60]).answer(X[60:62], top=3, error=0.1)
        >>> answers.probabilities.shape, answers.explanation.shots.shape, answers.sets.sizes.shape
        ((2, 10), (2, 3), (2,))
        """
        features = self._read_queries(X)
        logits, novelty, explanation = self._answer(features, top=top if self.has_keys else 0)
        probabilities, sets = self._probabilities(logits), None
        if error is not None:
            from gpcache.methods.conformal import sets_of

            sets = sets_of(
                self, features, probabilities, error=error, class_conditional=class_conditional
            )
        numbers = logits.double().cpu().numpy()
        return RowAnswers(numbers, probabilities, novelty, explanation, sets)

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
        """Predict, for each row, the set of classes that cannot be ruled out.

        At most a share `error` of the sets misses the true class, for rows like the training rows.
        The field `protocol` of the result says how the sets were made and whether the rate is
        proved.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.
        error : float, default=0.1
            Rate at which sets may miss the true class.
        class_conditional : bool, default=False
            Whether the rate holds for every class on its own.
        protocol : {"auto", "full", "held_out"}, default="auto"
            Full conformal prediction, or scores of held-out rows. "auto" takes the first if it
            has a closed form.
        calibration : tuple of arrays, optional
            Rows (X, y) that the model has not seen, for split conformal prediction.

        Returns
        -------
        ConformalSets
            The sets, their p-values, and a note if rows are too few.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from gpcache import GPCacheClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> sets = GPCacheClassifier().fit(X[:60], y[:60]).predict_set(X[60:62], error=0.1)
        >>> sets.included.shape
        (2, 10)
        """
        from gpcache.methods.conformal import sets_of

        features = self._read_queries(X)
        return sets_of(
            self,
            features,
            self._probabilities(self._logits(features)),
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
        """Return everything that a fitted model needs to predict, to be updated and to report.

        Returns
        -------
        State
            Settings and arrays.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> model = GPCacheClassifier().fit(np.eye(4), ["a", "a", "b", "b"])
        >>> model.state().settings["classes"]
        ['a', 'b']
        """
        settings: dict[str, Any] = {
            "options": {
                # Options may be numpy scalars, which JSON cannot hold.
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
        if (prior := self.text_prior) is not None:
            names = np.asarray(prior.class_names).tolist()
            text = {"classes": names, "scale": prior.logit_scale, "length": prior.length}
            settings["text"], arrays["text"] = text, np.asarray(prior.vectors)
        add_projection(getattr(self, "projection", None), settings, arrays)
        state = State(settings, arrays)
        self._write_state(state)
        return state

    @classmethod
    def from_state(cls, state: State, *, device: str | torch.device = "auto") -> Self:
        """Restore a fitted model.

        Parameters
        ----------
        state : State
            What `state` returned.
        device : str or torch.device, default="auto"
            Device of the restored model.

        Returns
        -------
        FeatureClassifier
            The fitted model.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> model = GPCacheClassifier().fit(np.eye(4), ["a", "a", "b", "b"])
        >>> GPCacheClassifier.from_state(model.state()).predict(np.eye(4)).tolist()
        ['a', 'a', 'b', 'b']
        """
        settings, arrays = state
        prior = None
        if "text" in settings:
            text = settings["text"]
            length = text.get("length", CLIP_TEXT_LENGTH)
            prior = TextPrior(text["classes"], arrays["text"], text["scale"], length)
            # They have length one already; scaling them again would change their last bits.
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
        """The flat options of a saved model, including arrays."""
        options: dict[str, Any] = state.settings["options"]
        return options | saved_projection(*state)

    def _write_state(self, state: State) -> None:
        """Add the learned values of this method."""

    def _read_state(self, state: State) -> None:
        """Restore the values that `_write_state` added."""

    def _tensor(self, arrays: Arrays, name: str) -> Tensor | None:
        """A saved array as a tensor of the model's device and dtype; None if it is missing."""
        if name not in arrays:
            return None
        tensor = torch.as_tensor(arrays[name], device=self._device)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


def add_tensors(arrays: Arrays, **tensors: Tensor | None) -> None:
    """Add the tensors that are not None to the arrays of a state."""
    for name, tensor in tensors.items():
        if tensor is not None:
            arrays[name] = tensor.detach().cpu().numpy()
