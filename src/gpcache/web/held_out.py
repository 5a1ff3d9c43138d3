"""Held-out predictions of the photos of a workspace, and suspicious photos."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.metrics import reliability, wilson_interval
from gpcache.model.advice import TrainingRows, advise, rows_of
from gpcache.model.audit.findings import FAULTS, Finding
from gpcache.model.audit.fingerprints import Picture
from gpcache.model.audit.fitted import HeldOutShots, hold_out_shots
from gpcache.model.evaluation import Evaluation
from gpcache.model.predictions import HeldOutScores
from gpcache.web.workspace_contents import Photo, Proposal

# Findings that mark their photo.
FLAGS = {"label": "suspect", "leak": "suspect", "look": "suspect", "outlier": "outlier"}


@dataclass(frozen=True)
class Figures:
    """The held-out figures of the summary line."""

    protocol: str
    n: int
    accuracy: float
    interval: tuple[float, float]
    ece: float
    nll: float
    covered: int
    of: int
    proposed: int


@dataclass(frozen=True, eq=False)
class HeldOutPhotos(HeldOutShots):
    """The photos (n) of a model in its order, and their held-out predictions.

    New photos are compared with `scores`; advice is about the rows of `training`.
    """

    photos: Sequence[Photo]
    scores: HeldOutScores
    training: TrainingRows

    @classmethod
    def of(
        cls,
        model: CacheClassifier,
        photos: Sequence[Photo],
        before: HeldOutPhotos | None = None,
        picture: Callable[[str], Picture] | None = None,
    ) -> HeldOutPhotos:
        """Hold out every photo of a fitted model.

        `before` are the figures before the last change. `picture` gives the small grey picture of a
        content hash, by which copies are found.
        """
        hashes = [photo.hash for photo in photos]
        copies = pictures = None
        if before is not None and hashes == [photo.hash for photo in before.photos]:
            copies = before.copies  # copies do not depend on labels or text
        elif picture is not None:
            pictures = [picture(key) for key in hashes]
        examples = [photo.example for photo in photos]
        shots = hold_out_shots(model, examples, pictures=pictures, copies=copies)
        return cls(
            **vars(shots), photos=photos, scores=HeldOutScores.of(model), training=rows_of(model)
        )

    def evaluation(self) -> Evaluation | None:
        """The figures; None if no photo could be held out.

        A label that the model proposed is not evidence: its photo counts with its label before.
        """
        rows, labels = self._counted_labels()
        if not len(rows) or len(self.classes) < 2:
            return None
        return Evaluation(
            data="the photos of the workspace",
            protocol=self.protocol,
            class_names=self.classes,
            names=[self.photos[row].name for row in rows.tolist()],
            labels=labels,
            probabilities=self.probabilities[rows],
            uncertainty=self.novelty[rows],
            rejected=np.zeros(len(rows), dtype=bool),
        )

    def covered_classes(self) -> list[str]:
        """The classes of which at least one photo was held out."""
        return sorted({self.classes[label] for label in self.labels[self.counted]})

    def figures(self) -> Figures | None:
        """The figures of the summary line; None unless photos of two classes were held out."""
        evaluation = self.evaluation()
        if evaluation is None or len(self.covered_classes()) < 2:
            return None
        n, accuracy = len(evaluation), self._accuracy(evaluation)
        return Figures(
            protocol=evaluation.protocol,
            n=n,
            accuracy=accuracy,
            interval=wilson_interval(round(accuracy * n), n),
            ece=evaluation.ece,
            nll=evaluation.nll,
            covered=len(self.covered_classes()),
            of=len(self.classes),
            proposed=sum(photo.proposal is not None for photo in self.photos),
        )

    def _accuracy(self, evaluation: Evaluation) -> float:
        """The accuracy; changes by proposals only must not look like progress."""
        proposals = [photo.proposal for photo in self.photos if photo.proposal is not None]
        return min([evaluation.accuracy, *(one.accuracy for one in proposals)])

    def proposals(self, ids: Sequence[str], label: str) -> dict[str, Proposal]:
        """The photos that would get a label that the model proposed, and how to undo it."""
        evaluation = self.evaluation()
        accuracy = 1.0 if evaluation is None else self._accuracy(evaluation)
        wanted = {(finding.row, str(finding.suggestion)) for finding in self.findings}
        return {
            photo.id: photo.proposal or Proposal(str(photo.label), accuracy)
            for row, photo in enumerate(self.photos)
            if photo.id in set(ids) and (row, label) in wanted
        }

    def _counted_labels(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows that count, and the labels that the user gave them."""
        number = {name: place for place, name in enumerate(self.classes)}
        labels = self.labels.copy()
        for row, photo in enumerate(self.photos):
            if photo.proposal is not None:
                labels[row] = number.get(photo.proposal.label, -1)
        rows = np.flatnonzero(self.counted & (labels >= 0))
        return rows, labels[rows]

    def report(self) -> dict[str, Any]:
        """The full report as a dictionary for JSON, or the reason why there is none yet."""
        evaluation, figures = self.evaluation(), self.figures()
        if evaluation is None or figures is None:
            return {"why": self._reason()}
        table = reliability(evaluation.probabilities, evaluation.labels)
        bins = zip(table.confidence, table.accuracy, table.count, strict=True)
        rows, labels = self._counted_labels()
        cells: dict[str, list[str]] = {}
        for row, label, answer in zip(rows, labels, evaluation.predicted, strict=True):
            cells.setdefault(f"{label},{answer}", []).append(self.photos[row].id)
        return asdict(figures) | {
            "reliability": [
                {"confidence": float(confidence), "accuracy": float(right), "count": int(count)}
                for confidence, right, count in bins
                if count
            ],
            "classes": list(self.classes),
            "confusion": evaluation.confusion_matrix().tolist(),
            "cells": cells,
            "advice": [
                {"kind": one.kind, "sentence": one.sentence}
                for one in advise(evaluation, self.training, self.classes)
            ],
            "suspects": [self._suspect(finding) for finding in self._open_findings()],
        }

    def flags(self) -> dict[str, list[str]]:
        """The flags of photos, by id."""
        marks = [
            (row, "duplicate" if copy.exact else "burst")
            for copy in self.copies
            for row in (copy.row, copy.other)
        ]
        marks += [(one.row, FLAGS[one.kind]) for one in self._open_findings() if one.kind in FLAGS]
        marks += [(row, "kept") for row, photo in enumerate(self.photos) if photo.kept]
        flags: dict[str, set[str]] = {}
        for row, flag in marks:
            flags.setdefault(self.photos[row].id, set()).add(flag)
        return {key: sorted(found) for key, found in flags.items()}

    def _open_findings(self) -> list[Finding]:
        """The findings about photos that the user has not confirmed.

        Labels that the model proposed itself are left out.
        """
        return [
            finding
            for finding in self.findings
            if not self.photos[finding.row].kept
            and (finding.suggestion is None or self.photos[finding.row].proposal is None)
        ]

    def _suspect(self, finding: Finding) -> dict[str, Any]:
        photo = self.photos[finding.row]
        return {
            "id": photo.id,
            "kind": finding.kind,
            "certain": finding.kind in FAULTS,
            "reason": finding.sentence,
            "label": photo.label,
            "suggested": None if finding.suggestion is None else str(finding.suggestion),
            "probability": finding.probability,
        }

    def _reason(self) -> str:
        if len(self.classes) < 2:
            return "There is one class: add another, and photos to it."
        if not self.counted.any():
            return "No class has two photos that can be left out in turn: add more photos."
        return (
            "Only one class has photos that can be held out, so the accuracy cannot be measured: "
            "add two photos to another class."
        )
