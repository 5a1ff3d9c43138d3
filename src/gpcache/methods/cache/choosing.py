"""How a cache model's numbers are chosen on rows it has not seen, and what is reported of them.

Whatever was learned from labels (a whitening, trained keys) is learned anew without the held-out
rows, so that no figure is selected on or shown that has seen its own answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gpcache.methods.cache.model import CacheModel, HeldOutReport
from gpcache.methods.cache.nested import best_without, cross_fitted
from gpcache.methods.cache.search import (
    COLUMNS,
    Auto,
    Choice,
    Defaults,
    HeldOut,
    Settings,
    search,
    shipped,
    weigh,
)
from gpcache.methods.cache.shots import Evidence, Part, Recipe, Shots, Trail
from gpcache.metrics import Calibration, fit_calibration
from gpcache.support.progress import progress_bar

LEAVE_ONE_OUT = "leave-one-out"
# Folds of the rows that are reported on, each judged by what the others chose.
JUDGED = 4


def folds_protocol(n_folds: int) -> str:
    """How held-out figures came about, in words."""
    return f"{n_folds} folds of the shots, everything learned anew in each"


class SelectionMixin:
    """Choice, temperature and `loo_` of cache classifiers."""

    n_folds: int
    selection: str
    random_state: int
    temperature_: float
    _text: Tensor | None
    _shots: Shots
    _recipe: Recipe
    _model: CacheModel
    search_: dict[str, NDArray[Any]]
    # What the estimator gives.
    _accept_calibration: Any
    _defaults: Defaults
    alpha: float | Auto

    def _build(self, shots: Shots) -> CacheModel:
        """The model of these shots at the chosen numbers."""
        raise AssertionError("the estimator builds its model")

    def _select(self, settings: Settings, validation: Shots | None) -> Evidence | None:
        """Choose what is "auto" on unseen rows, and return what they said of the choice.

        Where there are none, what is shipped is taken.
        """
        with_text = self._text is not None
        settings = self._judged_by_shots(settings)
        asked = shipped(settings, with_text=with_text)
        all_given = settings.all_given(
            uses_noise=self._recipe.precision.uses_noise, with_text=with_text
        )
        if all_given or (validation is None and self._is_silent()):
            self._accept([asked])
            return None
        with_variance = settings.eta != 0.0
        if validation is not None:
            self._accept(self._search_on(validation, settings))
            return None
        shots = self._shots.per_class
        evidence = self._evidence(with_variance, coarse=True)
        seen = self._search(evidence, settings, shots=shots)
        trail = Trail.of(seen, settings, evidence.rows, len(self._shots))
        if not self._uses_loo():
            # Few folds tell where to go; many tell how far to trust the cache, because their
            # models have nearly as many shots as the final one.
            evidence = self._evidence(with_variance, coarse=False)
            best = seen[0]
            found = replace(settings, beta=best.beta, noise=best.noise)
            if settings.residual:
                found = replace(found, gain=best.gain)
            seen = self._search(evidence, found, shots=shots) + seen
        self._accept(seen)
        evidence.trail = trail
        return evidence

    def _search_on(
        self, validation: Shots, settings: Settings, trained: CacheModel | None = None
    ) -> list[Choice]:
        """Settings that were looked at on a validation set, the best first.

        Of a `trained` model they are chosen with its map, keys and text.
        """
        part = Part(self._recipe, self._shots, validation.features, trained=trained)
        if trained is not None:
            validation = replace(validation, zero_shot=trained.zero_shot(validation.features))
        rows = torch.arange(len(validation), device=validation.labels.device)
        evidence = Evidence(
            [part], validation, rows, with_variance=settings.eta != 0.0, protocol="validation set"
        )
        return self._search(evidence, self._judged_by_shots(settings), shots=np.inf)

    def _judged_by_shots(self, settings: Settings) -> Settings:
        """What held-out rows may choose: not the trust in text, where classes have text alone."""
        known = 0 if self._text is None else len(self._text)
        if settings.gain == "auto" and len(torch.unique(self._shots.labels)) != known:
            return replace(settings, gain=1.0)
        return settings

    def _is_silent(self) -> bool:
        """Whether held-out shots tell nothing: most classes have one, or there is but one class."""
        return self._shots.n_classes < 2 or not self._shots.can_be_held_out()

    def _search(self, evidence: Evidence, settings: Settings, *, shots: float) -> list[Choice]:
        with progress_bar(f"{type(self).__name__}: choosing", unit="setting") as bar:

            def evaluate(beta: float, noises: Sequence[float], gain: float) -> list[HeldOut]:
                found = evidence(beta, noises, gain)
                bar.update(len(noises))
                return found

            uses_noise = self._recipe.precision.uses_noise
            return search(evaluate, settings, shots=shots, uses_noise=uses_noise)

    def _accept(self, seen: list[Choice]) -> None:
        """Take the first of the choices that were looked at."""
        choice = seen[0]
        self._choice = replace(choice, losses=None)
        self.alpha_, self.beta_, self.eta_ = choice.alpha, choice.beta, choice.eta
        self.noise_, self.gain_ = choice.noise, choice.gain
        self._shots = self._shots.at_gain(choice.gain)
        self.search_ = {name: np.array([getattr(one, name) for one in seen]) for name in COLUMNS}

    def _uses_loo(self) -> bool:
        """Whether to choose by leave-one-out: keys are trained only after the choice is made."""
        learns = self._recipe.space.sees_labels
        return self.selection == "loo" or (self.selection != "folds" and not learns)

    def _evidence(self, with_variance: bool, *, coarse: bool) -> Evidence:
        """The shots left out one by one, or in folds in which everything is learned anew."""
        shots, recipe = self._shots, self._recipe
        if self._uses_loo():
            rows = torch.nonzero(shots.with_company()).flatten()
            parts, protocol = [Part(recipe, shots, counted=rows)], LEAVE_ONE_OUT
        else:
            folds = self._fold_rows(self.n_folds // 2 if coarse else self.n_folds)
            parts = [
                Part(recipe, shots[train], shots.features[held], siblings=len(folds))
                for train, held in folds
            ]
            rows = torch.cat([held for _, held in folds])
            protocol = folds_protocol(len(folds))
        return Evidence(parts, shots, rows, with_variance=with_variance, protocol=protocol)

    def _fold_rows(self, n_folds: int) -> list[tuple[Tensor, Tensor]]:
        """(rows to learn from, rows held out) of each fold."""
        fold = self._shots.folds(n_folds, int(self.random_state))
        numbers = torch.unique(fold[fold >= 0]).tolist()
        return [
            (torch.nonzero(fold != k).flatten(), torch.nonzero(fold == k).flatten())
            for k in numbers
        ]

    # Held-out figures.

    def _held_out_logits(self, evidence: Evidence | None) -> tuple[Tensor, Tensor, str]:
        """Logits (k, c) of held-out rows, their row numbers (k,), and how they were held out."""
        shots = self._shots
        if not bool(shots.with_company().any()):
            return shots.values[:0], shots.labels[:0], "none: no class has two shots"
        return self._untrained_logits(
            evidence or self._evidence(self._choice.eta != 0, coarse=False)
        )

    def _untrained_logits(self, evidence: Evidence) -> tuple[Tensor, Tensor, str]:
        """What the evidence says at the chosen numbers, with keys that are the shots themselves."""
        choice = self._choice
        held_out = evidence(choice.beta, [choice.noise], choice.gain)[0]
        return held_out.logits(choice), evidence.rows, evidence.protocol

    def _calibrate(self, validation: Shots | None, evidence: Evidence | None) -> None:
        """A calibration from rows that the model has not seen; none where there are none."""
        self._accept_calibration(Calibration())
        self._report: HeldOutReport | None = None
        self._novelty: NDArray[np.float64] | None = None
        if validation is not None:
            logits = self._model.logits(validation.features)
            self._accept_calibration(fit_calibration(logits, validation.labels))
            return
        logits, rows, protocol = self._held_out_logits(evidence)
        if self._is_silent():
            self._accept_calibration(Calibration(slope=self._shipped_slope()))
        else:
            self._accept_calibration(fit_calibration(logits, self._shots.labels[rows]))
        nested = None
        if evidence is not None and evidence.trail is not None:
            nested = self._nested(evidence, evidence.trail)
        self._report = self._make_report(logits, rows, protocol, nested)

    def _shipped_slope(self) -> float:
        """The slope that belongs to the shipped α; none beside one that was asked for."""
        if self.alpha != "auto":
            return 0.0
        defaults = self._defaults
        return (defaults.without_text if self._text is None else defaults.with_text).slope

    def _nested(self, evidence: Evidence, trail: Trail) -> Tensor:
        """Probabilities (k, c) of the held-out rows, all numbers chosen on the other folds.

        Of the settings that were looked at, each fold gets the best by the other folds' rows; its
        weights are fitted on those, too.
        """
        fold, labels = self._judged(evidence.rows), self._shots.labels[evidence.rows]

        def logits_at(setting: int, others: Tensor) -> Tensor:
            beta, noise, gain = trail.places[setting]
            held_out = evidence(beta, [noise], gain)[0]
            choice = weigh(held_out.rows(others), trail.settings, (beta, noise, gain))
            return held_out.logits(choice)

        losses = trail.losses[:, evidence.rows]
        chosen = best_without(losses, trail.penalties, fold)
        return cross_fitted(logits_at, chosen, fold, labels)

    def _judged(self, rows: Tensor) -> Tensor:
        """The folds (k,) of rows (k,) that are judged together by what the others chose."""
        return self._shots.folds(JUDGED, int(self.random_state))[rows]

    def _make_report(
        self, logits: Tensor, rows: Tensor, protocol: str, probabilities: Tensor | None = None
    ) -> HeldOutReport:
        labels, fold = self._shots.labels[rows], self._judged(rows)
        n = len(self._shots)
        return HeldOutReport.of(logits, labels, rows, fold, n, protocol, probabilities)

    @property
    def held_out_novelty_(self) -> NDArray[np.float64]:
        """How unlike all others each shot (n,) is, as if it had not been seen; NaN if not counted.

        The variance of the posterior, of its nearest group where classes are grouped. Computed when
        first asked for, and again after `add` or `remove`.
        """
        check_is_fitted(self)
        if self._novelty is None:
            self._novelty = np.full(len(self._shots), np.nan)
            if not self._is_silent() and self._recipe.precision.uses_noise:
                evidence = self._evidence(True, coarse=False)
                choice = self._choice
                held_out = evidence(choice.beta, [choice.noise], choice.gain)[0]
                assert held_out.variance is not None
                rows = evidence.rows.cpu().numpy()
                self._novelty[rows] = held_out.variance.amin(1).double().cpu().numpy()
        return self._novelty

    def held_out_in(self, sets: Tensor) -> HeldOutReport:
        """As `loo_`; a likelihood that can holds rows of one set (n,) out together."""
        return self.loo_

    @property
    def loo_(self) -> HeldOutReport:
        """Accuracy, NLL and ECE on the shots themselves, each held out: no validation set needed.

        Whatever was learned from labels (a whitening, trained keys) is learned anew without the
        held-out rows. Computed when first asked for, and again after `add` or `remove`.
        """
        check_is_fitted(self)
        if self._report is None:
            self._report = self._make_report(*self._held_out_logits(None))
        return self._report
