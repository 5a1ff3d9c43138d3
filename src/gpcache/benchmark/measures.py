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
from sklearn.metrics import average_precision_score

from gpcache import metrics
from gpcache.benchmark.task import Drawn
from gpcache.methods import FeatureClassifier
from gpcache.model.audit import audit
from gpcache.model.predictions import HeldOutScores
from gpcache.model.training_images import Example

Figures = dict[str, Any]
ERRORS = (0.05, 0.1, 0.2)
REFUSED_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class Predicted:
    """A fitted model, its test rows (m, d) with label numbers (m,), and its predictions.

    `probabilities` (m, c) are None for a classifier that has none; `outside` (o, d) are rows of
    none of the classes; `drawn` are the shots that the model was fitted on.
    """

    model: Any
    features: NDArray[Any]
    labels: NDArray[np.int64]
    correct: NDArray[np.bool_]
    probabilities: NDArray[np.float64] | None
    outside: NDArray[Any] | None
    drawn: Drawn


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
    """AUROC of scores that separate test rows from outside rows, and the FPR at 95 % TPR.

    The score "both" is the product's rule: a p-value of variance and probability together.
    """
    if prediction.outside is None or prediction.probabilities is None:
        return {}
    model = prediction.model
    rows = np.concatenate([prediction.features, prediction.outside])
    known = np.arange(len(rows)) < len(prediction.features)
    scores = {"probability": model.predict_proba(rows).max(1)}
    figures: Figures = {}
    if hasattr(model, "novelty"):
        novelty = model.novelty(rows)
        scores["variance"] = metrics.certainty(novelty)
        held_out = HeldOutScores.of(model)
        if len(held_out.scores) == 2 and held_out.scores.size:
            scores["both"] = both = held_out.familiarity(novelty, scores["probability"])
            figures["refused_inside"] = float((both[known] <= REFUSED_SHARE).mean())
            figures["refused_outside"] = float((both[~known] <= REFUSED_SHARE).mean())
    for name, score in scores.items():
        figures[f"auroc_{name}"] = metrics.auroc(score, known)
        figures[f"fpr95_{name}"] = metrics.fpr_at_tpr(score, known)
    return figures


def label_errors(prediction: Predicted) -> Figures:
    """What is found of the labels that were made wrong: by `gpcache check`, or by a peer.

    A peer ranks the labels by their cross-validated probability, as cleanlab does, and lists those
    that are not the class it predicts. `certain` are labels called almost certainly wrong.
    """
    shots, wrong = prediction.drawn.shots, prediction.drawn.wrong
    if wrong is None or prediction.probabilities is None:
        return {}
    certain, listed = np.zeros_like(wrong), np.zeros_like(wrong)
    if isinstance(prediction.model, FeatureClassifier):
        examples = [Example(f"Row {i}", label, str(i)) for i, label in enumerate(shots.labels)]
        found = audit(shots.features, examples, text_prior=prediction.model.text_prior)
        assert found.model is not None  # `audit` always gives one
        suspicion = found.model.wrong.numpy()
        certain[[finding.row for finding in found.of("label")]] = True
        listed[[finding.row for finding in found.of("look")]] = True
        listed |= certain
    else:
        held_out = prediction.model.cross_validated(shots.features, shots.labels)
        given = np.searchsorted(prediction.model.classes_, shots.labels)
        suspicion, listed = -held_out[np.arange(len(given)), given], held_out.argmax(1) != given
    return {
        "errors_ap": float(average_precision_score(wrong, suspicion)),
        "errors_certain": int(certain.sum()),
        "errors_certain_wrong": float(wrong[certain].mean()) if certain.any() else None,
        "errors_listed": int(listed.sum()),
        "errors_found": float(listed[wrong].mean()),
    }


MEASURES: dict[str, Callable[[Predicted], Figures]] = {
    "calibration": calibration,
    "coverage": coverage,
    "rejection": rejection,
    "label errors": label_errors,
}
