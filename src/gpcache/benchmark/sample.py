"""A sample: the shots of one draw under one protocol, and the rows to choose on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpcache.benchmark.protocols import FULL_VALIDATION, changed, halves, rows_to_choose_on
from gpcache.benchmark.task import Drawn, Labelled, RowNumbers, Task, digest


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
        name = self.task.name
        choosing = self.parts[0][0]
        if choosing is None or choosing is self.task.test:
            return list(self.task.notes)
        instead = ""
        if len(self.parts) > 1:
            instead = "each half of its test rows is predicted with values chosen on the other half"
        elif self.drawn.spare is not None:
            most = int(np.unique(choosing.labels, return_counts=True)[1].max())
            instead = "training rows that are not shots serve instead, "
            instead += f"up to {most} a class"
        notes = [f"{name} has no validation rows: {instead}."] if instead else []
        return [*self.task.notes, *notes]
