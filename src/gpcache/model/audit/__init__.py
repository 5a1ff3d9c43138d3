"""Finds suspicious images in a labelled set from their features, before any training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpcache.gp.kernels import unit_rows
from gpcache.methods.text_prior import TextPrior
from gpcache.model.audit.audit_model import AuditModel
from gpcache.model.audit.copies import copy_findings, find_copies, left_out_together
from gpcache.model.audit.findings import FAULTS, KINDS, Finding, Kind, LabelledRows, ranked
from gpcache.model.audit.verdicts import (
    ENOUGH_ROWS,
    harm_findings,
    label_findings,
    outlier_findings,
)
from gpcache.model.training_images import Example
from gpcache.support.progress import progress_bar
from gpcache.support.threads import limited_threads

__all__ = ["FAULTS", "KINDS", "Audit", "Finding", "audit"]


@dataclass(frozen=True)
class Audit:
    """Findings by kind, the most serious first, notices on what was not checked, and the model."""

    findings: tuple[Finding, ...]
    notices: tuple[str, ...]
    model: AuditModel = field(compare=False, repr=False)

    def of(self, kind: Kind) -> tuple[Finding, ...]:
        """The findings of one kind, the most serious first."""
        return tuple(finding for finding in self.findings if finding.kind == kind)


def audit(
    features: NDArray[Any],
    examples: Sequence[Example | None],
    *,
    text_prior: TextPrior | None = None,
    pictures: Sequence[NDArray[np.uint8]] | None = None,
) -> Audit:
    """Look for wrong labels, copies, leaks, outliers and harmful shots among rows (n, d).

    A row whose example is None has no label and is ignored. Rows of one group (a burst, a session),
    and copies, are left out together. `pictures` are the fingerprints of the rows, with which
    cropped and mirrored copies are found. Of exact copies in a class, one is checked.
    """
    labelled = {row: example for row, example in enumerate(examples) if example is not None}
    numbers = list(labelled)
    rows = LabelledRows(
        unit_rows(torch.as_tensor(features[numbers]).double()),
        list(labelled.values()),
        numbers,
        None if pictures is None else [pictures[row] for row in numbers],
    )
    threads = limited_threads(len(numbers) ** 3, torch.device("cpu"))
    with threads, progress_bar("check", total=3, unit="step") as bar:
        copies = find_copies(rows)
        bar.update()
        first = rows.first_of_content(by_label=True)
        sets = left_out_together(rows.examples, copies)[first]
        checked = rows.part(first)
        labels = np.array([example.label for example in checked.examples])
        model = AuditModel.of(checked.features, labels, sets, text_prior)
        bar.update()
        findings = [*label_findings(checked, model), *outlier_findings(checked, model)]
        place = {number: row for row, number in enumerate(checked.numbers)}
        suspects = list({place[finding.row]: None for finding in findings})
        findings += [*harm_findings(checked, model, suspects), *copy_findings(rows, copies)]
    unlabelled = len(examples) - len(labelled)
    return Audit(tuple(ranked(findings)), tuple(_notices(checked, model, unlabelled)), model)


def _notices(rows: LabelledRows, model: AuditModel, unlabelled: int) -> Iterator[str]:
    """Notices about what was not checked, and why."""
    if unlabelled:
        yield f"Rows without a label were ignored: {unlabelled}."
    if len(model.classes) < 2:
        yield "There is only one class: wrong labels and harmful images cannot be found."
    elif not bool(model.counted.any()):
        yield (
            "No class has two images that can be left out one by one: wrong labels and harmful "
            "images cannot be found."
        )
    elif not bool(model.counted.all()):
        alone = torch.nonzero(~model.counted).flatten().tolist()
        yield (
            f"Labels not checked: {len(alone)} (the first is that of "
            f"{rows.examples[alone[0]].name}). Without the row, its group and its copies, nothing "
            "of its class is left."
        )
    if len(model.labels) < ENOUGH_ROWS:
        yield f"Outliers were not looked for: this needs at least {ENOUGH_ROWS} images."
