"""Finds suspicious images among those that a fitted cache has learned from.

Its own predictions for held-out images are read instead of those of the audit's model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.gp import ExactPrecision
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.cache.memory import fitting
from gpcache.model.audit.audit_model import HeldOutRows, countable, fit_label_noise
from gpcache.model.audit.copies import Copy, copy_findings, find_copies, left_out_together
from gpcache.model.audit.findings import Finding, LabelledRows, ranked
from gpcache.model.audit.fingerprints import Picture
from gpcache.model.audit.verdicts import label_findings, outlier_findings
from gpcache.model.training_images import Example

# A probability of zero has no logarithm.
TINY = 1e-30


@dataclass(frozen=True, eq=False)
class HeldOutShots:
    """The shots (n) of a fitted cache, predicted without their copies and bursts.

    `probabilities` (n, c), `novelty` (n,) and `counted` (n,): a shot counts if its class has a shot
    outside its burst. `findings` are the suspicious ones, the most serious first.
    """

    classes: Sequence[str]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    novelty: NDArray[np.float64]
    counted: NDArray[np.bool_]
    protocol: str
    copies: Sequence[Copy]
    findings: Sequence[Finding]


def hold_out_shots(
    model: CacheClassifier,
    examples: Sequence[Example],
    *,
    pictures: Sequence[Picture] | None = None,
    copies: Sequence[Copy] | None = None,
) -> HeldOutShots:
    """Hold out every shot of a fitted cache; `examples` are the images of its rows.

    `pictures` are small grey pictures by which further copies are found, unless `copies` are known.
    """
    with fitting(model.fitted_.shots):
        return _held_out(model, examples, pictures, copies)


def _held_out(
    model: CacheClassifier,
    examples: Sequence[Example],
    pictures: Sequence[Picture] | None,
    copies: Sequence[Copy] | None,
) -> HeldOutShots:
    shots = model.fitted_.shots
    rows = LabelledRows(shots.features.float().cpu(), examples, range(len(examples)), pictures)
    if copies is None:
        copies = find_copies(rows) if len(examples) > 1 else ()
    sets = left_out_together(examples, copies)
    labels = shots.labels.cpu()
    report, novelty = model.fitted_.held_out_in(sets)
    probabilities = torch.from_numpy(report.probabilities)
    counted = countable(labels, sets) & torch.isfinite(probabilities).all(1)
    # Shots that cannot be held out get equal probabilities.
    probabilities = torch.where(counted[:, None], probabilities, 1 / probabilities.shape[1])
    noise = fit_label_noise([probabilities.clamp_min(TINY).log()], labels, counted, [1.0])
    held_out = HeldOutRows(
        classes=model.classes_,
        labels=labels,
        sets=sets,
        counted=counted,
        logits=noise.logits,
        wrong=noise.wrong,
        variance=_in_one_space(model, sets, novelty),
    )
    classes = [str(name) for name in model.classes_]
    found_copies = copy_findings(rows, copies)
    findings = [
        *label_findings(rows, held_out),
        *(_with_suggestion(one, labels, probabilities, classes) for one in found_copies),
        *outlier_findings(rows, held_out),
    ]
    return HeldOutShots(
        classes,
        labels.numpy(),
        probabilities.numpy(),
        novelty,
        counted.numpy(),
        report.protocol,
        copies,
        ranked(findings),
    )


def _with_suggestion(
    finding: Finding, labels: Tensor, probabilities: Tensor, classes: Sequence[str]
) -> Finding:
    """A copy in another class, with the label of the other image where the model prefers it."""
    if finding.kind != "leak" or finding.other is None:
        return finding
    label, other_label = int(labels[finding.row]), int(labels[finding.other])
    preferred = float(probabilities[finding.row, other_label])
    if label == other_label or preferred <= float(probabilities[finding.row, label]):
        return finding
    return replace(finding, suggestion=classes[other_label], probability=preferred)


def _in_one_space(model: CacheClassifier, sets: Tensor, novelty: NDArray[np.float64]) -> Tensor:
    """Variances (n,) of the shots without their sets, comparable with each other.

    Each fold has its own whitening, with another scale of distances: a held-out wrong label would
    make its whole fold look unusual. So the space of the model is used for all.
    """
    precision = model.fitted_.model.precision
    exact = precision if isinstance(precision, ExactPrecision) and model.has_keys else None
    if model.fitted_.training is not None or exact is None:
        return torch.from_numpy(np.nan_to_num(novelty, nan=1.0))
    _, variance = exact.leave_out(sets.to(exact.keys.device))
    return variance[:, 0].double().cpu()
