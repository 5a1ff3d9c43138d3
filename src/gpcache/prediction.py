"""Prediction: one type for every answer, and how a model's numbers become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.evaluation import Evaluation
from gpcache.examples import Example
from gpcache.features.stream import Encoded
from gpcache.methods import FeatureClassifier, HeldOutReport
from gpcache.methods.cache import CacheClassifier


class Neighbour(NamedTuple):
    """A training image and its signed share of the answer's logit: above zero speaks for it."""

    name: str
    label: str
    weight: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of one image.

    `uncertainty` is how unlike all training images it is (0: like one of them, 1: like none).
    `familiarity` is the share of held-out training images that were at least as unlike: an image
    is `rejected` where it falls below the rate that was asked for. NaN where none could be held
    out. `neighbours` are the training images that drove the answer, if they were asked for.
    """

    name: str
    classes: NDArray[Any]
    distribution: NDArray[np.float64]
    uncertainty: float
    familiarity: float
    rejected: bool
    neighbours: tuple[Neighbour, ...] = ()

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
        if self.neighbours:
            found["why"] = [neighbour._asdict() for neighbour in self.neighbours]
        return found


def answers(
    model: FeatureClassifier,
    examples: Sequence[Example],
    images: Sequence[Encoded],
    *,
    reject: float,
    why: int = 0,
) -> list[Prediction]:
    """What a fitted model says of encoded images; `examples` are the images it was fitted on.

    `reject` is the share of good images that may be refused, `why` how many examples to name.
    """
    features = np.stack([image.features for image in images if image.features is not None])
    probabilities = model.predict_proba(features)
    uncertainty, familiarity = _doubts(model, features, probabilities)
    neighbours: list[tuple[Neighbour, ...]] = [()] * len(images)
    if why and isinstance(model, CacheClassifier):
        explained = model.explain(features, top=why)
        neighbours = [
            tuple(
                Neighbour(examples[row].name, examples[row].label, float(share))
                for row, share in zip(rows, shares, strict=True)
            )
            for rows, shares in zip(explained.shots, explained.shares, strict=True)
        ]
    return [
        Prediction(
            image.record.name,
            model.classes_,
            probabilities[row],
            float(uncertainty[row]),
            float(familiarity[row]),
            bool(familiarity[row] <= reject),
            neighbours[row],
        )
        for row, image in enumerate(images)
    ]


def compared(
    found: Sequence[Prediction],
    labels: Sequence[int],
    classes: Sequence[str],
    *,
    data: str,
    protocol: str,
) -> Evaluation:
    """Predictions beside the class numbers (n,) that are true."""
    return Evaluation(
        data=data,
        protocol=protocol,
        class_names=classes,
        names=[one.name for one in found],
        labels=np.array(labels, dtype=np.int64),
        probabilities=np.array([one.distribution for one in found]),
        uncertainty=np.array([one.uncertainty for one in found]),
        rejected=np.array([one.rejected for one in found], dtype=bool),
    )


def held_out_evaluation(
    model: FeatureClassifier, examples: Sequence[Example], *, data: str
) -> Evaluation | None:
    """What the model says of its examples, each held out; None where none could be."""
    report, probabilities = _held_out(model)
    if report is None or not len(probabilities):
        return None
    rows = np.flatnonzero(report.counted).tolist()
    classes = [str(name) for name in model.classes_]
    number = {name: row for row, name in enumerate(classes)}
    return Evaluation(
        data=data,
        protocol=f"no validation set: {report.protocol}",
        class_names=classes,
        names=[examples[row].name for row in rows],
        labels=np.array([number[examples[row].label] for row in rows]),
        probabilities=probabilities,
        uncertainty=_held_out_novelty(model, probabilities),
        rejected=np.zeros(len(rows), dtype=bool),
    )


def _held_out(model: FeatureClassifier) -> tuple[HeldOutReport | None, NDArray[np.float64]]:
    """The model's report on its own shots, if it gives one, and their probabilities (k, c)."""
    report: HeldOutReport | None = getattr(model, "loo_", None)
    if report is None:
        return None, np.zeros((0, len(model.classes_)))
    return report, report.probabilities[report.counted]


def _held_out_novelty(
    model: FeatureClassifier, probabilities: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How unlike the others each held-out example (k,) is."""
    if isinstance(model, CacheClassifier):
        return model.held_out_novelty_[model.loo_.counted]
    doubt: NDArray[np.float64] = 1 - probabilities.max(1)
    return doubt


def _doubts(
    model: FeatureClassifier, features: NDArray[Any], probabilities: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How unlike the examples each image is, and the share of held-out examples as unlike.

    A cache gives its variance; of other methods it is what the best class lacks to certainty. The
    share is a conformal p-value: new images of the same kind fall below ε at a rate of ε at most,
    as far as holding examples out leaves the others as good a model.
    """
    cache = isinstance(model, CacheClassifier)
    novelty = model.novelty(features) if cache else 1 - probabilities.max(1)
    held_out = _held_out_novelty(model, _held_out(model)[1])
    held_out = np.sort(held_out[~np.isnan(held_out)])
    if not len(held_out):
        return novelty, np.full(len(features), np.nan)
    at_least = len(held_out) - np.searchsorted(held_out, novelty, side="left")
    return novelty, (1 + at_least) / (1 + len(held_out))
