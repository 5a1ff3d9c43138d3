"""Methods that add scores to the zero-shot logits: logits = s · f W + Σ_k weight_k · scores_k(f).

The weights and the other hyper-parameters are chosen on held-out rows: by cross-validation on the
shots, with everything refitted in each fold, or on a validation set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.errors import DataError, ProtocolError
from gpcache.gp.feature_maps import Projection, projected
from gpcache.methods.base import FeatureClassifier, State
from gpcache.methods.cache.held_out import (
    HeldOutLogits,
    HeldOutReport,
    folds_protocol,
    report_folds,
)
from gpcache.methods.cache.shots import Shots, fold_rows
from gpcache.methods.weighing import HyperParameters as HyperParameters
from gpcache.methods.weighing import WeightSearch, added, columns_of, given_values
from gpcache.metrics import Calibration, fit_calibration
from gpcache.support.checks import one_of, whole
from gpcache.support.devices import explained_memory_errors


class Learned(Protocol):
    """The part of a method that is learned from shots."""

    def scores(self, features: Tensor, hyper_parameters: HyperParameters) -> Tensor:
        """One score (k, m, c) of rows (m, d) for each weight."""


class AdditiveClassifier(FeatureClassifier):
    """Base of the additive methods; a subclass defines its hyper-parameters and `_learn`."""

    #: Options of every method; a constructor lists those that it takes.
    projection: Projection | ArrayLike | None = None
    criterion: Literal["nll", "accuracy"] = "nll"
    selection: Literal["auto", "folds", "validation"] = "auto"
    n_folds: int = 8
    random_state: int = 0

    #: The weights of the scores, in order, with the values to try by accuracy.
    _weights: ClassVar[dict[str, Sequence[float]]]
    #: The other hyper-parameters, with the values to try.
    _shapes: ClassVar[dict[str, Sequence[float]]] = {}
    #: Hyper-parameters if nothing can be held out.
    _defaults: ClassVar[HyperParameters]
    learns_from_views: ClassVar[bool] = True
    #: Whether its scores mean nothing for a class without shots.
    _needs_shots_of_a_class: ClassVar[bool] = True
    _uses_text: ClassVar[bool] = True

    def _learn(self, shots: Shots) -> Learned:
        """Learn from shots what does not depend on the hyper-parameters."""
        raise AssertionError("an additive method defines _learn")

    @explained_memory_errors("A fit", "Use fewer shots.")
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
        views: ArrayLike | None = None,
    ) -> Self:
        """Fit the model on shots, and on augmented views of them if given.

        Hyper-parameters given as "auto" are chosen on held-out shots, or on the validation set.

        Parameters
        ----------
        X : array of shape (n, d)
            Features of the shots.
        y : array of shape (n,)
            Labels of the shots.
        validation : tuple of arrays, optional
            Rows (X, y) to choose hyper-parameters on.
        views : array of shape (n, v, d), optional
            Augmented views of the shots, for methods that learn from each view.

        Returns
        -------
        AdditiveClassifier
            The fitted estimator.

        Raises
        ------
        DataError
            If the method needs text and has none, or takes no views.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache.methods import GDAClassifier
        >>> X, y = np.vstack([np.eye(3) + 0.1, np.eye(3) + 0.2]), ["cat", "dog", "fox"] * 2
        >>> GDAClassifier().fit(X, y).predict(np.eye(3)).tolist()
        ['cat', 'dog', 'fox']
        """
        self._check_options(validation)
        self._check_views(views)
        features, labels = self._read_training(X, y)
        if "text" in self.needs and self.text_prior is None:
            raise DataError(f"{type(self).__name__} needs text: give it text_prior=TextPrior(…).")
        self._text = self._text_vectors() if self._uses_text else None
        self._mapping = self._read_projection(self.projection)
        shots = self._make_shots(features, self._label_numbers(labels))
        if views is not None:
            shots = replace(shots, views=self._read_views(views, features))
        held_out = None
        if validation is not None:
            held_out = self._make_shots(*self._read_validation(validation))
        self._shots, self._learned = shots, self._learned_from(shots)
        self._choose(held_out)
        return self

    def _take(self, hyper_parameters: HyperParameters) -> None:
        """Set the hyper-parameters in use, also as attributes."""
        self._chosen = hyper_parameters
        for name, value in hyper_parameters.items():
            setattr(self, f"{name}_", value)

    def _write_state(self, state: State) -> None:
        state.settings["hyper_parameters"] = self._chosen
        self._shots.write(state.arrays)
        self.loo_.write(self.search_, *state)

    def _read_state(self, state: State) -> None:
        """Learn again from the saved shots, at the hyper-parameters that were chosen then."""
        settings, arrays = state
        self._text = self._text_vectors() if self._uses_text else None
        features, labels = self._tensor(arrays, "features"), self._tensor(arrays, "labels")
        if features is None or labels is None:
            raise DataError("The saved model lacks its shots.")
        shots = self._make_shots(features, labels)
        self._shots = replace(shots, views=self._tensor(arrays, "views"))
        self._take(settings.get("hyper_parameters") or settings["numbers"])  # as 0.1 wrote it
        self._mapping = self._read_projection(self.projection)
        self._learned = self._learned_from(self._shots)
        self.loo_, self.search_ = HeldOutReport.read(settings, arrays)

    def _check_options(self, validation: Any) -> None:
        one_of("criterion", self.criterion, ("nll", "accuracy"), owner=self)
        one_of("selection", self.selection, ("auto", "folds", "validation"), owner=self)
        whole("n_folds", self.n_folds, least=2)
        whole("random_state", self.random_state, least=0)
        given_values(self, self._defaults)
        if self.selection == "validation" and validation is None:
            raise ProtocolError(
                f"{type(self).__name__} with selection='validation' chooses on a validation set: "
                "pass fit(X, y, validation=(X_val, y_val)), or use selection='auto'."
            )

    def _make_shots(self, features: Tensor, labels: Tensor) -> Shots:
        zero_shot = None if self._text is None else features @ self._text.mT
        return Shots(features, labels, len(self.classes_), zero_shot)

    def _learned_from(self, shots: Shots) -> Learned:
        """Learn from projected shots; their text logits stay as they are."""
        if self._mapping is None:
            return self._learn(shots)
        views = shots.views
        if views is not None:
            views = self._mapped(views.flatten(0, 1)).view(views.shape)
        return self._learn(replace(shots, features=self._mapped(shots.features), views=views))

    def _mapped(self, features: Tensor) -> Tensor:
        """Unit rows (m, d) after the projection, in which images are compared with images."""
        if self._mapping is None:
            return features
        rows = projected(self._mapping, features)
        if rows.shape != features.shape:
            raise DataError(
                f"projection of {type(self).__name__} must keep the {features.shape[1]} columns of "
                f"a row, got {rows.shape[1]}."
            )
        return rows

    def _scored(
        self, learned: Learned, features: Tensor, hyper_parameters: HyperParameters
    ) -> Tensor:
        """The scores (k, m, c) of rows (m, d), neutral for classes without shots."""
        scores = learned.scores(features, hyper_parameters)
        return neutral(scores, self._shots.absent) if self._needs_shots_of_a_class else scores

    def _choose(self, validation: Shots | None) -> None:
        """Choose hyper-parameters and calibration on held-out rows, and report their figures."""
        shots, seed = self._shots, int(self.random_state)
        given = given_values(self, self._defaults)
        empty = HeldOutReport.empty(len(shots), shots.n_classes, "validation set")
        if validation is not None:
            tested, parts = validation, [(self._learned, validation.features)]
        elif shots.can_be_held_out:
            folds = fold_rows(shots.folds(self.n_folds, seed))
            rows = torch.cat([held for _, held in folds])
            parts = [
                (self._learned_from(shots[train]), shots.features[held]) for train, held in folds
            ]
            tested = shots[rows]
        else:
            self._take(self._defaults | given)
            self._accept_calibration(Calibration())
            self.search_ = {name: np.array([value]) for name, value in self._chosen.items()}
            self.loo_ = replace(empty, protocol="none: most classes have one shot")
            return
        mapped = [(learned, self._mapped(features)) for learned, features in parts]

        def scores_at(shape: HyperParameters) -> Tensor:
            return torch.cat([self._scored(*part, shape) for part in mapped], dim=1)

        # If a class has no shots, held-out shots cannot show what its text is worth.
        free_gain = not bool(shots.absent.any())
        grids = self._weights, self._shapes
        search = WeightSearch(tested, scores_at, *grids, given, self.criterion, free_gain)
        tried = search.tried(type(self).__name__)
        self._take({name: tried[0].setting[name] for name in self._defaults})
        self.search_ = columns_of(tried)
        logits = search.logits(self._chosen)
        self._accept_calibration(fit_calibration(logits, tested.labels))
        self.loo_ = empty
        if validation is None:
            nested = search.nested(tried, report_folds(shots, rows, seed))
            held_out = HeldOutLogits(logits, rows, folds_protocol(len(parts)))
            self.loo_ = HeldOutReport.of_shots(shots, held_out, seed, nested)

    def _logits(self, features: Tensor) -> Tensor:
        zero_shot = None if self._text is None else features @ self._text.mT
        scores = self._scored(self._learned, self._mapped(features), self._chosen)
        return added(zero_shot, scores, [self._chosen[name] for name in self._weights])


def neutral(scores: Tensor, absent: Tensor) -> Tensor:
    """Scores (…, c) in which a class without a shot gets the mean of the others.

    With a score of 0 it would win or lose depending on the scale of the other scores.
    """
    if not bool(absent.any()):
        return scores
    return torch.where(absent, scores[..., ~absent].mean(-1, keepdim=True), scores)
