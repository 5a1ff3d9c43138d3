"""Evaluation: predictions compared with labels, on named data under a named protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpcache import metrics
from gpcache.errors import DataError
from gpcache.metrics.checks import Booleans, Floats, Integers

# Coverages at which the accuracy is reported.
COVERAGES = tuple(tenth / 10 for tenth in range(1, 11))


class Confusion(NamedTuple):
    """The number of `images` of the class `truth` that were classified as `answer`."""

    truth: str
    answer: str
    images: int


class ClassScore(NamedTuple):
    """Number of images, recall and precision of one class; NaN if there are no images."""

    name: str
    n: int
    recall: float
    precision: float


class Separation(NamedTuple):
    """How well a score separates good images from bad ones.

    `auroc` is the probability that a good image scores higher than a bad one; `fpr95` the share of
    bad images that are accepted if 95 % of the good ones are.
    """

    auroc: float
    fpr95: float


class Unknown(NamedTuple):
    """Images of none of the classes: their `familiarity` (m,), and which were `rejected` (m,)."""

    familiarity: Floats
    rejected: Booleans


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Images with known labels and the predictions of a model.

    `names` (n) are the images and `labels` (n,) class numbers; `probabilities` (n, c),
    `uncertainty` (n,), `rejected` (n,) and `familiarity` (n,) are predicted. `unknown` are images
    of none of the classes, if there were any. `data` and `protocol` say on which images and how the
    figures were measured.
    """

    data: str
    protocol: str
    class_names: Sequence[str]
    names: Sequence[str]
    labels: Integers
    probabilities: Floats
    uncertainty: Floats
    rejected: Booleans
    familiarity: Floats | None = None
    unknown: Unknown | None = None

    def __post_init__(self) -> None:
        if not len(self.labels):
            raise DataError(f"There is no labelled image to evaluate on in {self.data}.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def predicted(self) -> Integers:
        """Class numbers (n,) of the answers."""
        best: Integers = self.probabilities.argmax(1)
        return best

    @property
    def correct(self) -> Booleans:
        """Which answers (n,) are right, rejected or not."""
        right: Booleans = self.predicted == self.labels
        return right

    @property
    def confidence(self) -> Floats:
        """The probability (n,) of each answer."""
        highest: Floats = self.probabilities.max(1)
        return highest

    @property
    def accuracy(self) -> float:
        """Share of right answers, rejected or not."""
        return float(self.correct.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy (Wilson)."""
        return metrics.wilson_interval(int(self.correct.sum()), len(self))

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood."""
        return metrics.nll(self.probabilities, self.labels)

    @property
    def ece(self) -> float:
        """Expected calibration error, 15 bins of equal width."""
        return metrics.ece(self.probabilities, self.labels)

    @property
    def aurc(self) -> float:
        """Mean risk over all coverages, if the least confident answers are refused first."""
        return metrics.aurc(self.confidence, self.correct)

    def accuracy_at(self, coverage: float) -> float:
        """Share of right answers among the most confident share `coverage` of them."""
        return metrics.accuracy_at_coverage(self.confidence, self.correct, coverage)

    @property
    def error_separation(self) -> Separation | None:
        """How well the confidence separates right answers from wrong ones; None without both."""
        if self.correct.all() or not self.correct.any():
            return None
        return _separation_of(self.confidence, self.correct)

    @property
    def unknown_separation(self) -> Separation | None:
        """How well the familiarity separates these images from unknown ones; None without both."""
        if self.unknown is None or self.familiarity is None or not len(self.unknown.familiarity):
            return None
        scores = np.concatenate([self.familiarity, self.unknown.familiarity])
        if np.isnan(scores).any():
            return None
        return _separation_of(scores, np.arange(len(scores)) < len(self))

    def per_class(self) -> list[ClassScore]:
        """One row for every class, in order."""
        matrix = self.confusion_matrix()
        with np.errstate(invalid="ignore"):
            recall, precision = matrix.diagonal() / matrix.sum(1), matrix.diagonal() / matrix.sum(0)
        rows = zip(self.class_names, matrix.sum(1), recall, precision, strict=True)
        return [ClassScore(name, int(n), float(r), float(p)) for name, n, r, p in rows]

    def confusion_matrix(self) -> Integers:
        """Counts (c, c): truth by answer."""
        c = len(self.class_names)
        return np.bincount(c * self.labels + self.predicted, minlength=c * c).reshape(c, c)

    def confusions(self, top: int = 5) -> list[Confusion]:
        """The most frequent mistakes, most frequent first."""
        matrix = self.confusion_matrix()
        np.fill_diagonal(matrix, 0)
        order = np.argsort(-matrix, axis=None, kind="stable")[:top]
        pairs = np.stack(np.unravel_index(order, matrix.shape), axis=1)
        return [
            Confusion(self.class_names[i], self.class_names[j], int(matrix[i, j]))
            for i, j in pairs
            if matrix[i, j]
        ]

    def hardest(self, top: int = 12) -> Integers:
        """Positions of the images whose true label got the least probability, worst first."""
        at_label = self.probabilities[np.arange(len(self)), self.labels]
        return np.argsort(at_label, kind="stable")[:top]

    def summary(self) -> dict[str, Any]:
        """The figures as a dictionary for JSON."""
        unknown, unknowns = self.unknown, self.unknown_separation
        errors = self.error_separation
        return {
            "data": self.data,
            "protocol": self.protocol,
            "n": len(self),
            "accuracy": self.accuracy,
            "interval": list(self.interval),
            "nll": self.nll,
            "ece": self.ece,
            "rejected": int(self.rejected.sum()),
            "aurc": self.aurc,
            "accuracy_at_coverage": {
                f"{coverage:g}": self.accuracy_at(coverage) for coverage in COVERAGES
            },
            "error_separation": errors and errors._asdict(),
            "unknown": unknown
            and {
                "n": len(unknown.rejected),
                "rejected": int(unknown.rejected.sum()),
                "separation": unknowns and unknowns._asdict(),
            },
            "per_class": {
                score.name: {
                    "n": score.n,
                    "recall": _or_none(score.recall),
                    "precision": _or_none(score.precision),
                }
                for score in self.per_class()
            },
            "confusions": [confusion._asdict() for confusion in self.confusions()],
        }


def _separation_of(scores: Floats, good: Booleans) -> Separation:
    return Separation(metrics.auroc(scores, good), metrics.fpr_at_tpr(scores, good))


def _or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else value
