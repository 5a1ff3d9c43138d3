"""Methods that add scores to the zero-shot logits: logits = s · f W + Σ_k weight_k · scores_k(f).

The weights and the other hyper-parameters are chosen on held-out rows: by cross-validation on the
shots, with everything refitted in each fold, or on a validation set. By NLL, Newton's method finds
the exact weights for each setting of the other hyper-parameters; by accuracy all are taken from
grids, as in the papers.
"""

from __future__ import annotations

import itertools
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
    best_without,
    cross_fitted,
    folds_protocol,
    report_folds,
)
from gpcache.methods.cache.shots import Shots, fold_rows
from gpcache.methods.projections import add_projection, saved_projection
from gpcache.metrics import (
    Calibration,
    fit_calibration,
    fit_scales,
    fit_temperature,
    mean_nll,
    smoothed_losses,
)
from gpcache.support.checks import is_auto, one_of, positive, whole
from gpcache.support.devices import explained_memory_errors
from gpcache.support.progress import progress_bar

HyperParameters = dict[str, float]

# The least weight of the text relative to the scores.
LEAST_GAIN = 1e-3


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
        if views is not None and not self.learns_from_views:
            raise DataError(
                f"{type(self).__name__} takes one vector per image: pass the mean of its views."
            )
        features, labels = self._read_training(X, y)
        if "text" in self.needs and self.text_prior is None:
            raise DataError(f"{type(self).__name__} needs text: give it text_prior=TextPrior(…).")
        self._text = self._text_vectors() if self._uses_text else None
        self._mapping = self._read_projection(self.projection)
        shots = self._shots = self._make_shots(features, self._label_numbers(labels), views)
        held_out = (
            None if validation is None else self._make_shots(*self._read_validation(validation))
        )
        self._learned = self._learned_from(shots)
        rows, scores_at, protocol = self._evidence(shots, held_out)
        tested = shots[rows] if held_out is None else held_out
        if scores_at is None:
            self._chosen = self._defaults | self._given()
            self.search_ = {name: np.array([value]) for name, value in self._chosen.items()}
        else:
            self._choose(scores_at, tested)
        self._expose_hyper_parameters()
        self._calibrate(shots, tested, rows, scores_at, protocol, held_out is None)
        return self

    def _expose_hyper_parameters(self) -> None:
        """Set the hyper-parameters in use as attributes."""
        for name, value in self._chosen.items():
            setattr(self, f"{name}_", value)

    @classmethod
    def _saved_options(cls, state: State) -> dict[str, Any]:
        return super()._saved_options(state) | saved_projection(state)

    def _write_state(self, state: State) -> None:
        add_projection(self.projection, state)
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
        self._chosen = settings.get("hyper_parameters") or settings["numbers"]  # as 0.1 wrote it
        self._mapping = self._read_projection(self.projection)
        self._learned = self._learned_from(self._shots)
        self._expose_hyper_parameters()
        self.loo_, self.search_ = HeldOutReport.read(settings, arrays)

    def _check_options(self, validation: Any) -> None:
        one_of("criterion", self.criterion, ("nll", "accuracy"), owner=self)
        one_of("selection", self.selection, ("auto", "folds", "validation"), owner=self)
        whole("n_folds", self.n_folds, least=2)
        whole("random_state", self.random_state, least=0)
        for name in (*self._weights, *self._shapes):
            value = getattr(self, name)
            if not is_auto(value):
                positive(name, value, owner=self, allow_zero=True)
        if self.selection == "validation" and validation is None:
            raise ProtocolError(
                f"{type(self).__name__} with selection='validation' chooses on a validation set: "
                "pass fit(X, y, validation=(X_val, y_val)), or use selection='auto'."
            )

    def _make_shots(self, features: Tensor, labels: Tensor, views: Any = None) -> Shots:
        zero_shot = None if self._text is None else features @ self._text.mT
        shots = Shots(features, labels, len(self.classes_), zero_shot)
        return shots if views is None else replace(shots, views=self._read_views(views, features))

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

    # Choosing.

    def _evidence(self, shots: Shots, held_out: Shots | None) -> tuple[Tensor, Any, str]:
        """Held-out rows (k,), a function that scores them, and how they were held out."""
        nothing = torch.zeros(0, dtype=torch.long, device=shots.labels.device)
        if held_out is not None:
            learned, queries = self._learned, self._mapped(held_out.features)
            return nothing, lambda n: self._scored(learned, queries, n), "validation set"
        if not shots.can_be_held_out:
            return nothing, None, "none: most classes have one shot"
        folds = fold_rows(shots.folds(self.n_folds, int(self.random_state)))
        parts = [
            (self._learned_from(shots[train]), self._mapped(shots.features[held]))
            for train, held in folds
        ]
        rows = torch.cat([held for _, held in folds])

        def scores_at(hyper_parameters: HyperParameters) -> Tensor:
            return torch.cat([self._scored(*part, hyper_parameters) for part in parts], dim=1)

        return rows, scores_at, folds_protocol(len(parts))

    def _given(self) -> HyperParameters:
        names = (*self._weights, *self._shapes)
        return {
            name: float(getattr(self, name)) for name in names if not is_auto(getattr(self, name))
        }

    def _choose(self, scores_at: Any, tested: Shots) -> None:
        given = self._given()
        grids = [
            [given[name]] if name in given else list(grid) for name, grid in self._shapes.items()
        ]
        tried: list[tuple[float, HyperParameters, float, float, Tensor]] = []
        total = int(np.prod([len(grid) for grid in grids])) if grids else 1
        with progress_bar(f"{type(self).__name__}: choosing", total=total, unit="setting") as bar:
            for values in itertools.product(*grids):
                shape = dict(zip(self._shapes, values, strict=True))
                scores = scores_at(shape)
                weights = self._best_weights(scores, tested, given)
                logits = self._added(tested.zero_shot, scores, weights)
                nll = float(mean_nll(logits, tested.labels))
                accuracy = float((logits.argmax(-1) == tested.labels).double().mean())
                tempered = logits / fit_temperature(logits, tested.labels)
                losses = smoothed_losses(tempered, tested.labels)
                if self.criterion == "accuracy":
                    losses = (logits.argmax(-1) != tested.labels) + 1e-6 * losses
                tried.append((float(losses.mean()), shape | weights, nll, accuracy, losses))
                bar.update()
        tried.sort(key=lambda one: one[0])
        self._chosen = tried[0][1]
        self._trail = [(one[1], one[4]) for one in tried]
        columns = [one[1] | {"nll": one[2], "accuracy": one[3], "score": one[0]} for one in tried]
        self.search_ = {name: np.array([row[name] for row in columns]) for name in columns[0]}

    def _best_weights(
        self, scores: Tensor, tested: Shots, given: HyperParameters
    ) -> HyperParameters:
        """The weights of scores (k, n, c): exact by NLL, or from the grids by accuracy."""
        names = list(self._weights)
        free = [row for row, name in enumerate(names) if name not in given]
        offset = tested.zero_shot
        for row, name in enumerate(names):
            if name in given:
                fixed = given[name] * scores[row]
                offset = fixed if offset is None else offset + fixed
        weights = {name: given[name] for name in names if name in given}
        if not free:
            return weights
        if self.criterion == "nll":
            # If a class has no shots, held-out shots cannot show what its text is worth.
            all_have_shots = len(torch.unique(self._shots.labels)) == self._shots.n_classes
            best_scales = _fitted(scores[free], tested.labels, offset, free_gain=all_have_shots)
            return weights | {names[row]: best_scales[i] for i, row in enumerate(free)}
        best: tuple[float, float, HyperParameters] = (-1.0, 0.0, {})
        for values in itertools.product(*(self._weights[names[row]] for row in free)):
            tried = {names[row]: value for row, value in zip(free, values, strict=True)}
            logits = self._added(tested.zero_shot, scores, weights | tried)
            accuracy = float((logits.argmax(-1) == tested.labels).double().mean())
            loss = float(mean_nll(logits, tested.labels))
            if (accuracy, -loss) > best[:2]:
                best = (accuracy, -loss, tried)
        return weights | best[2]

    def _added(self, zero_shot: Tensor | None, scores: Tensor, weights: HyperParameters) -> Tensor:
        scales = scores.new_tensor([weights[name] for name in self._weights])
        total = torch.einsum("k,kmc->mc", scales, scores)
        return total if zero_shot is None else total + zero_shot

    def _calibrate(
        self,
        shots: Shots,
        tested: Shots,
        rows: Tensor,
        scores_at: Any,
        protocol: str,
        rows_are_shots: bool,
    ) -> None:
        """Fit the calibration on the held-out rows, and report their figures."""
        self._accept_calibration(Calibration())
        self.loo_ = HeldOutReport.empty(len(shots), shots.n_classes, protocol)
        if scores_at is None:
            return
        logits = self._added(tested.zero_shot, scores_at(self._chosen), self._chosen)
        self._accept_calibration(fit_calibration(logits, tested.labels))
        if rows_are_shots:
            seed = int(self.random_state)
            nested = self._nested(scores_at, tested, report_folds(shots, rows, seed))
            held = HeldOutLogits(logits, rows, protocol)
            self.loo_ = HeldOutReport.of_shots(shots, held, seed, nested)
        del self._trail

    def _nested(self, scores_at: Any, tested: Shots, fold: Tensor) -> Tensor:
        """Probabilities (k, c) of held-out rows; hyper-parameters come from the other folds."""

        def logits_at(setting: int, other_rows: Tensor) -> Tensor:
            hyper_parameters = self._trail[setting][0]
            scores = scores_at({name: hyper_parameters[name] for name in self._shapes})
            weights = self._best_weights(scores[:, other_rows], tested[other_rows], self._given())
            return self._added(tested.zero_shot, scores, weights)

        losses = torch.stack([losses for _, losses in self._trail])
        chosen = best_without(losses, losses.new_zeros(len(losses)), fold)
        return cross_fitted(logits_at, chosen, fold, tested.labels)

    def _logits(self, features: Tensor) -> Tensor:
        zero_shot = None if self._text is None else features @ self._text.mT
        scores = self._scored(self._learned, self._mapped(features), self._chosen)
        return self._added(zero_shot, scores, self._chosen)


def neutral(scores: Tensor, absent: Tensor) -> Tensor:
    """Scores (…, c) in which a class without a shot gets the mean of the others.

    With a score of 0 it would win or lose depending on the scale of the other scores.
    """
    if not bool(absent.any()):
        return scores
    return torch.where(absent, scores[..., ~absent].mean(-1, keepdim=True), scores)


def _fitted(
    scores: Tensor, labels: Tensor, offset: Tensor | None, *, free_gain: bool
) -> list[float]:
    """The weights of scores (k, n, c), which are added to the offset (n, c).

    With `free_gain`, the temperature is fitted as well: overconfident scores would otherwise get
    too little weight.
    """
    if offset is None or not free_gain:
        scales, _ = fit_scales(scores[:, None], labels, offset=offset)
        return [float(scale) for scale in scales[0]]
    scales, _ = fit_scales(torch.cat([offset[None], scores])[:, None], labels)
    gain = max(float(scales[0, 0]), LEAST_GAIN)
    return [float(scale) / gain for scale in scales[0, 1:]]
