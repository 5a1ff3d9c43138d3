"""Predictions of images: what is asked of a model, and how its answers become records.

This is the one way from images to answers, whichever head and encoder give the numbers. It imports
neither torch nor scikit-learn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import DataError, ImageRefusedError
from gpcache.features.stream import Encoded, encoded
from gpcache.images.records import Refused, Source
from gpcache.metrics import certainty, joint_familiarity, least_rows, max_probability
from gpcache.metrics.checks import Floats

if TYPE_CHECKING:
    from gpcache.encoders import Encoder
    from gpcache.methods import Explanation, FeatureClassifier, HeldOutReport
    from gpcache.methods.base import RowAnswers
    from gpcache.methods.cache.fitted import Fitted
    from gpcache.model.kept_shots import KeptShots
    from gpcache.model.training_images import Example


class Neighbour(NamedTuple):
    """A training image and its signed share of the answer's logit; above zero supports it."""

    name: str
    label: str
    weight: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """The answer of a model to one image.

    `uncertainty` is how unlike all training images it is (0: like one of them, 1: like none).
    `familiarity` is the share of held-out training images that look no more familiar; NaN if none
    could be held out. An image is `rejected` if its familiarity is not above the requested rate.
    `neighbours` are the training images with the largest shares in the answer, if requested,
    `others_weight` is the share of all other training images together, and `name_weight` that of
    the class name, None if it has none. `plausible` are the labels
    that cannot be ruled out, the most plausible first: empty for a rejected image, otherwise at
    least one; None if not requested. `note` says why nothing can be rejected or ruled out.
    """

    name: str
    classes: NDArray[Any]
    distribution: Floats
    uncertainty: float
    familiarity: float
    rejected: bool
    neighbours: tuple[Neighbour, ...] = ()
    plausible: tuple[str, ...] | None = None
    note: str = ""
    name_weight: float | None = None
    others_weight: float | None = None

    @cached_property
    def _best(self) -> int:
        return int(self.distribution.argmax())

    @property
    def label(self) -> str | None:
        """The most probable class; None if the image is rejected."""
        return None if self.rejected else self.nearest

    @property
    def nearest(self) -> str:
        """The most probable class, also of a rejected image."""
        return str(self.classes[self._best])

    @property
    def probability(self) -> float:
        """The probability of the nearest class."""
        return float(self.distribution[self._best])

    @property
    def probabilities(self) -> dict[str, float]:
        """Every class and its probability."""
        return dict(zip(map(str, self.classes), self.distribution.tolist(), strict=True))

    def top(self, count: int) -> list[tuple[str, float]]:
        """The most probable classes and their probabilities, best first."""
        order = np.argsort(-self.distribution, kind="stable")[:count]
        return [(str(self.classes[i]), float(self.distribution[i])) for i in order]

    def as_dict(self, top: int = 1) -> dict[str, Any]:
        """The answer as a dictionary for JSON, with the `top` classes."""
        unknown = np.isnan(self.familiarity)
        fields = {
            "image": self.name,
            "label": self.label,
            "probability": self.probability,
            "uncertainty": self.uncertainty,
            "familiarity": None if unknown else self.familiarity,
            "rejected": self.rejected,
            "nearest": self.nearest,
        }
        best = self.top(top) if top > 1 else []
        optional = {
            "top": [{"label": name, "probability": p} for name, p in best] or None,
            "plausible": None if self.plausible is None else list(self.plausible),
            "why": [neighbour._asdict() for neighbour in self.neighbours] or None,
            "others_weight": self.others_weight,
            "name_weight": self.name_weight,
            "note": self.note or None,
        }
        return fields | {name: value for name, value in optional.items() if value is not None}


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Familiarity scores (s, n) of held-out examples, with which new images are compared.

    A cache has two: one minus its variance, and the highest probability. Other methods have only
    the second. This probability uses one temperature for all answers: a temperature that depends on
    the entropy is better calibrated, but recognises unknown images less well.
    """

    scores: Floats

    @classmethod
    def of(cls, model: FeatureClassifier) -> HeldOutScores:
        """The scores of a fitted model; none if nothing was held out."""
        report: HeldOutReport | None = getattr(model, "loo_", None)
        if report is None:
            return cls(np.zeros((1, 0)))
        fitted: Fitted | None = getattr(model, "fitted_", None)
        novelty = None
        if fitted is not None and fitted.recipe.precision.uses_noise:
            novelty = fitted.novelty[report.counted]
        return cls.from_logits(report.logits[report.counted], novelty, model.temperature_)

    @classmethod
    def from_logits(
        cls, logits: Floats, novelty: Floats | None, temperature: float
    ) -> HeldOutScores:
        """Those of logits (n, c) and, for a cache, of novelty (n,), NaN where it is unknown."""
        probable = max_probability(logits, temperature=temperature)
        if novelty is None:
            return cls(probable[None])
        certain = certainty(novelty)
        return cls(np.stack([certain, probable])[:, ~np.isnan(certain)])

    def familiarity(self, novelty: Floats, highest: Floats) -> Floats:
        """The share (m,) of held-out examples, with the image itself, that look no more familiar.

        This is a conformal p-value: new images of the same kind are below ε at a rate of at most ε,
        if the held-out models are as good as the final one.
        """
        if not self.scores.shape[1]:
            return np.full(len(novelty), np.nan)
        asked = [certainty(novelty), highest]
        return joint_familiarity(self.scores, np.stack(asked[-len(self.scores) :]))

    def why_never(self, reject: float) -> str:
        """Why no image can be refused at this rate; empty if some can."""
        n = self.scores.shape[1]
        if reject == 0 or n >= least_rows(reject):
            return ""
        return (
            f"No image can be refused: a rate of {reject:g} needs {least_rows(reject):.12g} or "
            f"more training images that can be held out, and there are {n}."
        )


def agreeing_set(labels: Iterable[Any], nearest: str, rejected: bool) -> tuple[str, ...]:
    """A set of plausible labels that agrees with the rejection.

    It is empty if the image is rejected, and otherwise contains at least the nearest class.
    """
    return () if rejected else tuple(map(str, labels)) or (nearest,)


def predictions(
    content: Any,
    encoder: Encoder,
    source: Source,
    *,
    refused: list[Refused] | None,
    batch_size: int | None = None,
    reject: float,
    sets: float | None = None,
    per_class: bool = False,
    why: int = 0,
    shots: KeptShots | None = None,
) -> Iterator[tuple[Encoded, Prediction]]:
    """Each image of a source with its prediction, in bounded memory.

    `content` has a `model` to ask, its `examples` (for reasons) and its `held_out_scores`.
    `reject` is the share of good images that may be refused, `sets` how often a set of plausible
    labels may miss the true one, `per_class` whether that holds for each class and not on average,
    `why` how many training images to name, which are the `shots` where a model keeps none. Images
    that cannot be decoded are appended to `refused`; without that list, they are an error.
    """
    if not 0 <= reject < 1:
        raise DataError(f"reject must be a rate from 0 to below 1, got {reject!r}.")
    model, known = content.model, content.held_out_scores
    names: Floats | None = None
    uneven = ""
    if why or sets is not None:
        from gpcache.model.answers import name_weights, why_uneven

        uneven = "" if sets is None or per_class else why_uneven(model, sets)
    for images in _encoded_batches(source, encoder, refused, batch_size):
        features = np.stack([image.features for image in images if image.features is not None])
        answers = model.answer(features, top=why, error=sets, class_conditional=per_class)
        if why:
            names = name_weights(model, features)
        explanation, example = answers.explanation, content.examples.__getitem__
        if shots is not None and why:
            explanation = model.explain(features, top=why, shots=shots.shots)
            example = shots.example
        neighbours, others = _reasons(explanation, example)
        notes = [known.why_never(reject), "" if shots is None else shots.note]
        if answers.sets is not None:
            notes.append(answers.sets.note or uneven)
        found = judged(
            model,
            answers,
            known,
            [image.record.name for image in images],
            reject=reject,
            neighbours=neighbours,
            others=others,
            note=" ".join(filter(None, notes)),
            name_weights=names,
        )
        yield from zip(images, found, strict=True)


def judged(
    model: FeatureClassifier,
    answers: RowAnswers,
    known: HeldOutScores,
    names: Sequence[str],
    *,
    reject: float,
    neighbours: Sequence[tuple[Neighbour, ...]] = (),
    others: Sequence[float] = (),
    note: str = "",
    name_weights: Floats | None = None,
) -> list[Prediction]:
    """The answers of a model about m images of these names as predictions.

    They are compared with the held-out examples `known`, and refused at the rate `reject`.
    `neighbours` (m) are their reasons, if there are any, and `others` (m) the weights of all other
    training images.
    """
    highest = max_probability(answers.logits, temperature=model.temperature_)
    familiarity = known.familiarity(answers.novelty, highest)
    nearest = model.classes_[answers.probabilities.argmax(1)].astype(str).tolist()
    rejected: list[bool] = (familiarity <= reject).tolist()
    plausible: list[tuple[str, ...] | None] = [None] * len(names)
    if answers.sets is not None:
        pairs = zip(answers.sets.labels, nearest, rejected, strict=True)
        plausible = [agreeing_set(*pair) for pair in pairs]
    return [
        Prediction(
            name,
            model.classes_,
            answers.probabilities[row],
            float(answers.novelty[row]),
            float(familiarity[row]),
            rejected[row],
            neighbours[row] if neighbours else (),
            plausible[row],
            note,
            None if name_weights is None else float(name_weights[row]),
            others[row] if others else None,
        )
        for row, name in enumerate(names)
    ]


def _reasons(
    explained: Explanation | None, example: Callable[[int], Example]
) -> tuple[list[tuple[Neighbour, ...]], list[float]]:
    """The training images shown with each answer, and the share of all others together."""
    if explained is None:
        return [], []
    neighbours = [
        tuple(
            Neighbour(example(row).name, example(row).label, float(share))
            for row, share in zip(rows, shares, strict=True)
            if row >= 0
        )
        for rows, shares in zip(explained.shots.tolist(), explained.shares, strict=True)
    ]
    return neighbours, (explained.cache_logit - explained.shares.sum(1)).tolist()


def _encoded_batches(
    source: Source, encoder: Encoder, refused: list[Refused] | None, size: int | None
) -> Iterator[list[Encoded]]:
    """Batches of `size` encoded images; unreadable ones go to `refused`, or are an error."""
    size = size or encoder.batch_size
    with closing(encoded(source, encoder, repeat=True, batch_size=size)) as stream:
        # itertools.batched comes with Python 3.12.
        while chunk := list(itertools.islice(stream, size)):
            bad = [image for image in chunk if isinstance(image, Refused)]
            if refused is not None:
                refused += bad
            elif bad:
                raise ImageRefusedError(bad[0].reason, name=bad[0].name)
            if good := [image for image in chunk if isinstance(image, Encoded)]:
                yield good
    if refused is not None:
        refused += source.refused
