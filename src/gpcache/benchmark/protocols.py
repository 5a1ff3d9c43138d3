"""Protocols: the rows that a method may choose on, changes of its task or of its fit, samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpcache.benchmark.task import SPARE_SHOTS, Drawn, Labelled, RowNumbers, Task, digest
from gpcache.errors import ProtocolError
from gpcache.features.splits import draw_shots
from gpcache.model.suggest import suggest

FULL_VALIDATION = "full validation"
SMALL_VALIDATION = "min(k,4) validation"
NO_VALIDATION = "no validation"
LEGACY = "legacy"
# As "no validation", with a change: classes have between one and all of the shots; a tenth of the
# labels is wrong; the test images are known, without labels, and predicted together; the images to
# label, of any class, are drawn at random or chosen by `gpcache suggest`; five shots of each class
# are fitted and the others added, one by one or together at the choices of those five.
UNEQUAL_SHOTS, WRONG_LABELS, TRANSDUCTIVE = "unequal shots", "wrong labels", "transductive"
AT_RANDOM, SUGGESTED = "labelled at random", "labelled as suggested"
ONE_BY_ONE, KEPT_CHOICES = ADDED = ("added one by one", "added at kept choices")
_CHANGED = (UNEQUAL_SHOTS, WRONG_LABELS, TRANSDUCTIVE, AT_RANDOM, SUGGESTED, *ADDED)
ON_SHOTS_ALONE = (NO_VALIDATION, *_CHANGED)
PROTOCOLS = (FULL_VALIDATION, SMALL_VALIDATION, *ON_SHOTS_ALONE, LEGACY)
WRONG_SHARE, POOL_SHARE, FIRST_SHOTS = 0.1, 0.75, 5
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
    if protocol in ON_SHOTS_ALONE:
        return None
    if protocol == LEGACY:
        check_legacy(task.name)
        return task.test
    validation = spare if task.validation is None else task.validation
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
    return validation.only(rows)


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
        pairs = zip(groups, counts, strict=True)
        kept = [generator.choice(rows, count, replace=False) for rows, count in pairs]
        return drawn.only(np.sort(np.concatenate(kept)))
    if protocol == WRONG_LABELS:
        generator = np.random.default_rng([seed, 2])
        classes, numbers = np.unique(labels, return_inverse=True)
        rows = generator.choice(len(labels), round(WRONG_SHARE * len(labels)), replace=False)
        shift = generator.integers(1, len(classes), len(rows))
        numbers[rows] = (numbers[rows] + shift) % len(classes)
        shots = drawn.shots._replace(labels=classes[numbers])
        return drawn._replace(shots=shots, wrong=shots.labels != labels)
    return drawn


def labelled_rows(protocol: str, task: Task, shots: int, seed: int) -> Drawn:
    """Rows of the pool, `shots` times the number of classes: at random, or as suggested.

    They are chosen from a random three quarters of the pool, so that seeds differ.
    """
    if task.pool is None or task.encoder is not None:
        raise ProtocolError(f"{task.name!r} has no stored features to choose from")
    count = shots * len(task.class_names)
    order = np.random.default_rng([seed, 3]).permutation(len(task.pool.labels))
    rows = order[: round(POOL_SHARE * len(order))]
    features = task.pool.queries(rows)
    chosen = np.arange(count) if protocol == AT_RANDOM else suggest(features, count).rows
    kept = task.pool.labelled(rows, features).only(chosen)
    return Drawn(kept, None, f"seed {seed}, {protocol}")


def fit(protocol: str, model: Any, given: Mapping[str, Any], seed: int) -> None:
    """Fit a model with the arguments `given`, or fit a part of its shots and add the others."""
    if protocol not in ADDED:
        model.fit(**given)
        return
    if not hasattr(model, "add") or "views" in given:
        raise ProtocolError("cannot add shots to a fitted model")
    X, y = given["X"], given["y"]
    first = np.concatenate([np.flatnonzero(y == name)[:FIRST_SHOTS] for name in np.unique(y)])
    others = np.setdiff1d(np.arange(len(y)), first)
    if not len(others):
        raise ProtocolError(f"needs more than {FIRST_SHOTS} shots of a class")
    model.fit(X[first], y[first])
    if protocol == KEPT_CHOICES:
        model.add(X[others], y[others], refit=False)
        return
    for row in np.random.default_rng([seed, 4]).permutation(others):
        model.add(X[[row]], y[[row]])


@dataclass(frozen=True, eq=False)
class Sample:
    """The shots of a draw and the rows to choose on, the same for all methods."""

    task: Task
    protocol: str
    shots: int
    seed: int

    @cached_property
    def drawn(self) -> Drawn:
        """The shots."""
        if self.protocol in (AT_RANDOM, SUGGESTED):
            return labelled_rows(self.protocol, self.task, self.shots, self.seed)
        return changed(self.protocol, self.task.draw(self.shots, self.seed), self.seed)

    @cached_property
    def parts(self) -> list[tuple[Labelled | None, RowNumbers | None]]:
        """The rows to choose on, and the test rows (all if None) to predict with that choice.

        Without validation rows, each half of the test rows is predicted with the hyper-parameters
        that were chosen on the other half.
        """
        task, spare = self.task, self.drawn.spare
        if self.protocol == FULL_VALIDATION and task.validation is None and spare is None:
            first, second = halves(task.test.labels)
            return [(task.test.only(first), second), (task.test.only(second), first)]
        chosen_on = rows_to_choose_on(self.protocol, task, spare, self.shots, self.seed)
        return [(chosen_on, None)]

    @cached_property
    def content(self) -> str:
        """The hash of the rows that a fit sees."""
        return digest(self.drawn.shots, *(choosing for choosing, _ in self.parts))

    @property
    def notes(self) -> list[str]:
        """Notes for every table with these rows."""
        notes, choosing = list(self.task.notes), self.parts[0][0]
        if len(self.parts) > 1:
            instead = "each half of its test rows is predicted with values chosen on the other half"
        elif choosing is None or choosing is self.task.test or self.drawn.spare is None:
            return notes
        else:
            most = int(np.unique(choosing.labels, return_counts=True)[1].max())
            instead = f"training rows that are not shots serve instead, up to {most} a class"
        return [*notes, f"{self.task.name} has no validation rows: {instead}."]
