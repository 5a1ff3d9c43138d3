"""What is suspicious in a set of labelled images, found on their features before any training."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gpcache.methods.text_prior import TextPrior
from gpcache.model.audit.copies import copy_findings, find_copies, left_out_together
from gpcache.model.audit.findings import FAULTS, KINDS, Finding, Kind
from gpcache.model.audit.judge import Judge
from gpcache.model.audit.rows import LabelledRows
from gpcache.model.audit.verdicts import (
    ENOUGH_ROWS,
    harm_findings,
    label_findings,
    outlier_findings,
)
from gpcache.support.progress import progress_bar

__all__ = ["FAULTS", "KINDS", "Audit", "Finding", "audit"]


@dataclass(frozen=True)
class Audit:
    """Findings by kind, the gravest first, what could not be looked at, and who judged."""

    findings: tuple[Finding, ...]
    notices: tuple[str, ...]
    judge: Judge | None = field(default=None, compare=False, repr=False)

    def of(self, kind: Kind) -> tuple[Finding, ...]:
        """The findings of one kind, the gravest first."""
        return tuple(finding for finding in self.findings if finding.kind == kind)


def audit(
    features: ArrayLike,
    labels: Sequence[Any] | NDArray[Any],
    *,
    hashes: Sequence[Hashable] | None = None,
    groups: Sequence[Hashable] | None = None,
    text_prior: TextPrior | None = None,
    names: Sequence[str] | None = None,
    pictures: Sequence[NDArray[np.uint8]] | None = None,
) -> Audit:
    """Look for wrong labels, copies, leaks, outliers and harmful shots among rows (n, d).

    A label of None is none: such rows are ignored. `hashes` are of the images' contents. Rows of
    one of the `groups` (a burst, a session) are never judged by each other, nor are copies; None is
    no group. `names` are what the sentences call the rows, `pictures` their fingerprints: with them
    cropped and mirrored copies are found. Of exact copies in a class, one is judged.
    """
    rows = LabelledRows.read(
        features, labels, hashes=hashes, groups=groups, names=names, pictures=pictures
    )
    with progress_bar("check", total=3, unit="step") as bar:
        copies = find_copies(rows)
        bar.update()
        first = rows.first_of_content(by_label=True)
        sets = left_out_together(rows.groups, copies)[first]
        judged = rows.part(first)
        judge = Judge.of(judged.features, judged.labels, sets, text_prior)
        bar.update()
        found = [*label_findings(judged, judge), *outlier_findings(judged, judge)]
        place = {number: row for row, number in enumerate(judged.numbers)}
        suspects = list({place[finding.row]: None for finding in found})
        found += [*harm_findings(judged, judge, suspects), *copy_findings(rows, copies)]
    found.sort(key=lambda finding: (KINDS.index(finding.kind), -finding.score, finding.row))
    return Audit(tuple(found), tuple(_notices(judged, judge)), judge)


def _notices(rows: LabelledRows, judge: Judge) -> Iterator[str]:
    """What was not looked at, and why."""
    if rows.unlabelled:
        yield f"Rows without a label were ignored: {rows.unlabelled}."
    if len(judge.classes) < 2:
        yield "There is only one class: no label can be called wrong, and no shot harmful."
    elif not bool(judge.counted.any()):
        yield (
            "No class has two images that can be left out one by one: wrong labels and harmful "
            "shots cannot be found."
        )
    elif not bool(judge.counted.all()):
        alone = torch.nonzero(~judge.counted).flatten().tolist()
        yield (
            f"Labels not judged: {len(alone)} (the first is that of {rows.names[alone[0]]}). "
            "Without the row, its group and its copies, nothing of its class is left."
        )
    if len(judge.labels) < ENOUGH_ROWS:
        yield f"Outliers were not looked for: fewer than {ENOUGH_ROWS} rows do not tell."
