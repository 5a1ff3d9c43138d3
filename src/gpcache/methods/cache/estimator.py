"""The estimator of cache models: text logits plus a posterior over labelled keys.

    logits = gain · zero_shot + α · mean / variance^η        (Gaussian likelihood)

An estimator reads its input, calls `gpcache.methods.cache.fitted.fit`, and answers through the
`Fitted` value that it keeps.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, get_type_hints

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gpcache.errors import DataError, ProtocolError
from gpcache.features.shot_index import ShotIndex
from gpcache.gp import GroupedPrecision
from gpcache.gp.feature_maps import Projection, projected
from gpcache.methods.base import Answers, FeatureClassifier, State
from gpcache.methods.cache import explicit_reasons
from gpcache.methods.cache.fitted import Fitted, fit, fit_streamed, with_class_names
from gpcache.methods.cache.held_out import HeldOutReport
from gpcache.methods.cache.memory import fitting
from gpcache.methods.cache.model import Explanation, Reasons
from gpcache.methods.cache.recipe import Task
from gpcache.methods.cache.row_stream import RowStream
from gpcache.methods.cache.saving import read_cache, saved_shots, write_cache
from gpcache.methods.cache.search import Choice, Defaults
from gpcache.methods.cache.setup import recipe_of, settings_of, takes_explicit
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
from gpcache.methods.text_prior import TextPrior, require_text_prior
from gpcache.support.checks import further_labels, label_array, row_numbers, sample_weights, whole

Refit = Literal["auto"] | bool
# Updates always choose hyper-parameters again up to this number of shots, which takes a fraction of
# a second, and with more shots once this share of them has changed since the last choice.
REFIT_SMALL, REFIT_SHARE = 200, 0.05


class CacheClassifier(FeatureClassifier):
    """Base class of the cache methods: text logits plus a posterior over labelled keys.

    It adds held-out figures, explanations, novelty and updates to `FeatureClassifier`.
    `GPCacheClassifier` documents the options.

    Parameters
    ----------
    *args, **options
        Those of the subclass.

    Examples
    --------
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods.cache.estimator import CacheClassifier
    >>> issubclass(GPCacheClassifier, CacheClassifier)
    True
    """

    _defaults = Defaults()
    can_update = True
    exports_to_onnx = True
    #: Values of parameters that are None, and options that the method fixes.
    _presets: ClassVar[dict[str, Any]] = {}
    _fixed: ClassVar[dict[str, Any]] = {}
    _likelihoods: ClassVar[tuple[str, ...]] = ("gaussian",)
    fitted_: Fitted

    projection: Projection | ArrayLike | None
    random_state: int

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Refuse an option that has moved into a group, and name the group."""
        known = inspect.signature(cls.__init__).parameters
        for name in options:
            if name not in known and name in GROUPS:
                raise TypeError(f"{cls.__name__} takes {name} as {GROUPS[name]}.")
        return super().__new__(cls)

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Create the estimator from options by their flat names, as in files and specs.

        Parameters
        ----------
        **options
            Options by name; `option_types` lists them.

        Returns
        -------
        CacheClassifier
            The estimator, not fitted.

        Examples
        --------
        >>> from gpcache import GPCacheClassifier
        >>> GPCacheClassifier.from_options(shrinkage=4.0).kernel_space
        Whitened(shrinkage=4.0)
        """
        return cls(**grouped(options, cls()._given()))

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """List the options that `from_options` takes, with their type hints.

        Returns
        -------
        dict
            Type hints by option name.

        Examples
        --------
        >>> from gpcache import GPCacheClassifier
        >>> "shrinkage" in GPCacheClassifier.option_types()
        True
        """
        base = super().option_types()
        flat = get_type_hints(CacheOptions) | get_type_hints(Training)
        known = {name for name, place in GROUPS.items() if place.split("=")[0] in base} | set(base)
        return base | {name: hint for name, hint in flat.items() if name in known}

    # Options.

    def _given(self) -> dict[str, Any]:
        """The constructor's parameters; None is replaced by the default of the method."""
        parameters = self.get_params(deep=False)
        return {
            name: self._presets.get(name) if value is None else value
            for name, value in parameters.items()
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
        validation : tuple of arrays, optional
            Rows (X, y) to choose hyper-parameters on and, with trained keys, the stop.
        views : array of shape (n, v, d), optional
            Augmented views of the shots: further queries of a method that trains its keys.

        Returns
        -------
        CacheClassifier
            The fitted estimator.

        Raises
        ------
        ProtocolError
            If ``selection="validation"`` and there is no validation set.
        DataError
            If the input cannot be used.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from gpcache import GPCacheClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> model = GPCacheClassifier().fit(X[:60], y[:60])
        >>> round(model.score(X[60:160], y[60:160]), 2)
        0.95
        """
        return self._fit(X, y, None, validation, views)

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        validation: tuple[ArrayLike, ArrayLike] | None,
        views: ArrayLike | None,
    ) -> Self:
        """Read rows, labels and text, and fit."""
        self._check_views(views)
        options = self._options()
        settings_of(options, self)  # options are checked before rows
        trainer = self._trainer()
        array: Any = X
        if getattr(X, "reads_in_batches", False):  # StoredRows: only their shape is checked here
            labels = self._read_rows(np.broadcast_to(np.float32(1), array.shape), y)[1]
        else:
            array, labels = self._read_rows(X, y)
        weights = sample_weights(sample_weight, len(labels))
        if weights is not None:
            if options.likelihood != "softmax":
                raise ProtocolError("sample_weight needs the softmax likelihood, the default.")
            if not (kept := weights > 0).all():  # otherwise mapped rows are not read here
                array, labels, weights = array[:][kept], labels[kept], weights[kept]
        if options.selection == "validation" and validation is None:
            raise ProtocolError(
                f"{type(self).__name__} with selection='validation' chooses on a validation set: "
                "pass fit(X, y, validation=(X_val, y_val)), or use selection='auto'."
            )
        numbers = self._label_numbers(labels)
        n, width = array.shape
        if takes_explicit(options, n, width, len(self.classes_), self._device):
            if weights is not None:
                raise ProtocolError(
                    "Explicit features take no sample_weight: use approximation='exact', or leave "
                    "the weights out."
                )
            return self._fit_streamed(array, numbers, validation)
        text, features = self._text_vectors(), self._unit(np.asarray(array[:]), "X")
        shots = self._make_shots(features, numbers, text)
        if weights is not None:
            shots = replace(shots, sample_weight=torch.as_tensor(weights).to(features))
        if views is not None:
            shots = replace(shots, views=self._read_views(views, features))
        task = self._task(shots, text, validation)
        if task.recipe.space.projection is not None:  # check all rows before folds are made
            projected(task.recipe.space.projection, features)
        with fitting(shots):
            self._keep(fit(task, trainer))
        return self

    def _fit_streamed(
        self, array: Any, labels: Tensor, validation: tuple[ArrayLike, ArrayLike] | None
    ) -> Self:
        """Fit in explicit features: rows are read in batches, in float32 by default."""
        if self.dtype == "auto":
            self._dtype = torch.float32
        rows = RowStream(array, labels, len(self.classes_), self._text_vectors(), self._dtype)
        task = self._task(rows.labels_alone(), rows.text, validation)
        with fitting(task.shots):
            self._keep(fit_streamed(rows, task, n_features=self._options().n_features))
        return self

    @property
    def has_keys(self) -> bool:
        """Whether it keeps the shots, so that answers can be explained by them."""
        fitted = getattr(self, "fitted_", None)
        return fitted is None or fitted.streamed is None

    def _keep(self, fitted: Fitted, classes: NDArray[Any] | None = None) -> None:
        """Store a fitted value, and expose its hyper-parameters as attributes."""
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
        if fitted.trainer is not None:
            self.epochs_, self.training_loss_ = fitted.epochs, fitted.losses

    def _make_shots(self, features: Tensor, labels: Tensor, text: Tensor | None) -> Shots:
        zero_shot = None if text is None else features @ text.mT
        residual = settings_of(self._options(), self).residual
        return Shots(features, labels, len(self.classes_), zero_shot, residual=residual)

    def _task(
        self,
        shots: Shots,
        text: Tensor | None,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Task:
        """What a fit of these shots starts from, at the options of the estimator."""
        options, held_out = self._options(), None
        recipe = recipe_of(options, shots, self._read_projection(self.projection), self)
        if validation is not None:
            held_out = self._make_shots(*self._read_validation(validation), text)
        settings = settings_of(options, self)
        return Task(shots, recipe, text, settings, held_out, type(self).__name__)

    # Answers.

    def _logits(self, features: Tensor) -> Tensor:
        return self.fitted_.model.logits(features)

    def _answer(self, features: Tensor, *, top: int) -> Answers:
        answers = self.fitted_.model.answer(features, variance=True, quick=True, top=top)
        assert answers.variance is not None
        reasons = None if answers.reasons is None else self._explanation(answers.reasons)
        return Answers(answers.logits, _array(answers.variance.amin(1)), reasons)

    def posterior(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Compute mean and variance of the posterior of the cache.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.

        Returns
        -------
        mean : array of shape (m, c)
            Posterior mean of each class.
        variance : array of shape (m,) or (m, g)
            Posterior variance; one column for each group when classes are grouped.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> model = GPCacheClassifier().fit(np.eye(4), ["a", "a", "b", "b"])
        >>> mean, variance = model.posterior(np.eye(4))
        >>> mean.shape, variance.shape
        ((4, 2), (4,))
        """
        features = self._read_queries(X)
        with torch.no_grad():
            mean, variance = self.fitted_.model.posterior(features)
        if not isinstance(self.fitted_.model.precision, GroupedPrecision):
            variance = variance[:, 0]
        return _array(mean), _array(variance)

    def novelty(self, X: ArrayLike, *, quick: bool = False) -> NDArray[np.float64]:
        """Compute how unlike all shots each row is: the variance of the posterior, from 0 to 1.

        Compare it with `held_out_novelty_`, the novelty of unseen rows of known classes.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.
        quick : bool, default=False
            With thousands of shots, use a low-rank form of the variance if it is within 1 % of the
            exact one. It is prepared once.

        Returns
        -------
        array of shape (m,)
            Novelty of each row.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> rng = np.random.default_rng(0)
        >>> X = np.repeat(rng.normal(size=(2, 8)), 5, axis=0) + 0.1 * rng.normal(size=(10, 8))
        >>> model = GPCacheClassifier(kernel_space="raw").fit(X, ["a"] * 5 + ["b"] * 5)
        >>> bool(model.novelty(-X[:1])[0] > model.novelty(X[:1])[0])
        True
        """
        features = self._read_queries(X)
        with torch.no_grad():
            variance = self.fitted_.model.variance(features, quick=quick)
        return _array(variance.amin(1))

    def explain(
        self,
        X: ArrayLike,
        *,
        top: int | None = 5,
        labels: ArrayLike | None = None,
        shots: tuple[ArrayLike, ArrayLike] | ShotIndex | None = None,
    ) -> Explanation:
        """List the shots that count for and against the label of each row.

        Parameters
        ----------
        X : array of shape (m, d)
            Features.
        top : int or None, default=5
            Number of shots to list, the largest share first; None lists all.
        labels : array of shape (m,), optional
            Labels to explain; the predicted ones by default.
        shots : (array of shape (n, d), array of shape (n,)) or ShotIndex, optional
            Features and labels of the fit, for a model in explicit features, which keeps none. They
            may be a mapped file or rows of a feature store. The shots of the largest shares are
            found among the 256 with the highest cosine to a row, those of the explained class
            first. An index reads the shots that count most for this class; where it knows fewer
            than `top`, the row numbers end in −1.

        Returns
        -------
        Explanation
            Shots with signed shares, and the parts of cache, text and discriminant in the logit.

        Raises
        ------
        DataError
            If the number of labels is not the number of rows.
        ProtocolError
            If the model keeps no shots and none are given, or both.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from gpcache import GPCacheClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> model = GPCacheClassifier().fit(X[:60], y[:60])
        >>> model.explain(X[60:61], top=2).shots.shape
        (1, 2)
        """
        if top is not None:
            whole("top", top, least=1)
        features, column = self._read_queries(X), None
        if labels is not None:
            column = self._label_numbers(label_array("explain", labels))
            if len(column) != len(features):
                raise DataError(f"explain got {len(features)} rows and {len(column)} labels.")
        if shots is not None:
            fitted = self.fitted_
            if fitted.streamed is None:
                raise ProtocolError("This model keeps its shots: explain needs no others.")
            if isinstance(shots, ShotIndex):
                if (shots.n_classes, shots.shape[1]) != (len(self.classes_), self.n_features_in_):
                    raise DataError("The index of shots belongs to another model: fit it again.")
                reasons = explicit_reasons.reasons_from_index(
                    fitted.model, features, shots, top=top, column=column
                )
                return self._explanation(reasons)
            rows = self.shots_elsewhere(*shots)
            reasons = explicit_reasons.reasons(
                fitted.model, fitted.streamed, features, rows, top=top, column=column
            )
            return self._explanation(reasons)
        self.fitted_.require_shots("explain an answer by shots")
        answers = self.fitted_.model.answer(features, top=top, column=column)
        assert answers.reasons is not None
        return self._explanation(answers.reasons)

    def shots_elsewhere(self, features: Any, labels: ArrayLike) -> RowStream:
        """Read the shots of a model that keeps none, in batches.

        Parameters
        ----------
        features : array of shape (n, d)
            Features of the fit; a mapped file or rows of a feature store.
        labels : array of shape (n,)
            Labels of the fit.

        Returns
        -------
        RowStream
            The shots.

        Raises
        ------
        DataError
            If the shape is not that of the shots, or a label is unknown.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> model = GPCacheClassifier().fit(np.eye(4), ["a", "a", "b", "b"])
        >>> len(model.shots_elsewhere(np.eye(4), ["a", "a", "b", "b"]))
        4
        """
        rows = features if hasattr(features, "shape") else np.asarray(features)
        numbers = self._label_numbers(label_array("explain", labels))
        if rows.shape != (len(numbers), self.n_features_in_):
            raise DataError(
                f"The shots that explain an answer must be of shape ({len(numbers):,}, "
                f"{self.n_features_in_:,}), got {tuple(rows.shape)}."
            )
        return self._row_stream(rows, numbers)

    def _row_stream(self, rows: Any, numbers: Tensor) -> RowStream:
        """Rows (n, d) of class numbers (n,), in the precision of the model."""
        text, dtype = self.fitted_.text, self.fitted_.shots.features.dtype
        return RowStream(rows, numbers, len(self.classes_), text, dtype)

    def _explanation(self, reasons: Reasons) -> Explanation:
        names = self.classes_[reasons.column.cpu().numpy()]
        return Explanation(
            names, reasons.shots.cpu().numpy(), *(_array(part) for part in reasons[2:])
        )

    # Held-out figures.

    @property
    def loo_(self) -> HeldOutReport:
        """Held-out accuracy, NLL and ECE of the shots (`HeldOutReport`).

        No validation set is needed. Everything that was learned from labels is learned again
        without the held-out rows. After an update the report is computed when it is first read.
        Reading it never trains a cache; call `held_out` for that.
        """
        check_is_fitted(self)
        return self.fitted_.report

    def held_out(self) -> HeldOutReport:
        """Compute held-out figures now, at the hyper-parameters in use.

        A trained cache is trained again in each fold.

        Returns
        -------
        HeldOutReport
            Held-out accuracy, NLL, ECE and probabilities.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from gpcache import GPCacheClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> report = GPCacheClassifier().fit(X[:60], y[:60]).held_out()
        >>> report.protocol
        '4-fold cross-validation; everything is refitted in each fold'
        """
        check_is_fitted(self)
        return self.fitted_.held_out()

    @property
    def held_out_novelty_(self) -> NDArray[np.float64]:
        """Novelty of each shot as if the model had not seen it, of shape (n,); NaN if unknown."""
        check_is_fitted(self)
        return self.fitted_.novelty

    # Updates.

    def add(self, X: ArrayLike, y: ArrayLike, *, refit: Refit = "auto") -> Self:
        """Add shots.

        Without text, labels may name new classes.

        Parameters
        ----------
        X : array of shape (k, d)
            Features of the new shots. A model in explicit features reads a mapped file and
            `StoredRows` of a feature store in batches.
        y : array of shape (k,)
            Their labels.
        refit : {"auto", True, False}, default="auto"
            Whether to choose hyper-parameters, feature scaling and temperature again. "auto" does
            so up to 200 shots, and beyond once a twentieth of them has changed since the last
            choice. False keeps them: the result is the unique model of the new shots at these
            choices.

        Returns
        -------
        CacheClassifier
            This estimator.

        Raises
        ------
        DataError
            If a label is missing, of another kind than the classes, or unknown to the text.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> model = GPCacheClassifier(kernel_space="raw").fit(np.eye(4)[:2], ["a", "b"])
        >>> model.add(np.eye(4)[2:3], ["c"]).classes_.tolist()
        ['a', 'b', 'c']
        """
        rows = self._read_queries(X) if self.has_keys else self._read_stream(X)
        labels = further_labels("add", y, self.classes_, len(rows))
        fitted, classes = self.fitted_, self.classes_
        if self.text_prior is None:
            classes = np.unique(np.concatenate([classes, labels]))
            fitted = with_class_names(fitted, self.classes_, classes, None)
        numbers = self._label_numbers(labels, classes)
        if self.has_keys:
            change = partial(fitted.added, rows, numbers)
        else:
            change = partial(fitted.added_in_batches, self._row_stream(rows, numbers))
        return self._changed(change, refit, classes, len(rows))

    def remove(self, rows: ArrayLike, *, refit: Refit = "auto") -> Self:
        """Remove shots by row number, as if the model had never seen them.

        Without text, a class without shots is removed as well.

        Parameters
        ----------
        rows : array of int
            Row numbers of the shots, in the order of `fit` and `add`.
        refit : {"auto", True, False}, default="auto"
            Whether to choose hyper-parameters, feature scaling and temperature again. "auto" does
            so once a twentieth of the shots has changed since they were chosen. False keeps them.

        Returns
        -------
        CacheClassifier
            This estimator.

        Raises
        ------
        DataError
            If a row number is out of range or repeated, or no shot would be left.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> model = GPCacheClassifier(kernel_space="raw").fit(np.eye(4), ["a", "a", "b", "c"])
        >>> model.remove([3]).classes_.tolist()
        ['a', 'b']
        """
        gone = self._row_numbers(rows, "remove shots")
        if len(gone) == len(self.fitted_.shots):
            raise DataError("remove would leave no shot at all: keep at least one.")
        return self._changed(partial(self.fitted_.removed, gone), refit)

    def relabel(self, rows: ArrayLike, y: ArrayLike, *, refit: Refit = "auto") -> Self:
        """Give shots other labels; each must be a known class.

        Parameters
        ----------
        rows : array of int
            Row numbers of the shots.
        y : array of shape (len(rows),)
            Their new labels.
        refit : {"auto", True, False}, default="auto"
            Whether to choose hyper-parameters, feature scaling and temperature again. "auto" does
            so once a twentieth of the shots has changed since they were chosen. False keeps them.

        Returns
        -------
        CacheClassifier
            This estimator.

        Raises
        ------
        DataError
            If a row number or a label is unknown, or their numbers differ.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier
        >>> model = GPCacheClassifier(kernel_space="raw").fit(np.eye(4), ["a", "a", "b", "b"])
        >>> model.relabel([1], ["b"]).predict(np.eye(4)[1:2]).tolist()
        ['b']
        """
        changed = self._row_numbers(rows, "relabel shots")
        labels = self._label_numbers(label_array("relabel", y))
        if len(labels) != len(changed):
            raise DataError(f"relabel got {len(changed)} rows and {len(labels)} labels.")
        return self._changed(partial(self.fitted_.relabelled, changed, labels), refit)

    def set_text(self, text_prior: TextPrior) -> Self:
        """Replace the text and the classes; every class with shots must be in the new text.

        The result is exact: the posterior of the same shots with the new text.

        Parameters
        ----------
        text_prior : TextPrior
            The new text.

        Returns
        -------
        CacheClassifier
            This estimator.

        Raises
        ------
        DataError
            If the model has no text, the text was trained, or the widths differ.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import GPCacheClassifier, TextPrior
        >>> prior = TextPrior(["cat", "dog"], np.eye(3)[:2])
        >>> model = GPCacheClassifier(text_prior=prior).fit(np.eye(3)[:2], ["cat", "dog"])
        >>> model.set_text(TextPrior(["cat", "dog", "fox"], np.eye(3))).classes_.tolist()
        ['cat', 'dog', 'fox']
        """
        check_is_fitted(self)
        if self.text_prior is None:
            raise DataError("A model without text cannot be given one: fit it with a text_prior.")
        require_text_prior(text_prior, self.n_features_in_)
        trainer = self.fitted_.trainer
        if trainer is not None and trainer.moves_text:
            raise DataError("The text of this model was trained with its keys: fit it again.")
        used = torch.unique(self.fitted_.shots.labels).cpu().numpy()
        text_prior.aligned(self.classes_[used])
        classes = text_prior.classes
        text = self._text_vectors(text_prior, classes)
        self._keep(with_class_names(self.fitted_, self.classes_, classes, text), classes)
        self.text_prior = text_prior
        return self

    def refit(self) -> Self:
        """Choose hyper-parameters, feature scaling and temperature again, on the current shots.

        Trained keys, and choices made on a validation set, stay as they are.

        Returns
        -------
        CacheClassifier
            This estimator.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from gpcache import GPCacheClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> model = GPCacheClassifier().fit(X[:60], y[:60]).add(X[60:61], y[60:61], refit=False)
        >>> len(model.refit().fitted_.shots)
        61
        """
        check_is_fitted(self)
        if self.fitted_.can_choose_again:
            old, text = self.fitted_.shots, self._text_vectors()
            shots = self._make_shots(old.features, old.labels, text)
            with fitting(shots):
                self._keep(fit(self._task(shots, text)))
        elif self.fitted_.recipe.space.sees_labels:
            kept = "keeps the learned feature scaling: fit on all shots to learn it again"
            warnings.warn(f"This update {kept}.", stacklevel=4)
        return self

    def _changed(
        self,
        change: Callable[[], Fitted],
        refit: Refit,
        classes: NDArray[Any] | None = None,
        further: int = 0,
    ) -> Self:
        """Keep the result of a change, and choose hyper-parameters again if that is due.

        The classes are `classes`; by default those of before, without text those that have shots.
        `further` rows come to the shots.
        """
        with fitting(self.fitted_.shots, further):
            fitted = change()
            if classes is None:
                classes = self.classes_
                if self.text_prior is None:
                    classes = classes[torch.unique(fitted.shots.labels).cpu().numpy()]
                    fitted = with_class_names(fitted, self.classes_, classes, None)
            self._keep(fitted, classes)
        n = fitted.n_rows
        due = n <= REFIT_SMALL or fitted.changed > REFIT_SHARE * n
        if refit is True or (refit == "auto" and due):
            self.refit()
        return self

    def _read_stream(self, X: Any) -> Any:
        """Rows to be read in batches; their values are checked when they are read."""
        if getattr(X, "reads_in_batches", False):  # StoredRows
            self._validated(np.broadcast_to(np.float32(1), X.shape), reset=False)
            return X
        return X if self._is_plain(X) else self._validated(X, reset=False)

    def _row_numbers(self, rows: ArrayLike, purpose: str) -> Tensor:
        """Row numbers of shots, of a model that keeps them; `purpose` is for the error."""
        check_is_fitted(self)
        self.fitted_.require_shots(purpose)
        labels = self.fitted_.shots.labels
        return torch.as_tensor(row_numbers(rows, len(labels)), device=labels.device)

    # Saving.

    def _flat_options(self) -> dict[str, Any]:
        known = {*OPTION_NAMES, *TRAINING_NAMES, "random_state"}
        return {name: one for name, one in flattened(self._given()).items() if name in known}

    def _write_state(self, state: State) -> None:
        write_cache(self.fitted_, state)

    def _read_state(self, state: State) -> None:
        def tensors(name: str) -> Tensor | None:
            return self._tensor(state.arrays, name)

        features, labels, text = tensors("features"), tensors("labels"), self._text_vectors()
        lacks_keys = tensors("keys") is None and "explicit" not in state.settings
        if features is None or labels is None or lacks_keys:
            raise DataError("The saved model lacks its shots.")
        choice = Choice.from_settings(state.settings["choice"])
        shots = saved_shots(self._make_shots(features, labels, text), choice, tensors)
        task = self._task(shots, text)
        self._keep(read_cache(state, tensors, task, self._calibration, self._trainer()))


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().cpu().numpy()
