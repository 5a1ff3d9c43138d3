"""Where Tip-Adapter-F should start to train, on the data that defaults are chosen on.

python benchmarks/tip_starts.py            # docs/results/tip-starts.md
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from accuracy import score, title
from development_data import CHOOSING, Task, caltech_with_text, tasks
from pages import table, write_page

from gpcache.methods import TipAdapterClassifier, TipAdapterFClassifier, tip_adapter

SHOTS = (1, 2, 4, 8, 16)
DRAWS = 2
STARTS = {"α = 1, β = 1": (1.0, 1.0), "**α = 3, β = 1**": (3.0, 1.0), "α = 10, β = 1": (10.0, 1.0)}
PARENTS = "the numbers that suit Tip-Adapter"
TEXT = f"""
Tip-Adapter-F trained at its authors' β and at several of their α, and at the numbers that were
found for Tip-Adapter and then stay. Test accuracy in %, mean of {DRAWS} draws of DTD. Without a
validation set the cache is weighed on held-out folds of the shots once keys are trained, with one
all numbers are searched there, by accuracy. The shipped start is in bold. One shot with text and no
validation set trains at shipped numbers whatever the start.
"""


def main() -> None:
    """Every start on every task, without and with a validation set."""
    found = [task for name in CHOOSING for task in tasks(name, SHOTS) if task.draw < DRAWS]
    found += list(caltech_with_text())
    parts = []
    for validation in (False, True):
        heading = "With a validation set" if validation else "No validation set"
        rows = measured(
            [task for task in found if not validation or task.X_tuning is not None], validation
        )
        parts += [f"## {heading}", table(rows)]
    write_page("tip-starts", "Where Tip-Adapter-F starts to train", TEXT, *parts)


def measured(found: list[Task], validation: bool) -> list[list[object]]:
    """A row for each start."""
    cells = list(dict.fromkeys((task.name, task.shots) for task in found))
    rows: list[list[object]] = [
        ["start", "mean", *(f"{title(name)}, {shots}" for name, shots in cells)]
    ]
    for label, fit in _ways().items():
        accuracies: dict[tuple[str, int], list[float]] = {cell: [] for cell in cells}
        for task in found:
            model = fit(task, validation)
            accuracies[task.name, task.shots].append(score(model, task.X_test, task.y_test)[0])
        means = [np.mean(values) for values in accuracies.values()]
        rows.append([label, f"{np.mean(means):.2f}", *(f"{mean:.1f}" for mean in means)])
        print(*rows[-1], flush=True)
    return rows


def _ways() -> dict[str, Callable[[Task, bool], Any]]:
    def from_start(alpha: float, beta: float) -> Callable[[Task, bool], Any]:
        def fit(task: Task, validation: bool) -> Any:
            tip_adapter.START_ALPHA, tip_adapter.START_BETA = alpha, beta
            return _fitted(TipAdapterFClassifier, task, validation)

        return fit

    def from_parent(task: Task, validation: bool) -> Any:
        parent = _fitted(TipAdapterClassifier, task, validation)
        given = {"alpha": parent.alpha_, "beta": parent.beta_}
        return _fitted(TipAdapterFClassifier, task, validation, **given)

    return {PARENTS: from_parent} | {label: from_start(*pair) for label, pair in STARTS.items()}


def _fitted(kind: type, task: Task, validation: bool, **options: Any) -> Any:
    given = {}
    if validation:
        given["validation"], options["criterion"] = (task.X_tuning, task.y_tuning), "accuracy"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(text_prior=task.prior, device="cpu", **options).fit(task.X, task.y, **given)


if __name__ == "__main__":
    main()
