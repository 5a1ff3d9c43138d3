"""Held-out figures: each shot is predicted by a model that did not see it.

Nothing is optimised on the rows that a figure is computed from: for each fold, hyper-parameters
and calibration are chosen on the other folds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache import metrics
from gpcache.methods.cache.shots import Shots
from gpcache.metrics import Calibration, fit_calibration

# Folds of the reported rows; hyper-parameters of each fold are chosen on the other folds.
N_REPORT_FOLDS = 4

# The fields of a report that have one row for each shot, and its figures.
ARRAYS = ("logits", "counted", "probabilities", "labels")
FIGURES = ("accuracy", "nll", "ece")

# (number of a setting, rows to fit its weights on) → logits (n, c) of all rows
LogitsAt = Callable[[int, Tensor], Tensor]


def folds_protocol(n_folds: int) -> str:
    """The sentence that says how held-out figures were computed."""
    return f"{n_folds}-fold cross-validation; everything is refitted in each fold"


class HeldOutLogits(NamedTuple):
    """Logits (k, c) of held-out rows, their row numbers (k,), and how they were held out."""

    logits: Tensor
    rows: Tensor
    protocol: str

    @classmethod
    def none(cls, shots: Shots, reason: str) -> HeldOutLogits:
        """Nothing was held out."""
        return cls(shots.values[:0], shots.labels[:0], f"none: {reason}")


def best_without(losses: Tensor, penalties: Tensor, fold: Tensor) -> dict[int, int]:
    """The setting for each fold: the one with the lowest loss (v, n) on the rows of other folds.

    `penalties` (v,) are added to the mean loss of each setting.
    """
    choices = {}
    for number in torch.unique(fold).tolist():
        outside = losses[:, fold != number]
        choices[number] = int((outside.mean(1) + penalties).argmin()) if outside.numel() else 0
    return choices


def cross_fitted(
    logits_at: LogitsAt,
    settings: dict[int, int],
    fold: Tensor,
    labels: Tensor,
    pull: float = 0.0,
) -> Tensor:
    """Probabilities (n, c) of held-out rows: weights and calibration come from the other folds.

    `pull` is that of `fit_calibration`.
    """
    probabilities: Tensor | None = None
    calibration: Calibration | None = None
    for number, setting in settings.items():
        in_fold = fold == number
        other_rows = ~in_fold if bool((~in_fold).any()) else in_fold
        logits = logits_at(setting, other_rows)
        calibration = fit_calibration(
            logits[other_rows], labels[other_rows], start=calibration, pull=pull
        )
        if probabilities is None:
            probabilities = torch.empty_like(logits)
        probabilities[in_fold] = calibration.probabilities(logits[in_fold])
    assert probabilities is not None
    return probabilities


def report_folds(shots: Shots, rows: Tensor, seed: int) -> Tensor:
    """The folds (k,) of reported rows (k,); each fold is predicted with the others' choices."""
    return shots.folds(N_REPORT_FOLDS, seed)[rows]


@dataclass(frozen=True, eq=False)
class HeldOutReport:
    """Held-out figures of the shots: each shot is predicted by a model that did not see it.

    Hyper-parameters and calibration of a fold are chosen on the other folds. Shots whose class has
    no other shot are not counted: leaving them out leaves their class without a key.

    Parameters
    ----------
    logits : array of shape (n, c)
        Held-out logits at the hyper-parameters in use; NaN if not counted.
    probabilities : array of shape (n, c)
        Held-out probabilities, with hyper-parameters and calibration of the other folds.
    counted : array of shape (n,)
        Which shots are counted.
    labels : array of shape (n,)
        Class numbers; −1 if not counted.
    accuracy, nll, ece : float
        Figures of the counted shots.
    protocol : str
        How the shots were held out.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gpcache import GPCacheClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> report = GPCacheClassifier().fit(X[:60], y[:60]).loo_
    >>> round(report.accuracy, 2), int(report.counted.sum())
    (0.97, 60)
    """

    logits: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    counted: NDArray[np.bool_]
    labels: NDArray[np.int64]
    accuracy: float
    nll: float
    ece: float
    protocol: str

    @classmethod
    def empty(cls, n: int, c: int, protocol: str) -> HeldOutReport:
        """A report without figures."""
        nothing = np.full((n, c), np.nan)
        counted, labels = np.zeros(n, dtype=bool), np.full(n, -1)
        return cls(nothing, nothing.copy(), counted, labels, np.nan, np.nan, np.nan, protocol)

    @classmethod
    def of_shots(
        cls, shots: Shots, held_out: HeldOutLogits, seed: int, probabilities: Tensor | None = None
    ) -> HeldOutReport:
        """The figures of held-out shots.

        Without `probabilities` (k, c), only the calibration is taken from the other folds.
        """
        logits, rows, _ = held_out
        if probabilities is None and len(rows):
            fold = report_folds(shots, rows, seed)
            same = dict.fromkeys(torch.unique(fold).tolist(), 0)
            probabilities = cross_fitted(lambda *_: logits, same, fold, shots.labels[rows])
        return cls.of(shots.labels, held_out, probabilities)

    @classmethod
    def of(
        cls, labels: Tensor, held_out: HeldOutLogits, probabilities: Tensor | None
    ) -> HeldOutReport:
        """The figures of probabilities (k, c) of held-out rows; labels (n,) are those of all."""
        logits, rows, protocol = held_out
        report = cls.empty(len(labels), logits.shape[1], protocol)
        if probabilities is None:
            return report
        labels = labels[rows]
        numbers, truth = rows.cpu().numpy(), labels.cpu().numpy()
        predicted = probabilities.double().cpu().numpy()
        report.logits[numbers] = logits.double().cpu().numpy()
        report.probabilities[numbers] = predicted
        report.counted[numbers], report.labels[numbers] = True, truth
        return replace(
            report,
            accuracy=metrics.accuracy(predicted, truth),
            nll=metrics.nll(predicted, truth),
            ece=metrics.ece(predicted, truth),
        )

    def write(self, search: dict[str, NDArray[Any]], settings: Any, arrays: Any) -> None:
        """Add the figures, and every setting that was tried, to a saved state."""
        figures = {name: or_none(getattr(self, name)) for name in FIGURES}
        settings["held_out"] = figures | {"protocol": self.protocol}
        arrays |= {f"held_out_{name}": getattr(self, name) for name in ARRAYS}
        settings["search"] = {
            name: [or_none(value) for value in column.tolist()] for name, column in search.items()
        }

    @classmethod
    def read(cls, settings: Any, arrays: Any) -> tuple[HeldOutReport, dict[str, NDArray[Any]]]:
        """The figures and the settings of a saved state."""
        held_out = settings["held_out"]
        figures: dict[str, Any] = {name: or_nan(held_out[name]) for name in FIGURES}
        known = {name: arrays[f"held_out_{name}"] for name in ARRAYS}
        report = cls(**known, **figures, protocol=held_out["protocol"])
        search = {
            name: np.array([or_nan(value) for value in column])
            for name, column in settings["search"].items()
        }
        return report, search


def or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else value


def or_nan(value: float | None) -> float:
    """The inverse of `or_none`."""
    return np.nan if value is None else value
