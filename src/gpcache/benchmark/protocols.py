"""Protocols: the rows that a method may choose on, and changes of its task."""

from __future__ import annotations

import numpy as np

from gpcache.benchmark.task import SPARE_SHOTS, Drawn, Labelled, RowNumbers, Task
from gpcache.errors import ProtocolError
from gpcache.features.splits import draw_shots

FULL_VALIDATION = "full validation"
SMALL_VALIDATION = "min(k,4) validation"
NO_VALIDATION = "no validation"
LEGACY = "legacy"
# As "no validation", with a change: classes have between one and all of the shots; a tenth of the
# labels is wrong; the test images are known, without labels, and predicted together.
UNEQUAL_SHOTS, WRONG_LABELS, TRANSDUCTIVE = "unequal shots", "wrong labels", "transductive"
ON_SHOTS_ALONE = (NO_VALIDATION, UNEQUAL_SHOTS, WRONG_LABELS, TRANSDUCTIVE)
PROTOCOLS = (FULL_VALIDATION, SMALL_VALIDATION, *ON_SHOTS_ALONE, LEGACY)
WRONG_SHARE = 0.1
LEGACY_DATASETS = ("imagenet",)


def check_legacy(dataset: str) -> None:
    """Raise an error for choosing on test rows, except for data sets where the paper did."""
    if dataset not in LEGACY_DATASETS:
        raise ProtocolError(
            f"The protocol {LEGACY!r} chooses on test images, as published numbers of "
            f"{LEGACY_DATASETS[0]!r} do, and is refused on {dataset!r}: use {FULL_VALIDATION!r} or "
            f"{NO_VALIDATION!r}."
        )


def rows_to_choose_on(
    protocol: str, task: Task, spare: Labelled | None, shots: int, seed: int
) -> Labelled | None:
    """The rows on which a protocol lets a method choose; None for the shots only.

    `spare` are training rows that are not shots, for a task without validation rows.
    """
    validation = spare if task.validation is None else task.validation
    if protocol in ON_SHOTS_ALONE:
        return None
    if protocol == LEGACY:
        check_legacy(task.name)
        return task.test
    if validation is None:
        raise ProtocolError(
            f"{task.name!r} has no validation rows for the protocol {protocol!r}: use "
            f"{NO_VALIDATION!r}."
        )
    if protocol == FULL_VALIDATION:
        return validation
    # The draw must not depend on the names of the rows; their order never changes.
    labels = validation.labels.tolist()
    rows = draw_shots(labels, range(len(labels)), min(shots, SPARE_SHOTS), seed).indices
    names = None if validation.names is None else validation.names[rows]
    return Labelled(validation.features[rows], validation.labels[rows], names)


def halves(labels: RowNumbers) -> list[RowNumbers]:
    """The rows of labels (n,) in two halves, each with every other row of every class."""
    order = np.argsort(labels, kind="stable")
    return [np.sort(order[::2]), np.sort(order[1::2])]


def changed(protocol: str, drawn: Drawn, seed: int) -> Drawn:
    """The draw as the protocol changes it."""
    labels = drawn.shots.labels
    if protocol == UNEQUAL_SHOTS:
        generator = np.random.default_rng([seed, 1])
        groups = [np.flatnonzero(labels == name) for name in np.unique(labels)]
        counts = [int(generator.integers(1, len(rows) + 1)) for rows in groups]
        kept = [
            generator.choice(rows, count, replace=False)
            for rows, count in zip(groups, counts, strict=True)
        ]
        return drawn.only(np.sort(np.concatenate(kept)))
    if protocol == WRONG_LABELS:
        generator = np.random.default_rng([seed, 2])
        classes, numbers = np.unique(labels, return_inverse=True)
        rows = generator.choice(len(labels), round(WRONG_SHARE * len(labels)), replace=False)
        shift = generator.integers(1, len(classes), len(rows))
        numbers[rows] = (numbers[rows] + shift) % len(classes)
        return drawn._replace(shots=drawn.shots._replace(labels=classes[numbers]))
    return drawn
