"""The share of the class name in an answer, and classes that prediction sets miss too often."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gpcache.methods import FeatureClassifier, HeldOutReport
from gpcache.methods.cache.fitted import Fitted
from gpcache.metrics.conformal import lac_scores, uneven_classes


@torch.no_grad()
def name_weights(model: FeatureClassifier, features: ArrayLike) -> NDArray[np.float64] | None:
    """The share (m,) that the class name has in the logit of each row's most probable class.

    It is the difference to the mean over all class names, in the unit of the weights of training
    images. None if names do not count.
    """
    fitted: Fitted | None = getattr(model, "fitted_", None)
    rows = model._read_queries(features)
    if fitted is None or (text_logits := fitted.model.zero_shot(rows)) is None:
        return None
    best = model._logits(rows).argmax(1, keepdim=True)
    parts = text_logits.gather(1, best)[:, 0] - text_logits.mean(1)
    shares: NDArray[np.float64] = (fitted.choice.gain * parts).double().cpu().numpy()
    return shares


def why_uneven(model: FeatureClassifier, error: float) -> str:
    """A sentence if sets miss some classes far more often than promised; otherwise empty."""
    report: HeldOutReport | None = getattr(model, "loo_", None)
    if report is None or report.counted.sum() < 2:
        return ""
    labels = report.labels[report.counted]
    scores = lac_scores(report.probabilities[report.counted])[np.arange(len(labels)), labels]
    if not (listed := uneven_classes(scores, labels, error)):
        return ""
    number, held, rows = listed[0]
    more_classes = f", and {len(listed) - 1} more classes are like it" if len(listed) > 1 else ""
    return (
        f"Classes differ: the sets of held-out training images hold the true class for {held} of "
        f"{rows} images of {str(model.classes_[number])!r}, where {100 * (1 - error):.0f} % are "
        f"promised on average{more_classes}. With --per-class every class gets its own promise."
    )
