"""GPCache-F: what to train, and on what loss, beside the untrained model; no validation set.

python benchmarks/trained.py            # docs/results/trained.md; a GPU makes it minutes
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import score, title
from development_data import CHOOSING, REPORTING, Task, caltech_with_text, photo_tasks, tasks
from pages import table, write_page

from gpcache import GPCacheClassifier, GPCacheFClassifier

LEAVE = {"loss": "leave_one_out"}
VARIANTS: dict[str, dict[str, Any] | None] = {
    "untrained": None,
    "**default**: keys, plain loss, held-out stop": {},
    "keys, plain loss, last epoch": {"stopping": "last"},
    "the paper's training: keys, rate 1e-3, ε 1e-4, last epoch": {
        "learning_rate": 1e-3,
        "epsilon": 1e-4,
        "stopping": "last",
    },
    "keys, leave-one-out loss": LEAVE,
    "keys, leave-one-out loss, pull 10": LEAVE | {"pull": 10.0, "learning_rate": 1e-3},
    "metric of rank 32, plain loss": {"trains": "metric", "learning_rate": 1e-3},
    "metric of rank 32, leave-one-out loss": LEAVE | {"trains": "metric"},
    "class residuals, plain loss": {"trains": "classes"},
    "class residuals, leave-one-out loss, pull 10": LEAVE | {"trains": "classes", "pull": 10.0},
}
SHOTS = (4, 16)


def wanted() -> list[Task]:
    """Two draws where draws are possible; photos are tested on the test photos."""
    found = [task for name in (*CHOOSING, *REPORTING) for task in tasks(name, SHOTS)]
    found += [task for task in caltech_with_text() if task.shots in SHOTS]
    found += list(photo_tasks(SHOTS[:1], test="test"))  # wide features, and eleven times as many
    return [task for task in found if task.draw < 2]


def fitted(options: dict[str, Any] | None, task: Task, views: bool) -> Any:
    """A variant on a task, with or without views as queries."""
    if options is None:
        return GPCacheClassifier.from_options(text_prior=task.prior).fit(task.X, task.y)
    given = {"views": task.views} if views else {}
    return GPCacheFClassifier.from_options(text_prior=task.prior, **options).fit(
        task.X, task.y, **given
    )


def main() -> None:
    """Every variant on every task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=Path("build/trained.jsonl"))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--page", action="store_true", help="of what was measured so far")
    arguments = parser.parse_args()
    arguments.rows.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.rows.read_text().splitlines() if arguments.rows.exists() else []
    known = {tuple(key): figures for key, figures in map(json.loads, lines)}
    with arguments.rows.open("a") as file:
        for task in [] if arguments.page else wanted():
            if arguments.only and task.name not in arguments.only:
                continue
            for name, options in VARIANTS.items():
                for views in (False, True):
                    key = (task.name, task.shots, task.draw, name, views)
                    no_views = task.views is None or options is None
                    if key in known or (views and no_views):
                        continue
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        model = fitted(options, task, views)
                    figures = [*score(model, task.X_test, task.y_test)[:2]]
                    known[key] = [*figures, getattr(model, "epochs_", 0)]
                    file.write(json.dumps([key, known[key]]) + "\n")
                    file.flush()
                    print(*key, *known[key], flush=True)
    if not arguments.only:
        write(known)


def write(known: dict[Any, list[float]]) -> None:
    """Means over cells, and each cell, as differences to the untrained model."""
    found: dict[tuple[str, bool], dict[tuple[str, int], list[list[float]]]]
    found = defaultdict(lambda: defaultdict(list))
    for (name, shots, _, variant, views), figures in known.items():
        found[variant, views][name, shots].append(figures)
    measured = [row for (variant, _), row in found.items() if variant != "untrained"]
    cells = [cell for cell in found["untrained", False] if any(cell in row for row in measured)]
    base = {cell: np.mean(found["untrained", False][cell], 0) for cell in cells}
    body: list[list[object]] = [
        ["variant", "views", "mean", "worst", "ECE"] + [f"{title(n)}, {k}" for n, k in cells]
    ]
    body.append(
        ["untrained", "", "", "", ""] + [f"{base[c][0]:.1f} / {base[c][1]:.1f}" for c in cells]
    )
    for variant, views in found:
        if variant == "untrained":
            continue
        row = found[variant, views]
        change = {c: np.mean(row[c], 0) - base[c] for c in cells if c in row}
        gains = [float(one[0]) for one in change.values()]
        shown = [f"{change[c][0]:+.1f}" if c in change else "–" for c in cells]
        errors = np.mean([one[1] for one in change.values()])
        body.append(
            [variant, "10" if views else "–", f"{np.mean(gains):+.2f}", f"{min(gains):+.1f}"]
            + [f"{errors:+.2f}", *shown]
        )
    write_page(
        "trained",
        "Does training pay?",
        "Accuracy of GPCache-F less that of the untrained GPCache, in points of test accuracy; the "
        "first row is the untrained accuracy / ECE. Two draws where the data allow draws. No "
        "validation set: numbers, stop and temperature come from the shots. *views*: augmented "
        "views of the shots as further queries (photos alone have them). *mean*, *worst* and *ECE* "
        "are over the cells of the row.",
        table(body),
    )


if __name__ == "__main__":
    main()
