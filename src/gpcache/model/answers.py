"""Predictions beside labels: accuracy, evaluation, held-out training images, and reasons."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from gpcache.encoders import Encoder
from gpcache.errors import DataError, ImageRefusedError
from gpcache.images.records import Refused, Source
from gpcache.methods import FeatureClassifier, HeldOutReport
from gpcache.methods.cache.fitted import Fitted
from gpcache.metrics.checks import Floats
from gpcache.metrics.conformal import lac_scores, uneven_classes
from gpcache.model.evaluation import Evaluation, Unknown
from gpcache.model.files import Content
from gpcache.model.predictions import Prediction, predictions
from gpcache.model.training_images import class_number, require_label
from gpcache.support.checks import shown
from gpcache.support.progress import progress_bar


def warn_of_refused(refused: Sequence[Refused], answered: int, stacklevel: int = 3) -> None:
    """Warn of images that were refused; raise an error if none was answered."""
    if not refused:
        return
    first = refused[0]
    if not answered:
        ending = (
            "" if len(refused) == 1 else f", and none of the {len(refused):,} images can be read"
        )
        raise ImageRefusedError(f"{first.reason}{ending}", name=first.name)
    total = len(refused) + answered
    warnings.warn(
        f"Left out {len(refused):,} of {total:,} images, such as {first.name!r}: {first.reason}.",
        UserWarning,
        stacklevel=stacklevel,
    )


def accuracy(content: Content, encoder: Encoder, source: Source) -> float:
    """The share of a source's labelled images whose prediction is right."""
    refused: list[Refused] = []
    answers = predictions(content, encoder, source, refused=refused, reject=0)
    right = [require_label(image.record) == answer.label for image, answer in answers]
    warn_of_refused(refused, len(right), stacklevel=4)
    if not right:
        raise DataError(f"There is no labelled image in {source.name!r}.")
    return float(np.mean(right))


def evaluated(
    content: Content,
    encoder: Encoder,
    source: Source,
    *,
    reject: float,
    refused: list[Refused],
    unknown: Sequence[Prediction] | None = None,
) -> Evaluation:
    """Predictions and labels of a source's images, without the training images.

    `unknown` are the predictions of images of none of the classes.
    """
    classes = [str(name) for name in content.model.classes_]
    number = {name: row for row, name in enumerate(classes)}
    trained = {example.hash for example in content.examples}
    labels: list[int] = []
    predicted: list[Prediction] = []
    left_out = 0
    with progress_bar("evaluate", total=source.total, unit="image") as bar:
        answers = predictions(content, encoder, source, refused=refused, reject=reject)
        for image, answer in answers:
            bar.update()
            if image.hash in trained:
                left_out += 1
            else:
                labels.append(class_number(image.record, number))
                predicted.append(answer)
    if left_out and not predicted:
        raise DataError(
            f"All images in {source.name!r} are training images: evaluate on others, or see the "
            "held-out figures of the fit."
        )
    also = f" ({left_out} others were, and are left out)" if left_out else ""
    return compared(
        predicted,
        labels,
        classes,
        data=source.name,
        protocol=f"images that were not trained on{also}",
        unknown=unknown,
    )


def compared(
    predicted: Sequence[Prediction],
    labels: Sequence[int],
    classes: Sequence[str],
    *,
    data: str,
    protocol: str,
    unknown: Sequence[Prediction] | None = None,
) -> Evaluation:
    """Predictions beside class numbers (n); `unknown` are of images of none of the classes."""
    return Evaluation(
        data=data,
        protocol=protocol,
        class_names=classes,
        names=[one.name for one in predicted],
        labels=np.array(labels, dtype=np.int64),
        probabilities=np.array([one.distribution for one in predicted]),
        uncertainty=np.array([one.uncertainty for one in predicted]),
        rejected=np.array([one.rejected for one in predicted], dtype=bool),
        familiarity=np.array([one.familiarity for one in predicted]),
        unknown=None
        if unknown is None
        else Unknown(
            np.array([one.familiarity for one in unknown], dtype=np.float64),
            np.array([one.rejected for one in unknown], dtype=bool),
        ),
    )


def held_out_evaluation(content: Content) -> Evaluation | None:
    """Predictions of the training images, each held out; None if none could be held out."""
    model, examples = content.model, content.examples
    report: HeldOutReport | None = getattr(model, "loo_", None)
    if report is None or not report.counted.any() or len(model.classes_) < 2:
        return None
    fitted: Fitted | None = getattr(model, "fitted_", None)
    rows = np.flatnonzero(report.counted).tolist()
    probabilities = report.probabilities[rows]
    return Evaluation(
        data=f"training images of {content.training.source}",
        protocol=f"no validation set: {report.protocol}",
        class_names=[str(name) for name in model.classes_],
        names=[examples[row].name for row in rows],
        labels=report.labels[rows],
        probabilities=probabilities,
        uncertainty=1 - probabilities.max(1) if fitted is None else fitted.novelty[rows],
        rejected=np.zeros(len(rows), dtype=bool),
    )


@torch.no_grad()
def name_weights(model: FeatureClassifier, features: ArrayLike) -> Floats | None:
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
    return (fitted.choice.gain * parts).double().cpu().numpy()


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
        f"{rows} images of {shown(str(model.classes_[number]))}, where {100 * (1 - error):.0f} % "
        f"are promised on average{more_classes}. With --per-class every class gets its own promise."
    )
