"""What `gpcache demo` does beyond the commands: it splits a folder and plants a wrong label."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpcache.errors import DataError
from gpcache.features.splits import draw_shots
from gpcache.images.records import Record, Source
from gpcache.model import learning
from gpcache.model.audit import Finding
from gpcache.model.classifier import ImageClassifier

TEST_LIMIT = 500


class PlantedLabel(NamedTuple):
    """A training picture that got another label on purpose, and the finding that names it.

    `others` counts the other suspicious labels.
    """

    name: str
    truth: str
    label: str
    finding: Finding | None
    others: int


def split_source(source: Source, shots: int, seed: int) -> tuple[Source, Source]:
    """The images to train on, and some of the others, in random order, to test on."""
    records = list(source.records)
    counts = np.unique([str(r.label) for r in records if r.label], return_counts=True)[1]
    if not len(counts):
        raise DataError(f"{source.name!r} has no class folders: make a folder for each class.")
    # Leave images of each class to test on.
    most = max(1, min(shots, int(np.median(counts)) // 2))
    draw = draw_shots([r.label for r in records], [r.name for r in records], most, seed)
    rest = np.random.default_rng(seed).permutation(draw.rest)[:TEST_LIMIT]
    test_records = [records[row] for row in rest if records[row].label is not None]
    if not test_records:
        raise DataError(f"{source.name!r} leaves no image to test on: add images to each class.")
    return _source(source, [records[row] for row in draw.indices]), _source(source, test_records)


def plant_label(classifier: ImageClassifier, seed: int) -> PlantedLabel | None:
    """Look for one wrong label that is planted at random; None if no class can spare an image.

    The classifier does not change.
    """
    content, rng = classifier.content, np.random.default_rng(seed)
    counts = Counter(example.label for example in content.examples)
    rows = [row for row, one in enumerate(content.examples) if counts[one.label] > 1]
    if not rows or len(classifier.classes) < 2:
        return None
    row = int(rng.choice(rows))
    example = content.examples[row]
    label = str(rng.choice([name for name in classifier.classes if name != example.label]))
    examples = [*content.examples]
    examples[row] = replace(example, label=label)
    findings = learning.suspects(replace(content, examples=examples), hard=True)
    planted_finding = next((finding for finding in findings if finding.row == row), None)
    n_others = len({finding.row for finding in findings} - {row})
    return PlantedLabel(example.name, example.label, label, planted_finding, n_others)


def _source(source: Source, records: list[Record]) -> Source:
    return Source(source.name, records, len(records), classes=source.classes)
