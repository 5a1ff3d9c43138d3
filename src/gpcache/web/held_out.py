"""Held-out predictions of the photos of a workspace, and suspicious photos."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.gp import ExactPrecision
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.metrics import certainty, max_probability, reliability, wilson_interval
from gpcache.model.advice import TrainingRows, advise, rows_of
from gpcache.model.audit.audit_model import HeldOutRows, countable, fit_label_noise
from gpcache.model.audit.copies import Copy, copy_findings, find_copies, left_out_together
from gpcache.model.audit.findings import FAULTS, KINDS, Finding, LabelledRows
from gpcache.model.audit.fingerprints import Picture
from gpcache.model.audit.verdicts import label_findings, outlier_findings
from gpcache.model.evaluation import Evaluation
from gpcache.model.predictions import HeldOutScores
from gpcache.model.training_images import Example
from gpcache.web.workspace_contents import Photo, Proposal

# Photos of one burst, and copies, would answer for each other.
AT_ONCE = "leave-one-out in closed form; bursts and copies are left out together"
# A probability of zero has no logarithm.
TINY = 1e-30


@dataclass(frozen=True, eq=False)
class HeldOutPhotos:
    """The photos (n) of a model in its order, and their held-out predictions.

    `probabilities` (n, c), `novelty` (n,) and `counted` (n,): a photo counts if its class has a
    photo outside its burst. New photos are compared with `scores`.
    """

    photos: Sequence[Photo]
    classes: Sequence[str]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    novelty: NDArray[np.float64]
    counted: NDArray[np.bool_]
    protocol: str
    scores: HeldOutScores
    copies: Sequence[Copy]
    findings: Sequence[Finding]
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
        shots = model.fitted_.shots
        rows = _labelled_rows(shots.features.float().cpu(), photos)
        copies: Sequence[Copy] = ()
        if before is not None and _hashes(photos) == _hashes(before.photos):
            copies = before.copies  # copies do not depend on labels or text
        elif len(photos) > 1:
            pictures = None if picture is None else [picture(photo.hash) for photo in photos]
            copies = find_copies(replace(rows, pictures=pictures))
        sets = left_out_together(rows.examples, copies)
        labels = shots.labels.cpu()
        counted = countable(labels, sets)
        closed = model.fitted_.model.closed_form is not None and not model.fitted_.sees_labels
        if closed:
            probabilities, novelty, protocol, scores = _at_once(model, sets, counted)
        else:
            probabilities, novelty, protocol, scores = _in_folds(model, sets)
        known = counted & torch.isfinite(probabilities).all(1)
        # Photos that cannot be held out get equal probabilities.
        probabilities = torch.where(known[:, None], probabilities, 1 / probabilities.shape[1])
        noise = fit_label_noise([probabilities.clamp_min(TINY).log()], labels, known, [1.0])
        held_out_rows = HeldOutRows(
            classes=model.classes_,
            labels=labels,
            sets=sets,
            counted=known,
            logits=noise.logits,
            wrong=noise.wrong,
            variance=novelty.nan_to_num(nan=1.0) if closed else _in_one_space(model, sets, novelty),
        )
        classes = [str(name) for name in model.classes_]
        found_copies = copy_findings(rows, copies)
        findings: list[Finding] = [
            *label_findings(rows, held_out_rows),
            *(_with_suggestion(one, labels, probabilities, classes) for one in found_copies),
            *outlier_findings(rows, held_out_rows),
        ]
        findings.sort(key=lambda one: (KINDS.index(one.kind), -one.score, one.row))
        return cls(
            photos,
            classes,
            labels.numpy(),
            probabilities.numpy(),
            novelty.numpy(),
            known.numpy(),
            protocol,
            scores,
            copies,
            findings,
            rows_of(model),
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

    def figures(self) -> dict[str, Any] | None:
        """The figures of the summary line; None unless photos of two classes were held out."""
        return self.summary() if len(self.covered_classes()) > 1 else None

    def summary(self) -> dict[str, Any] | None:
        """The figures, even of one class; None if no photo could be held out."""
        evaluation = self.evaluation()
        if evaluation is None:
            return None
        proposals = [photo.proposal for photo in self.photos if photo.proposal is not None]
        # Changes by proposals only must not look like progress.
        accuracy = min([evaluation.accuracy, *(one.accuracy for one in proposals)])
        return {
            "protocol": evaluation.protocol,
            "n": len(evaluation),
            "accuracy": accuracy,
            "interval": list(wilson_interval(round(accuracy * len(evaluation)), len(evaluation))),
            "ece": evaluation.ece,
            "nll": evaluation.nll,
            "proposed": len(proposals),
            "covered": len(self.covered_classes()),
            "of": len(self.classes),
        }

    def proposals(self, ids: Sequence[str], label: str) -> dict[str, Proposal]:
        """The photos that would get a label that the model proposed, and how to undo it."""
        summary = self.summary()
        accuracy = 1.0 if summary is None else summary["accuracy"]
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
        evaluation, summary = self.evaluation(), self.summary()
        if evaluation is None or summary is None:
            return {"why": self._why()}
        table = reliability(evaluation.probabilities, evaluation.labels)
        bins = zip(table.confidence, table.accuracy, table.count, strict=True)
        rows, labels = self._counted_labels()
        cells: dict[str, list[str]] = {}
        for row, label, answer in zip(rows, labels, evaluation.predicted, strict=True):
            cells.setdefault(f"{label},{answer}", []).append(self.photos[row].id)
        return summary | {
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
            "suspects": [self._suspect(finding) for finding in self._open()],
        }

    def flags(self) -> dict[str, list[str]]:
        """The flags of photos, by id."""
        flags: dict[str, set[str]] = {}
        for copy in self.copies:
            for row in (copy.row, copy.other):
                kind = "duplicate" if copy.exact else "burst"
                flags.setdefault(self.photos[row].id, set()).add(kind)
        for finding in self._open():
            if finding.kind in ("label", "leak", "look"):
                flags.setdefault(self.photos[finding.row].id, set()).add("suspect")
            elif finding.kind == "outlier":
                flags.setdefault(self.photos[finding.row].id, set()).add("outlier")
        for photo in self.photos:
            if photo.kept:
                flags.setdefault(photo.id, set()).add("kept")
        return {key: sorted(kinds) for key, kinds in flags.items()}

    def _open(self) -> list[Finding]:
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

    def _why(self) -> str:
        if len(self.classes) < 2:
            return "There is one class: add another, and photos to it."
        return "No class has two photos that can be left out in turn: add more photos."


_Found = tuple[Tensor, Tensor, str, HeldOutScores]


def _at_once(model: CacheClassifier, sets: Tensor, counted: Tensor) -> _Found:
    """Probabilities (n, c) and variances (n,) of the shots without their sets, in closed form."""
    fitted, shots = model.fitted_.model, model.fitted_.shots
    assert fitted.closed_form is not None
    mean, variance = fitted.closed_form.leave_out(sets.to(shots.labels.device))
    logits = fitted.fused(shots.zero_shot, mean, variance)
    probabilities = model._calibration.probabilities(logits).double().cpu()
    novelty = variance[:, 0].double().cpu()
    highest = max_probability(logits.cpu().numpy(), temperature=model.temperature_)
    scores = HeldOutScores(np.stack([certainty(novelty.numpy()), highest])[:, counted.numpy()])
    return probabilities, novelty, AT_ONCE, scores


def _in_folds(model: CacheClassifier, sets: Tensor) -> _Found:
    """The same if the space depends on labels: it is fitted again in folds, which takes longer."""
    report = model.fitted_.held_out_in(sets)
    novelty = torch.from_numpy(model.held_out_novelty_.copy())
    probabilities = torch.from_numpy(report.probabilities.copy())
    return probabilities, novelty, report.protocol, HeldOutScores.of(model)


def _hashes(photos: Sequence[Photo]) -> list[str]:
    return [photo.hash for photo in photos]


def _labelled_rows(features: Tensor, photos: Sequence[Photo]) -> LabelledRows:
    """The features (n, d) of photos, as an audit reads them."""
    examples = [Example(one.name, str(one.label), one.hash, one.group) for one in photos]
    return LabelledRows(features, examples, range(len(photos)))


def _with_suggestion(
    finding: Finding, labels: Tensor, probabilities: Tensor, classes: Sequence[str]
) -> Finding:
    """A copy in another class, with the label of the other photo where the model prefers it."""
    if finding.kind != "leak" or finding.other is None:
        return finding
    label, other_label = int(labels[finding.row]), int(labels[finding.other])
    preferred = float(probabilities[finding.row, other_label])
    if label == other_label or preferred <= float(probabilities[finding.row, label]):
        return finding
    return replace(finding, suggestion=classes[other_label], probability=preferred)


def _in_one_space(model: CacheClassifier, sets: Tensor, novelty: Tensor) -> Tensor:
    """Variances (n,) of the shots without their sets, comparable with each other.

    Each fold has its own whitening, with another scale of distances: a held-out wrong label would
    make its whole fold look unusual. So the space of the model is used for all.
    """
    precision = model.fitted_.model.precision
    exact = precision if isinstance(precision, ExactPrecision) and model.has_keys else None
    if model.fitted_.training is not None or exact is None:
        return novelty.nan_to_num(nan=1.0)
    _, variance = exact.leave_out(sets.to(exact.keys.device))
    return variance[:, 0].double().cpu()
