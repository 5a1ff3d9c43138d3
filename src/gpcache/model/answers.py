"""Prediction: one type for every answer, and how a model's numbers become one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders import Encoder
from gpcache.errors import DataError, ImageRefusedError
from gpcache.features.stream import Encoded, encoded
from gpcache.images.records import Refused, Source
from gpcache.methods import Explanation, FeatureClassifier, HeldOutReport
from gpcache.methods.cache.fitted import Fitted
from gpcache.metrics import certainty, joint_familiarity, least_rows, max_probability
from gpcache.model.evaluation import Evaluation, Unknown
from gpcache.model.training_images import Example


class Neighbour(NamedTuple):
    """A training image and its signed share of the answer's logit: above zero speaks for it."""

    name: str
    label: str
    weight: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of one image.

    `uncertainty` is how unlike all training images it is (0: like one of them, 1: like none).
    `familiarity` is the share of held-out training images that look no more familiar: an image is
    `rejected` where it falls below the rate that was asked for. NaN where none could be held out.
    `neighbours` are the training images that drove the answer, if they were asked for. `plausible`
    are the labels that cannot be ruled out, the best suited first: all, few or none; None where
    they were not asked for. `note` says why nothing can be refused, or ruled out.
    """

    name: str
    classes: NDArray[Any]
    distribution: NDArray[np.float64]
    uncertainty: float
    familiarity: float
    rejected: bool
    neighbours: tuple[Neighbour, ...] = ()
    plausible: tuple[str, ...] | None = None
    note: str = ""

    @cached_property
    def _best(self) -> int:
        return int(self.distribution.argmax())

    @property
    def label(self) -> str:
        """The most probable class, also where it is rejected."""
        return str(self.classes[self._best])

    @property
    def probability(self) -> float:
        """The probability of the label."""
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
        """The answer as JSON holds it, with the `top` classes."""
        unknown = np.isnan(self.familiarity)
        found: dict[str, Any] = {
            "image": self.name,
            "label": self.label,
            "probability": self.probability,
            "uncertainty": self.uncertainty,
            "familiarity": None if unknown else self.familiarity,
            "rejected": self.rejected,
        }
        if top > 1:
            found["top"] = [{"label": name, "probability": p} for name, p in self.top(top)]
        if self.plausible is not None:
            found["plausible"] = list(self.plausible)
        if self.neighbours:
            found["why"] = [neighbour._asdict() for neighbour in self.neighbours]
        if self.note:
            found["note"] = self.note
        return found


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Scores (s, n) of held-out examples, higher for the more familiar, to judge images beside.

    A cache gives two, what its variance lacks to one and the highest probability; other methods
    the second alone. That probability is taken at one temperature for all answers: letting it
    follow their entropy makes it truer, but tells foreign images less well.
    """

    scores: NDArray[np.float64]

    @classmethod
    def of(cls, model: FeatureClassifier) -> HeldOutScores:
        """Those of a fitted model; none where nothing was held out."""
        report: HeldOutReport | None = getattr(model, "loo_", None)
        if report is None:
            return cls(np.zeros((1, 0)))
        held_out = report.logits[report.counted]
        probable = max_probability(held_out, temperature=model.temperature_)
        fitted: Fitted | None = getattr(model, "fitted_", None)
        if fitted is None or not fitted.recipe.precision.uses_noise:
            return cls(probable[None])
        certain = certainty(fitted.novelty[report.counted])
        return cls(np.stack([certain, probable])[:, ~np.isnan(certain)])

    def familiarity(
        self, novelty: NDArray[np.float64], highest: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The share (m,) of held-out examples, and the image itself, that look no more familiar.

        A conformal p-value: new images of the same kind fall below ε at a rate of ε at most, as far
        as holding examples out leaves the others as good a model.
        """
        if not self.scores.shape[1]:
            return np.full(len(novelty), np.nan)
        asked = [certainty(novelty), highest]
        return joint_familiarity(self.scores, np.stack(asked[-len(self.scores) :]))

    def why_never(self, reject: float) -> str:
        """Why no image can be refused at this rate; empty where some can."""
        n = self.scores.shape[1]
        if reject == 0 or n >= least_rows(reject):
            return ""
        return (
            f"No image can be refused: at a rate of {reject:g} that takes {least_rows(reject)} or "
            f"more training images that can be held out, and there are {n}."
        )


class Answering:
    """What a fitted model says of encoded images; `examples` are the images it was fitted on.

    `reject` is the share of good images that may be refused, `sets` how often a set of plausible
    labels may miss the true one, `why` how many examples to name.
    """

    def __init__(
        self,
        model: FeatureClassifier,
        examples: Sequence[Example],
        *,
        reject: float,
        sets: float | None = None,
        why: int = 0,
    ) -> None:
        if not 0 <= reject < 1:
            raise DataError(f"reject must be a rate from 0 to below 1, got {reject!r}.")
        self._model, self._examples = model, examples
        self._reject, self._sets, self._why = reject, sets, why
        self._known = HeldOutScores.of(model)

    def __call__(self, images: Sequence[Encoded]) -> list[Prediction]:
        """One prediction for each image."""
        model = self._model
        features = np.stack([image.features for image in images if image.features is not None])
        found = model.answer(features, top=self._why, error=self._sets)
        highest = max_probability(found.logits, temperature=model.temperature_)
        familiarity = self._known.familiarity(found.novelty, highest)
        neighbours = self._neighbours(found.explanation, len(images))
        plausible: list[tuple[str, ...] | None] = [None] * len(images)
        notes = [self._known.why_never(self._reject)]
        if found.sets is not None:
            plausible = [tuple(map(str, labels)) for labels in found.sets.labels]
            notes.append(found.sets.note)
        note = " ".join(filter(None, notes))
        return [
            Prediction(
                image.record.name,
                model.classes_,
                found.probabilities[row],
                float(found.novelty[row]),
                float(familiarity[row]),
                bool(familiarity[row] <= self._reject),
                neighbours[row],
                plausible[row],
                note,
            )
            for row, image in enumerate(images)
        ]

    def _neighbours(self, explained: Explanation | None, count: int) -> list[tuple[Neighbour, ...]]:
        if explained is None:
            return [()] * count
        return [
            tuple(
                Neighbour(self._examples[row].name, self._examples[row].label, float(share))
                for row, share in zip(rows, shares, strict=True)
            )
            for rows, shares in zip(explained.shots, explained.shares, strict=True)
        ]


def compared(
    found: Sequence[Prediction],
    labels: Sequence[int],
    classes: Sequence[str],
    *,
    data: str,
    protocol: str,
    unknown: Sequence[Prediction] | None = None,
) -> Evaluation:
    """Predictions beside the class numbers (n,) that are true, and those of unknown images."""
    return Evaluation(
        data=data,
        protocol=protocol,
        class_names=classes,
        names=[one.name for one in found],
        labels=np.array(labels, dtype=np.int64),
        probabilities=np.array([one.distribution for one in found]),
        uncertainty=np.array([one.uncertainty for one in found]),
        rejected=np.array([one.rejected for one in found], dtype=bool),
        familiarity=np.array([one.familiarity for one in found]),
        unknown=None
        if unknown is None
        else Unknown(
            np.array([one.familiarity for one in unknown], dtype=np.float64),
            np.array([one.rejected for one in unknown], dtype=bool),
        ),
    )


def held_out_evaluation(
    model: FeatureClassifier, examples: Sequence[Example], *, data: str
) -> Evaluation | None:
    """What the model says of its examples, each held out; None where none could be."""
    report: HeldOutReport | None = getattr(model, "loo_", None)
    if report is None or not report.counted.any():
        return None
    fitted: Fitted | None = getattr(model, "fitted_", None)
    rows = np.flatnonzero(report.counted).tolist()
    probabilities = report.probabilities[rows]
    return Evaluation(
        data=data,
        protocol=f"no validation set: {report.protocol}",
        class_names=[str(name) for name in model.classes_],
        names=[examples[row].name for row in rows],
        labels=report.labels[rows],
        probabilities=probabilities,
        uncertainty=1 - probabilities.max(1) if fitted is None else fitted.novelty[rows],
        rejected=np.zeros(len(rows), dtype=bool),
    )


def encoded_batches(
    source: Source, encoder: Encoder, refused: list[Refused] | None, size: int | None = None
) -> Iterator[list[Encoded]]:
    """Encoded images, so many at once; what cannot be decoded goes to `refused`, or is an error."""
    size = size or encoder.batch_size
    with closing(encoded(source, encoder, repeat=True, batch_size=size)) as stream:
        # itertools.batched comes with Python 3.12.
        while chunk := list(itertools.islice(stream, size)):
            good = []
            for found in chunk:
                if isinstance(found, Encoded):
                    good.append(found)
                elif refused is None:
                    raise ImageRefusedError(found.reason, name=found.name)
                else:
                    refused.append(found)
            if good:
                yield good
    if refused is not None:
        refused += source.refused
