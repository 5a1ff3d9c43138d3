"""Protocols: the rows on which a method may choose its hyper-parameters."""

from __future__ import annotations

from gpcache.benchmark.task import SPARE_SHOTS, Labelled, Task
from gpcache.errors import ProtocolError
from gpcache.features.splits import draw_shots

FULL_VALIDATION = "full validation"
SMALL_VALIDATION = "min(k,4) validation"
NO_VALIDATION = "no validation"
LEGACY = "legacy"
PROTOCOLS = (FULL_VALIDATION, SMALL_VALIDATION, NO_VALIDATION, LEGACY)
LEGACY_DATASETS = ("imagenet",)


def check_legacy(dataset: str) -> None:
    """Refuse to choose on test rows except where the published numbers did."""
    if dataset not in LEGACY_DATASETS:
        raise ProtocolError(
            f"The protocol {LEGACY!r} chooses on test images, as published numbers of "
            f"{LEGACY_DATASETS[0]!r} do, and is refused on {dataset!r}: use {FULL_VALIDATION!r} or "
            f"{NO_VALIDATION!r}."
        )


def rows_to_choose_on(
    protocol: str, task: Task, spare: Labelled | None, shots: int, seed: int
) -> Labelled | None:
    """The rows on which a protocol lets a method choose; None for the shots alone.

    `spare` are training rows that are not shots, for a task without validation rows.
    """
    validation = spare if task.validation is None else task.validation
    if protocol == NO_VALIDATION:
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
