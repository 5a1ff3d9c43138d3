"""How near every hot path comes to the limit of the machine.

    make bench        # the CPU: a section of docs/results/speed.md
    make bench-gpu    # a GPU: needs torch, numpy, scikit-learn and tqdm alone

measures the machine first (matrix products in each precision, a large copy), then each task beside
the obvious way to do it, and prints ours, naive, their ratio, the floor and the share of the floor
that is reached. Features are synthetic: times, and never accuracies. ``--only fit search`` runs
some groups of tasks, ``--small`` small sizes, to show that all runs; neither writes a page. Writes
roofline.json into the folder $OUT if that is set; ``--from FILE`` makes the page of it.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from pages import keep
from roofline_machine import Machine, Task, measured
from roofline_page import Result, cells, write_results
from roofline_posterior import Rows, leave_one_out_tasks, prediction_tasks, variance_tasks
from roofline_search import fit_tasks, search_tasks
from roofline_softmax import explicit_tasks, query_tasks, softmax_search_tasks, solver_tasks
from roofline_training import Step
from roofline_unlabelled import neighbour_tasks, similarity_tasks

from gpcache.support.devices import resolve_device

# How many rows (and columns) each task has: on a CPU, on a GPU, and small, to show that all runs.
KINDS = ("cpu", "cuda", "small")
SIZES: dict[str, tuple[Any, Any, Any]] = {
    "width": (512, 1024, 64),
    "fit": ((160, 480, 1600), (160, 480, 1600, 4800, 16000), (160,)),
    "search": (800, 16000, 160),
    "prediction": ((160, 1600, 16000), (160, 1600, 16000), (160,)),
    "queries": ((1, 256), (1, 256, 50_000), (1, 16)),
    "variance": (6400, 16000, 4096),
    "step": (1024, 16000, 1024),
    "batch": (128, 256, 32),
    "epochs": (0, 20, 1),
    "leave_one_out": (1600, 16000, 160),
    "images": ((2000, 10_000), (50_000, 500_000), (512,)),
    "neighbours": ((5000, 50_000), (20_000, 500_000), (512,)),
}
# Promised seconds: how a task is called, a part of its size, and the limit.
PROMISED: dict[str, tuple[tuple[str, str, float], ...]] = {
    "cpu": (("default fit", "n = 160,", 0.1), ("one query", "n = 1,600,", 5e-3)),
    "cuda": (
        ("prediction", "n = 16,000, c = 1,000, d = 1,024; 50,000 queries", 3.0),
        ("GPCache-F step, exact", "", 60e-3),
        ("GPCache-F training", "", 90.0),
        ("exact four-parameter search", "", 60.0),
    ),
    "small": (),
}
GROUPS = (1, 8, 16, 32, 64)


class Bench:
    """All tasks on one device, and what is measured of them."""

    def __init__(self, kind: str, device: torch.device) -> None:
        sizes = {name: one[KINDS.index(kind)] for name, one in SIZES.items()}
        self._sizes, self._promised, self._device = SimpleNamespace(**sizes), PROMISED[kind], device
        self._machine = Machine.measured(device)
        self.result: Result = {"machine": asdict(self._machine), "lines": []}

    def rows(self, n: int) -> Rows:
        """Synthetic shots."""
        return Rows(n, self._sizes.width, self._device)

    def fit(self) -> Iterator[Task]:
        """Default fits."""
        for n in self._sizes.fit:
            yield from fit_tasks(self.rows(n))

    def softmax(self) -> Iterator[Task]:
        """The likelihood of the default: its solver, its search, and one query."""
        for n in self._sizes.fit:
            for tasks in (solver_tasks, explicit_tasks, softmax_search_tasks, query_tasks):
                yield from tasks(self.rows(n))

    def search(self) -> Iterator[Task]:
        """The exact search of four parameters."""
        yield from search_tasks(self.rows(self._sizes.search))

    def prediction(self) -> Iterator[Task]:
        """Mean and variance."""
        for n in self._sizes.prediction:
            yield from prediction_tasks(self.rows(n), self._sizes.queries)
        yield from variance_tasks(self.rows(self._sizes.variance), 256)

    def training(self) -> Iterator[Task]:
        """Steps of GPCache-F and, on a GPU, a whole training."""
        step = Step(self.rows(self._sizes.step), self._sizes.batch)
        yield from step.tasks(GROUPS)
        if self._sizes.epochs:
            yield from step.training_tasks(self._sizes.epochs)

    def leave_one_out(self) -> Iterator[Task]:
        """Leave-one-out."""
        yield from leave_one_out_tasks(self.rows(self._sizes.leave_one_out))

    def similarity(self) -> Iterator[Task]:
        """Learning a projection."""
        for images in self._sizes.images:
            yield from similarity_tasks(images, self._sizes.width, self._device)

    def neighbours(self) -> Iterator[Task]:
        """Nearest neighbours."""
        for n in self._sizes.neighbours:
            yield from neighbour_tasks(n, self._sizes.width, self._device)

    def measure(self, group: Callable[[], Iterator[Task]]) -> None:
        """Time the tasks of a group."""
        for task in group():
            line = measured(task, self._device)
            limits = (
                limit
                for name, size, limit in self._promised
                if task.name.startswith(name) and size in task.size
            )
            line["limit"] = next(limits, None)
            self.result["lines"].append(line)
            print(" | ".join(cells(line, self._machine)), flush=True)
            keep("roofline.json", self.result)
            # What a task held must be free before the next is measured.
            del task
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def finish(self) -> None:
        """Measure the machine again: what others took of it the first time is no limit of it."""
        self._machine = self._machine.at_best(Machine.measured(self._device))
        self.result["machine"] = asdict(self._machine)
        keep("roofline.json", self.result)


def joined(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of several runs: a later one counts where tasks are the same."""
    first, *later = results
    for result in later:
        again = {(line["name"], line["size"]): line for line in result["lines"]}
        first["lines"] = [again.pop((one["name"], one["size"]), one) for one in first["lines"]]
        first["lines"] += again.values()
    first["runs"] = len(results)
    return first


def main() -> None:
    """Measure and write the page, or make the page of a file; see the top of the file."""
    groups = ["fit", "softmax", "prediction", "training", "leave_one_out", "similarity"]
    groups += ["neighbours", "search"]  # the longest comes last
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", nargs="+", choices=groups, default=groups, metavar="GROUP")
    parser.add_argument("--small", action="store_true")
    parser.add_argument(
        "--from", dest="files", nargs="+", type=Path, metavar="FILE",
        help="results of earlier runs; lines of a later file replace those of the same task",
    )  # fmt: skip
    asked = parser.parse_args()
    if asked.files:
        write_results(joined([json.loads(file.read_text()) for file in asked.files]))
        return
    device = resolve_device(asked.device)
    bench = Bench("small" if asked.small else device.type, device)
    for name in asked.only:
        bench.measure(getattr(bench, name))
    bench.finish()
    if not asked.small and asked.only == groups:
        write_results(bench.result)


if __name__ == "__main__":
    main()
