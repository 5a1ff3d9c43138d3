"""Every method on the shared features with a validation set; comparison.py has those without.

    python benchmarks/methods.py            # all data; goes on where it was stopped
    python benchmarks/methods.py --jobs 7   # that many processes of two threads each

Hyper-parameters are chosen by accuracy on rows that are neither shots nor test rows: the file's
validation split; what the draws of DTD left of it; half of Cars' rows, scored on the other half,
both ways.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accuracy import score, title
from development_data import CHOOSING, REPORTING, Task, caltech_with_text, tasks
from pages import table, write_page

from gpcache.methods import registry

SHOTS = (1, 2, 4, 8, 16)
WITH_TEXT = "caltech101_vitb32, 39 classes"
METHODS = [
    name
    for name, method in registry().items()
    if not method.beyond_features and name != "zero-shot"  # which has nothing to choose
]
# A factorisation at every step: hours on a CPU at Cars' size, minutes on a GPU.
ON_GPU = ("gpcache-f", "tip-adapter-f", "ape-t")
Job = tuple[str, int, int, str]
READING = """
## Reading

The published order (Tip-Adapter < APE, Tip-X < GDA ≈ GPCache from 4 shots on; trained above their
training-free parents) holds in the means. Where it does not, and why:

* **GDA below APE at 4 shots of DTD.** Its covariance is learned from ten views of each shot in the
  paper; the files hold one vector a shot, a tenth of the samples.
* **Tip-Adapter-F trains at its authors' first α and β**, and lies between APE and GDA. Trained at
  the hyper-parameters that suit Tip-Adapter, it was no better than its parent on half of the cells:
  a narrow kernel leaves each key alone with its own shot, and nothing to learn.
* **Linear probe below zero-shot at few shots, TaskRes at one shot of Cars.** The probe knows no
  text; TaskRes trains 100 epochs on one image a class, and nothing holds it to the text.
* **Chosen by accuracy, Tip-Adapter's ECE is large**: on DTD the search takes a kernel so sharp
  (β = 31, α = 200) that no temperature mends its probabilities.
"""


@cache
def tasks_of(name: str) -> dict[tuple[int, int], Task]:
    """The tasks of a data set by shots and draw."""
    found = caltech_with_text() if name == WITH_TEXT else tasks(name, SHOTS)
    return {(task.shots, task.draw): task for task in found}


def halves(task: Task) -> list[Task]:
    """Where no rows are left to choose on: one half of the test rows, scored on the other."""
    if task.X_tuning is not None:
        return [task]
    first = np.random.default_rng(0).permutation(len(task.X_test)) < len(task.X_test) // 2
    return [
        replace(
            task,
            X_tuning=task.X_test[rows],
            y_tuning=task.y_test[rows],
            X_test=task.X_test[~rows],
            y_test=task.y_test[~rows],
        )
        for rows in (first, ~first)
    ]


def run(job: Job) -> list[float]:
    """Accuracy, ECE and seconds of one method on one task."""
    name, shots, draw, method_name = job
    task, method = tasks_of(name)[shots, draw], registry()[method_name]
    options: dict[str, Any] = {"device": "auto" if method_name in ON_GPU else "cpu"}
    if "criterion" in method.constructor.option_types():
        options["criterion"] = "accuracy"
    found = []
    for one in halves(task):
        model = method.constructor.from_options(text_prior=one.prior, **options)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(one.X, one.y, validation=(one.X_tuning, one.y_tuning))
        seconds = time.perf_counter() - start
        found.append([*score(model, one.X_test, one.y_test)[:2], seconds])
    return np.mean(found, 0).tolist()


def wanted(names: list[str]) -> list[Job]:
    """All jobs, the longest first."""
    jobs = [
        (name, *key, method)
        for name in names
        for key, task in tasks_of(name).items()
        for method in METHODS
        if task.prior is not None or "text" not in registry()[method].needs
    ]
    size = {(name, *key): task.X.size for name in names for key, task in tasks_of(name).items()}
    return sorted(jobs, key=lambda job: -size[job[:3]])


def prepare() -> None:
    """A worker's share of the machine."""
    torch.set_num_threads(2)


def main() -> None:
    """Fit everything on everything, and write accuracy, ECE, mean rank and seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=Path, default=Path("build/methods.jsonl"))
    parser.add_argument("--data", nargs="*", default=[*CHOOSING, *REPORTING, WITH_TEXT])
    parser.add_argument("--on", choices=("cpu", "gpu", "both"), default="both")
    parser.add_argument("--machine", default="this machine")
    arguments = parser.parse_args()
    arguments.rows.parent.mkdir(parents=True, exist_ok=True)
    done = read_rows(arguments.rows)
    jobs = [job for job in wanted(arguments.data) if job not in done]
    if arguments.on != "both":
        jobs = [job for job in jobs if (job[3] in ON_GPU) == (arguments.on == "gpu")]
    with (
        ProcessPoolExecutor(arguments.jobs, initializer=prepare) as pool,
        arguments.rows.open("a") as file,
    ):
        waiting = {pool.submit(run, job): job for job in jobs}
        for number, future in enumerate(as_completed(waiting), start=1):
            job, figures = waiting[future], future.result()
            file.write(json.dumps([job, figures]) + "\n")
            file.flush()
            print(f"{number} of {len(jobs)}", *job, *(f"{f:.2f}" for f in figures), flush=True)
    if arguments.on == "both":
        page(read_rows(arguments.rows), arguments.machine)


def read_rows(path: Path) -> dict[Job, list[float]]:
    """What was measured before."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {tuple(job): figures for job, figures in rows}


def page(rows: dict[Job, list[float]], machine: str) -> None:
    """One table of the data with text, and one of all data."""
    found: Any = defaultdict(lambda: defaultdict(list))
    for (name, shots, _, method), figures in rows.items():
        found[method][name, shots].append(figures)
    parts = []
    for kept, about in (
        (found, "Data with text, all methods"),
        (_without(found), "All data, methods that do not need text"),
    ):
        chosen = _cells(kept)
        if chosen:
            parts += [f"## {about}", table(_rows(kept, chosen))]
    text = (
        "Hyper-parameters are chosen by accuracy on a validation set: the published validation "
        "split, the rows that the draws of DTD ViT-B/32 left, or one half of the rows of Cars, "
        "scored on the other half, both ways. [Every method without a validation set]"
        "(methods-shared.md) is a page of its own. Cells are test accuracy / ECE in %, means over "
        "five draws on DTD ViT-B/32. *rank* is the mean over the cells of the table, *mean* that "
        f"of their accuracies / ECE. *fit s* is the mean time of a fit on {machine}. CALIP, CoOp "
        "and TIMO need more than features: see [encoder-methods](encoder-methods.md)."
    )
    write_page("methods-validation", "Every method with a validation set", text, *parts, READING)


def _without(found: Any) -> Any:
    """Methods that run without text."""
    return {name: row for name, row in found.items() if "text" not in registry()[name].needs}


def _cells(found: Any) -> list[tuple[str, int]]:
    """The cells in which all of these methods ran."""
    order = list(dict.fromkeys(cell for cells in found.values() for cell in cells))
    rank = {name: i for i, name in enumerate([*CHOOSING, WITH_TEXT, *REPORTING])}
    shared = [cell for cell in order if all(cell in cells for cells in found.values())]
    return sorted(shared, key=lambda cell: (rank[cell[0]], cell[1]))


def _rows(found: Any, cells: list[tuple[str, int]]) -> list[list[object]]:
    means = {m: {c: np.mean(row[c], 0) for c in cells} for m, row in found.items()}
    accuracies = np.array([[row[cell][0] for cell in cells] for row in means.values()])
    # Equal accuracies share their rank.
    above = (accuracies[None] > accuracies[:, None]).sum(1)
    equal = (accuracies[None] == accuracies[:, None]).sum(1) - 1
    ranks = dict(zip(means, (1 + above + equal / 2).mean(1), strict=True))
    rows: list[list[object]] = [
        ["method", "rank", "mean", "fit s"] + [f"{title(name)}, {shots}" for name, shots in cells]
    ]
    for method in sorted(means, key=lambda m: ranks[m]):
        row = means[method]
        accuracy, error, seconds = np.mean(list(row.values()), 0)
        shown = [f"{row[c][0]:.1f} / {row[c][1]:.1f}" for c in cells]
        rows.append(
            [
                method,
                f"{ranks[method]:.1f}",
                f"{accuracy:.2f} / {error:.1f}",
                f"{seconds:.2f}",
                *shown,
            ]
        )
    return rows


if __name__ == "__main__":
    main()
