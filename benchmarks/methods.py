"""Every method on the shared features, without a validation set and with one; one table.

    python benchmarks/methods.py            # all data
    python benchmarks/methods.py choosing   # only the data that defaults are chosen on

Protocol *none*: everything from the shots. Protocol *validation*: numbers chosen by accuracy on a
validation set where the file has one beside its test rows.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from accuracy import score, title
from development_data import CHOOSING, REPORTING, Task, caltech_with_text, photo_tasks, tasks
from pages import table, write_page

from gpcache.methods import registry

SHOTS = (1, 2, 4, 8, 16)
# Trained in folds for its temperature, a method takes many times as long; the table needs accuracy.
QUICK: dict[str, dict[str, Any]] = {
    name: {"calibrate": False}
    for name in ("tip-adapter-f", "gpcache-f", "task-res", "clip-adapter", "clap")
}


def wanted(names: tuple[str, ...]) -> Iterator[Task]:
    """The tasks of the named data sets, the 39 Caltech classes with text, and photos."""
    for name in names:
        yield from tasks(name, SHOTS)
    yield from caltech_with_text()
    if "reporting" not in sys.argv:
        yield from photo_tasks(tuple(k for k in SHOTS if k < 16))


def fitted(name: str, task: Task, validation: bool) -> tuple[Any, float] | None:
    """The fitted method and its seconds; None where it cannot run."""
    method = registry()[name]
    if "text" in method.needs and task.prior is None:
        return None
    options = dict(QUICK.get(name, {}))
    given: dict[str, Any] = {}
    if validation:
        if task.X_tuning is None:
            return None
        given["validation"] = (task.X_tuning, task.y_tuning)
        if "criterion" in method.constructor().get_params():
            options["criterion"] = "accuracy"
    start = time.perf_counter()
    if name == "zero-shot":
        given = {}
    model = method.constructor(text_prior=task.prior, **options).fit(task.X, task.y, **given)
    return model, time.perf_counter() - start


def main() -> None:
    """Fit everything on everything, and write accuracy, ECE, mean rank and seconds."""
    names = CHOOSING if "choosing" in sys.argv else (*CHOOSING, *REPORTING)
    found: dict[tuple[str, bool], dict[tuple[str, int], list[tuple[float, ...]]]]
    found = defaultdict(lambda: defaultdict(list))
    for task in wanted(names):
        for name in registry():
            for validation in (False, True):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    result = fitted(name, task, validation)
                if result is not None:
                    figures = score(result[0], task.X_test, task.y_test)
                    cell = found[name, validation][task.name, task.shots]
                    cell.append((figures[0], figures[1], result[1]))
        print(task.name, task.shots, task.draw, file=sys.stderr)
    parts = []
    for validation, heading in ((False, "No validation set"), (True, "With a validation set")):
        rows = {name: cells for (name, with_one), cells in found.items() if with_one == validation}
        if rows:
            parts += [f"## {heading}", table(_rows(rows))]
    text = "Cells are test accuracy / ECE in %. *rank*: mean over the cells where all methods ran."
    write_page("methods-shared", "Every method on the shared features", text, *parts)


def _rows(found: dict[str, Any]) -> list[list[object]]:
    cells = list(dict.fromkeys(cell for row in found.values() for cell in row))
    means = {
        name: {cell: np.mean(row[cell], 0) for cell in cells if cell in row}
        for name, row in found.items()
    }
    shared = [cell for cell in cells if all(cell in row for row in means.values())]
    order = sorted(means)
    ranks: dict[str, list[int]] = {name: [] for name in order}
    for cell in shared:
        for rank, name in enumerate(sorted(order, key=lambda n: -means[n][cell][0]), start=1):
            ranks[name].append(rank)
    rows: list[list[object]] = [
        ["method", "rank", "mean accuracy", "fit s"]
        + [f"{title(name)}, {shots}" for name, shots in cells]
    ]
    for name in sorted(order, key=lambda n: np.mean(ranks[n]) if ranks[n] else 99):
        row = means[name]
        mean = np.mean([row[cell][0] for cell in shared]) if shared else float("nan")
        seconds = np.mean([figures[2] for figures in row.values()])
        rank = f"{np.mean(ranks[name]):.1f}" if ranks[name] else "–"
        shown = [f"{row[c][0]:.1f} / {row[c][1]:.1f}" if c in row else "–" for c in cells]
        rows.append([name, rank, f"{mean:.2f}", f"{seconds:.2f}", *shown])
    return rows


if __name__ == "__main__":
    main()
