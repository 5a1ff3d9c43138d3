"""Measures: functions of a fitted model and its test rows, as plug-ins by name.

A spec lists further `measures`; accuracy, NLL and ECE are always computed. To add one, write a
function of a `Predicted` that returns figures by name, and add a line to MEASURES. A figure of None
means that the model does not have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache import metrics
from gpcache.methods import FeatureClassifier

Figures = dict[str, Any]
ERRORS = (0.05, 0.1, 0.2)
REFUSED_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class Predicted:
    """A fitted model, its test rows (m, d) with label numbers (m,), and its predictions.

    `probabilities` (m, c) are None for a classifier that has none; `outside` (o, d) are rows of
    none of the classes.
    """

    model: Any
    features: NDArray[Any]
    labels: NDArray[np.int64]
    correct: NDArray[np.bool_]
    probabilities: NDArray[np.float64] | None
    outside: NDArray[Any] | None = None


def usual(prediction: Predicted) -> Figures:
    """Accuracy, NLL, ECE: the figures of every row."""
    figures: Figures = {"accuracy": float(np.mean(prediction.correct)), "nll": None, "ece": None}
    if prediction.probabilities is not None:
        given = prediction.probabilities, prediction.labels
        figures |= {"nll": metrics.nll(*given), "ece": metrics.ece(*given)}
    return figures


def calibration(prediction: Predicted) -> Figures:
    """The expected ECE of a calibrated model with the same confidences, and AURC."""
    if prediction.probabilities is None:
        return {"perfect_ece": None, "aurc": None}
    confidence = prediction.probabilities.max(1)
    return {
        "perfect_ece": metrics.expected_ece_if_calibrated(prediction.probabilities),
        "aurc": metrics.aurc(confidence, prediction.correct),
    }


def coverage(prediction: Predicted) -> Figures:
    """Share of prediction sets that contain the true class, and their mean size, at each error."""
    if not isinstance(prediction.model, FeatureClassifier) or not hasattr(prediction.model, "loo_"):
        return {}
    p_values = prediction.model.predict_set(prediction.features).p_values
    rows = np.arange(len(prediction.labels))
    figures: Figures = {}
    for error in ERRORS:
        sets = p_values > error
        figures[f"coverage_{error:g}"] = float(sets[rows, prediction.labels].mean())
        figures[f"set_size_{error:g}"] = float(sets.sum(1).mean())
    return figures


def rejection(prediction: Predicted) -> Figures:
    """AUROC of scores that separate test rows from outside rows, and the FPR at 95 % TPR."""
    if prediction.outside is None or prediction.probabilities is None:
        return {}
    inside, outside = prediction.features, prediction.outside
    figures: Figures = {}
    for name, score in rejection_scores(prediction.model).items():
        scores = np.concatenate([score(inside), score(outside)])
        known = np.arange(len(scores)) < len(inside)
        figures[f"auroc_{name}"] = metrics.auroc(scores, known)
        figures[f"fpr95_{name}"] = metrics.fpr_at_tpr(scores, known)
        if name == "both":
            refused = scores <= REFUSED_SHARE
            figures["refused_inside"] = float(refused[known].mean())
            figures["refused_outside"] = float(refused[~known].mean())
    return figures


def rejection_scores(model: Any) -> dict[str, Callable[[NDArray[Any]], NDArray[np.float64]]]:
    """Familiarity scores of rows by name, as far as a model has them."""
    scores: dict[str, Callable[[NDArray[Any]], NDArray[np.float64]]] = {
        "probability": lambda rows: model.predict_proba(rows).max(1)
    }
    if hasattr(model, "novelty"):
        scores["variance"] = lambda rows: metrics.certainty(model.novelty(rows))
    counted = model.loo_.counted if hasattr(model, "held_out_novelty_") else np.zeros(0, bool)
    if counted.any():
        # The product's rule: both ranks among those of held-out shots, as a p-value.
        held_out = np.stack(
            [
                metrics.certainty(model.held_out_novelty_[counted]),
                metrics.max_probability(model.loo_.logits[counted], temperature=model.temperature_),
            ]
        )
        parts = scores["variance"], scores["probability"]
        scores["both"] = lambda rows: metrics.joint_familiarity(
            held_out, np.stack([score(rows) for score in parts])
        )
    return scores


MEASURES: dict[str, Callable[[Predicted], Figures]] = {
    "calibration": calibration,
    "coverage": coverage,
    "rejection": rejection,
}
