"""The constants of the default, each changed by itself and judged with each data set left out.

    python benchmarks/prepare_data.py
    python benchmarks/shipped_values.py --jobs 16

The constants are no options, so no spec can change them. Only the sets that defaults may be chosen
on are read. Writes shipped-values.json into the folder $OUT if that is set; ``--from FILE`` makes
of it a section of docs/results/headline.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from pages import keep, table, text, write_page

from gpcache import GPCacheClassifier
from gpcache.benchmark.datasets.stored_features import open_features
from gpcache.benchmark.task import Task
from gpcache.errors import GPCacheError
from gpcache.methods.cache import softmax_search, softmax_weights

DATA = Path(__file__).resolve().parent.parent / "build" / "data"
WITH_TEXT = ("dtd_vitb32", "caltech20", "trash6", "caltech101_vitb32")
WITHOUT_TEXT = ("caltech20", "trash6", "caltech101_vitb32", "oxford_pets_vitb32", "ucf101_vitb32")
DRAWS = 5


class Constant(NamedTuple):
    """A constant, the shots that it matters for, values to try, and whether it is about text."""

    name: str
    shots: tuple[int, ...]
    values: Sequence[Any]
    needs_text: bool = False


MORE = (4, 8, 16)
MODULES = (softmax_search, softmax_weights)  # a constant may have been imported
CONSTANTS = [
    Constant("ONE_SHOT_SHRINKAGE", (1,), (1.0, 3.0, 10.0, 30.0)),
    Constant("ONE_SHOT_ALPHA", (1,), (1.0, 1.25, 1.5, 2.0), needs_text=True),
    Constant("FEW_THETA", (1, 2), (100.0, 300.0, 1000.0)),
    Constant("FEW_PULL", (2,), (1.0, 4.0, 16.0)),
    Constant(
        "FEW_TRUSTS",
        (2,),
        ((1.0, 0.7, 0.35, 0.15, 0.0), (0.7, 0.0), (1.0, 0.0), (1.0, 0.5, 0.0)),
        needs_text=True,
    ),
    Constant(
        "TRUSTS",
        MORE,
        ((0.7, 0.35, 0.15, 0.0), (0.7, 0.0), (1.0, 0.0), (0.7, 0.35, 0.0), (0.7, 0.4, 0.2, 0.0)),
        needs_text=True,
    ),
    Constant("DIAGONALS", MORE, ((0.5, 0.9, 0.0), (0.0,), (0.5,), (0.9,))),
    Constant("SHRINKAGE", MORE, (0.3, 1.0, 3.0)),
    Constant("BETA", MORE, (0.25, 0.5, 1.0)),
    Constant("THETA", MORE, (1.0, 3.0, 10.0)),
    Constant("PRIOR", MORE, (0.03, 0.1, 0.3)),
    Constant("PULL", MORE, (0.05, 0.2, 1.0)),
]


class Job(NamedTuple):
    """One fit: a constant at a value, on one draw of a data set."""

    constant: Constant
    value: Any
    dataset: str
    text: bool
    shots: int
    seed: int


@cache
def task_of(dataset: str, text: bool) -> Task:
    """A prepared file; with text, its classes that have text."""
    task = open_features(DATA / f"{dataset}.npz")
    return open_features(DATA / f"{dataset}.npz:text") if text and task.prior is None else task


def measured(job: Job) -> dict[str, Any]:
    """Fit and score; the constant is put back."""
    torch.set_num_threads(1)
    name, task = job.constant.name, task_of(job.dataset, job.text)
    modules = [module for module in MODULES if hasattr(module, name)]
    shipped, shots = getattr(modules[0], name), task.draw(job.shots, job.seed).shots
    model = GPCacheClassifier(text_prior=task.prior if job.text else None, device="cpu")
    try:
        with ExitStack() as changed:
            for module in modules:
                changed.enter_context(patch.object(module, name, job.value))
            model.fit(shots.features, shots.labels)
    except GPCacheError as error:
        return {"error": str(error), **job._asdict()}
    probability = model.predict_proba(task.test.features)
    place = np.searchsorted(model.classes_, task.test.labels)
    right = probability[np.arange(len(place)), place]
    return {
        "constant": name,
        "value": str(job.value),
        "shipped": job.value == shipped,
        "dataset": f"{job.dataset}{', text' if job.text else ''}",
        "shots": job.shots,
        "accuracy": 100 * float((probability.argmax(1) == place).mean()),
        "nll": -float(np.log(right.clip(1e-12)).mean()),
    }


def jobs() -> Iterable[Job]:
    """All fits, the longest first."""
    sets = [(name, True) for name in WITH_TEXT] + [(name, False) for name in WITHOUT_TEXT]
    found = [
        Job(constant, value, dataset, text, shots, seed)
        for constant in CONSTANTS
        for value in constant.values
        for dataset, text in sets
        if text or not constant.needs_text
        for shots in constant.shots
        for seed in task_of(dataset, text).seeds(shots, range(DRAWS))
    ]
    return sorted(found, key=lambda job: -job.shots * len(task_of(job.dataset, False).test.labels))


def table_of(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The lines of the table."""
    head = ["constant", "shots", "tried", "regret", "accuracy", "chosen, set left out", "there"]
    lines = [head]
    for constant in CONSTANTS:
        mine = [row for row in rows if row["constant"] == constant.name]
        cells = defaultdict(lambda: defaultdict(list))  # type: ignore[var-annotated]
        for row in mine:
            cells[row["value"], row["dataset"]][row["shots"]].append((row["nll"], row["accuracy"]))
        # Draws, then shots: every number of shots counts alike.
        means = {
            place: np.mean([np.mean(drawn, axis=0) for drawn in by_shots.values()], axis=0)
            for place, by_shots in cells.items()
        }
        values = [str(value) for value in constant.values]
        sets = sorted({dataset for _, dataset in means})
        lost = {
            (value, one): means[value, one][0] - min(means[other, one][0] for other in values)
            for value in values
            for one in sets
        }
        shipped = next(row["value"] for row in mine if row["shipped"])
        choices = {
            left: min(values, key=lambda value: fmean(lost[value, s] for s in sets if s != left))
            for left in sets
        }
        place = [f"`{constant.name}`", ", ".join(map(str, constant.shots))]
        for value in values:
            chosen = [one for one in sets if choices[one] == value]
            there = [means[value, one][1] - means[shipped, one][1] for one in chosen]
            figures = [
                f"{fmean(lost[value, one] for one in sets):.4f}",
                f"{fmean(means[value, one][1] for one in sets):.2f}",
                f"{len(there)} of {len(sets)}",
                f"{fmean(there):+.2f}" if there else "",
            ]
            lines.append([*place, f"**{value}**" if value == shipped else value, *figures])
            place = ["", ""]
    return lines


def main() -> None:
    """Run every fit, or write the section of an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--from", dest="file", type=Path, help="shipped-values.json of a run")
    options = parser.parse_args()
    if options.file:
        rows = json.loads(options.file.read_text())
    else:
        start, rows = time.monotonic(), []
        with get_context("spawn").Pool(options.jobs) as pool:
            for row in pool.imap_unordered(measured, jobs()):
                if "error" in row:
                    print(row, flush=True)
                else:
                    rows.append(row)
        print(f"{len(rows)} fits in {time.monotonic() - start:.0f} s", flush=True)
        keep("shipped-values.json", rows)
    made_by = "`python benchmarks/shipped_values.py`"
    heading = "The constants of the default"
    write_page(
        "shipped-values", heading, text("shipped-values"), table(table_of(rows)), made_by=made_by
    )


if __name__ == "__main__":
    main()
