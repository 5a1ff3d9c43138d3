"""Exact updates of a fitted cache: shots come, go, or change their label without a refit.

Hyper-parameters, temperature and feature map stay as fitted; with those fixed the result equals a
refit. The exact posterior is updated in O(n²); approximations are cheap and are built again.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp import ExactPrecision
from gpcache.methods.cache import softmax
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.shots import Belief, Recipe, Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.support.checks import label_array, same_kind, shown


class UpdatesMixin:
    """`add`, `remove` and `relabel` for cache classifiers."""

    text_prior: Any
    classes_: NDArray[Any]
    _text: Tensor | None
    _shots: Shots
    gain_: float
    _model: CacheModel
    _recipe: Recipe
    _report: Any

    # What the estimator gives.
    _read_queries: Any
    _label_numbers: Any
    _make_shots: Any
    _condition: Any
    _text_vectors: Any
    _novelty: NDArray[np.float64] | None
    n_features_in_: int

    #: Whether the text was trained, together with the keys.
    _text_moves = False

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
        self._warn_of_kept_whitening()
        if self.text_prior is None:
            self._reclass(np.unique(np.concatenate([self.classes_, labels])))
        new = self._make_shots(features, self._label_numbers(labels)).at_gain(self.gain_)
        old, precision = self._shots, self._model.precision
        self._shots = replace(
            old,
            features=torch.cat([old.features, new.features]),
            labels=torch.cat([old.labels, new.labels]),
            values=torch.cat([old.values, new.values]),
            zero_shot=None if old.zero_shot is None else torch.cat([old.zero_shot, new.zero_shot]),
            # A new shot is its own only view.
            views=None
            if old.views is None
            else torch.cat([old.views, features[:, None].expand(-1, old.views.shape[1], -1)]),
            belief=None
            if old.belief is None
            else Belief(
                torch.cat([old.belief.weights, old.belief.weights.new_ones(len(new))]),
                torch.cat([old.belief.labels, new.labels]),
            ),
        ).at_gain(self.gain_)
        keys = self._model.feature_map(new.features)
        if (exact := self._exact()) is not None:
            self._accept_precision(self._with_values(exact.add(keys, new.values)))
        else:
            fresh = torch.full((len(new),), -1, device=new.labels.device)
            source = torch.cat([torch.arange(len(old), device=fresh.device), fresh])
            self._rebuild(torch.cat([precision.keys, keys]), source)
        return self

    def remove(self, rows: ArrayLike) -> Self:
        """Forget the shots of these row numbers, as if they had never been seen."""
        gone = self._row_numbers(rows)
        kept = torch.ones(len(self._shots), dtype=torch.bool, device=gone.device)
        kept[gone] = False
        if not bool(kept.any()):
            raise DataError("remove would leave no shot at all: keep at least one.")
        self._warn_of_kept_whitening()
        precision = self._model.precision
        self._shots = self._shots[kept].at_gain(self.gain_)
        if (exact := self._exact()) is not None:
            self._accept_precision(self._with_values(exact.remove(gone)))
        else:
            self._rebuild(precision.keys[kept], torch.nonzero(kept).flatten())
        self._drop_empty_classes()
        return self

    def relabel(self, rows: ArrayLike, y: ArrayLike) -> Self:
        """Give the shots of these row numbers other labels; each must be a known class."""
        changed = self._row_numbers(rows)
        labels = self._label_numbers(label_array("relabel", y))
        if len(labels) != len(changed):
            raise DataError(f"relabel got {len(changed)} rows and {len(labels)} labels.")
        self._warn_of_kept_whitening()
        numbers = self._shots.labels.clone()
        numbers[changed] = labels
        self._relabelled(numbers)
        if (exact := self._exact()) is not None:
            self._accept_precision(self._with_values(exact))
        else:
            self._rebuild(self._model.precision.keys)
        self._drop_empty_classes()
        return self

    def set_text(self, text_prior: TextPrior) -> Self:
        """Answer with other text, and thus other classes; all classes with shots must be in it.

        Exact: the posterior is that of the same shots with the values that the text gives them.
        """
        check_is_fitted(self)
        if self.text_prior is None:
            raise DataError("A model without text cannot be given one: fit it with a text_prior.")
        if not isinstance(text_prior, TextPrior):
            raise DataError(
                "text_prior must be a TextPrior(class_names, vectors), "
                f"got a {type(text_prior).__name__}."
            )
        if self._text_moves:
            raise DataError("The text of this model was trained with its keys: fit it anew.")
        if text_prior.vectors.shape[1] != self.n_features_in_:
            raise DataError(
                f"The text vectors have {text_prior.vectors.shape[1]} columns, the shots "
                f"{self.n_features_in_}: both must come from the same encoder."
            )
        text_prior.aligned(self.classes_[torch.unique(self._shots.labels).cpu().numpy()])
        old, exact = self.classes_, self._exact()
        self.text_prior, self.classes_ = text_prior, text_prior.classes
        self._text = self._text_vectors()
        number = {name: i for i, name in enumerate(self.classes_.tolist())}
        device = self._shots.labels.device
        moved = torch.tensor([number.get(name, -1) for name in old.tolist()], device=device)
        self._renumbered(moved)
        self._model = replace(self._model, text=self._text)
        position = {name: i for i, name in enumerate(old.tolist())}
        source = [position.get(name, -1) for name in self.classes_.tolist()]
        columns = torch.tensor(source, device=device)
        if exact is None:
            self._rebuild(self._model.precision.keys, columns=columns)
        else:
            self._accept_precision(self._with_values(exact.with_columns(columns)))
        return self

    def _relabelled(self, numbers: Tensor) -> None:
        """The same shots, views included, with other class numbers (n,)."""
        shots = self._make_shots(self._shots.features, numbers).at_gain(self.gain_)
        self._shots = replace(shots, views=self._shots.views, belief=self._shots.belief)

    def _renumbered(self, numbers: Tensor) -> None:
        """The same shots with labels of other numbers: (c,) for the old ones, −1 for none."""
        belief = self._shots.belief
        if belief is not None:
            known = torch.where(belief.labels >= 0, numbers[belief.labels.clamp(min=0)], -1)
            self._shots = replace(self._shots, belief=belief._replace(labels=known))
        self._relabelled(numbers[self._shots.labels])

    def _drop_empty_classes(self) -> None:
        """Without text, a class is its shots: when they are gone, so is the class."""
        if self.text_prior is None:
            left = torch.unique(self._shots.labels).cpu().numpy()
            self._reclass(self.classes_[left])

    def _exact(self) -> ExactPrecision | None:
        """The posterior, if it is one of regression that knows updates."""
        precision = self._model.precision
        is_regression = self._model.coefficients is None
        return precision if is_regression and isinstance(precision, ExactPrecision) else None

    def _with_values(self, exact: ExactPrecision) -> ExactPrecision:
        """The posterior with the values of the shots.

        Where a class got its first shot or lost its last, those of all shots are others.
        """
        values = self._shots.values
        changed = torch.nonzero((exact.values != values).any(1)).flatten()
        return exact.revalue(changed, values[changed]) if len(changed) else exact

    def _rebuild(
        self, keys: Tensor, rows: Tensor | None = None, columns: Tensor | None = None
    ) -> None:
        """The posterior of the shots with these keys (n, d').

        `rows` (n,) and `columns` (c,) are the old numbers of shots and classes, −1 for new ones;
        None where all stayed. With the softmax likelihood the solver starts from there.
        """
        precision = self._condition(self._shots, keys)
        if self._model.coefficients is not None:
            self._model = softmax.updated(self._model, precision, self._shots, rows, columns)
        self._accept_precision(precision)

    def _accept_precision(self, precision: Any) -> None:
        self._model = replace(self._model, precision=precision)
        self._report = self._novelty = None

    def _reclass(self, classes: NDArray[Any]) -> None:
        """Change the list of classes: columns of zeros come, columns without a shot go."""
        if len(classes) == len(self.classes_) and (classes == self.classes_).all():
            return
        number = {name: i for i, name in enumerate(self.classes_.tolist())}
        source = torch.tensor([number.get(name, -1) for name in classes.tolist()])
        source = source.to(self._shots.labels.device)
        target = torch.full((len(self.classes_),), -1, device=source.device)
        known = source >= 0
        target[source[known]] = torch.nonzero(known).flatten()
        self.classes_ = classes
        self._renumbered(target)
        if (exact := self._exact()) is not None:
            self._accept_precision(exact.with_columns(source))
        else:
            self._rebuild(self._model.precision.keys, columns=source)

    def _row_numbers(self, rows: ArrayLike) -> Tensor:
        check_is_fitted(self)
        numbers = np.atleast_1d(np.asarray(rows))
        n = len(self._shots)
        if not len(numbers):
            numbers = numbers.astype(np.int64)
        if numbers.dtype.kind not in "iu" or (numbers < 0).any() or (numbers >= n).any():
            raise DataError(f"Row numbers must be whole numbers from 0 to {n - 1}.")
        if len(np.unique(numbers)) != len(numbers):
            raise DataError("A row number stands there more than once.")
        return torch.as_tensor(numbers.astype(np.int64), device=self._shots.labels.device)

    def _warn_of_kept_whitening(self) -> None:
        if self._recipe.space.sees_labels:
            warnings.warn(
                "The whitening stays as it was fitted; call fit with all shots to learn it anew.",
                stacklevel=3,
            )
