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
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from pages import keep
from roofline_images import encoding_tasks, neighbour_tasks
from roofline_machine import Machine, Task, measured
from roofline_page import Result, cells, spent_table, write_results
from roofline_posterior import (
    Rows,
    head_tasks,
    leave_one_out_tasks,
    prediction_tasks,
    update_tasks,
    variance_tasks,
)
from roofline_search import NOISES, FourParameters, fit_tasks, search_tasks
from roofline_softmax import explicit_tasks, query_tasks, softmax_search_tasks, solver_tasks
from roofline_training import Step, epochs_tasks, similarity_tasks, step_tasks

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
    "head": (1600, 1600, 160),
    "step": (1024, 16000, 1024),
    "batch": (128, 256, 32),
    "epochs": (0, 20, 1),
    "leave_one_out": (1600, 16000, 160),
    "images": (2000, 50_000, 512),
    "neighbours": (5000, 20_000, 512),
    "photos": (192, 0, 16),
}
# Promised seconds by task.
LIMITS: dict[str, dict[str, float]] = {
    "cpu": {"head": 5e-3, "fit": 0.1},
    "cuda": {"search": 60.0, "queries": 3.0, "step": 60e-3, "epochs": 90.0},
    "small": {},
}
GROUPS = (1, 8, 64)


class Bench:
    """All tasks on one device, and what is measured of them."""

    def __init__(self, kind: str, device: torch.device) -> None:
        sizes = {name: one[KINDS.index(kind)] for name, one in SIZES.items()}
        self._sizes, self._limits, self._device = SimpleNamespace(**sizes), LIMITS[kind], device
        self._machine = Machine.measured(device)
        self.result: Result = {"machine": asdict(self._machine), "lines": [], "spent": {}}

    def _rows(self, n: int) -> Rows:
        return Rows(n, self._sizes.width, self._device)

    def fit(self) -> None:
        """Default fits."""
        for n in self._sizes.fit:
            limit = self._limits.get("fit") if n == min(self._sizes.fit) else None
            self._measure(fit_tasks(self._rows(n), limit=limit))

    def softmax(self) -> None:
        """The likelihood of the default: its solver, its search, and one query."""
        for n in self._sizes.fit:
            rows = self._rows(n)
            for tasks in (solver_tasks, explicit_tasks, softmax_search_tasks, query_tasks):
                self._measure(tasks(rows))

    def search(self) -> None:
        """The exact search of four parameters."""
        four = FourParameters(self._rows(self._sizes.search))
        self._measure(search_tasks(four, limit=self._limits.get("search")))
        for how, spent in four.spent().items():
            title = f"one β of the exact search with {len(NOISES)} noises, {how}, {four.rows.size}"
            self.result["spent"][title] = spent

    def prediction(self) -> None:
        """Mean and variance, and the whole head."""
        sizes = self._sizes
        for n in sizes.prediction:
            limit = self._limits.get("queries") if n == max(sizes.prediction) else None
            self._measure(prediction_tasks(self._rows(n), sizes.queries, limit=limit))
        self._measure(variance_tasks(self._rows(sizes.variance), 256))
        self._measure(head_tasks(self._rows(sizes.head), limit=self._limits.get("head")))

    def training(self) -> None:
        """Steps of GPCache-F and, on a GPU, a whole training."""
        sizes = self._sizes
        step = Step(self._rows(sizes.step), sizes.batch, GROUPS)
        self._measure(step_tasks(step, limit=self._limits.get("step")))
        self.result["spent"][f"an exact step of GPCache-F, {step.rows.size}"] = step.spent()
        if sizes.epochs:
            self._measure(epochs_tasks(step, sizes.epochs, limit=self._limits.get("epochs")))

    def leave_one_out(self) -> None:
        """Leave-one-out, and rows that come and go."""
        rows = self._rows(self._sizes.leave_one_out)
        self._measure(leave_one_out_tasks(rows))
        self._measure(update_tasks(rows))

    def similarity(self) -> None:
        """Learning a projection."""
        self._measure(similarity_tasks(self._sizes.images, self._sizes.width, self._device))

    def neighbours(self) -> None:
        """Nearest neighbours."""
        self._measure(neighbour_tasks(self._sizes.neighbours, self._sizes.width, self._device))

    def encoding(self) -> None:
        """Photos to features, where the encoder is installed."""
        if self._device.type == "cpu":
            self._measure(encoding_tasks(self._sizes.photos))
        else:
            self.result["skipped"] = "Encoding is timed on a CPU: no encoder is installed here."

    def _measure(self, tasks: Iterator[Task]) -> None:
        for task in tasks:
            line = measured(task, self._device)
            self.result["lines"].append(line)
            print(" | ".join(cells(line, self._machine)), flush=True)
            keep("roofline.json", self.result)
        # What a group of tasks held must be free before the next is measured.
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
        first["spent"] |= result["spent"]
    first["runs"] = len(results)
    return first


def main() -> None:
    """Measure and write the page, or make the page of a file; see the top of the file."""
    groups = ["fit", "softmax", "prediction", "training", "leave_one_out", "similarity"]
    groups += ["neighbours", "encoding", "search"]  # the longest comes last
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
        getattr(bench, name)()
    bench.finish()
    if asked.small or asked.only != groups:
        for title, spent in bench.result["spent"].items():
            print(f"\n{title}\n{spent_table(spent)}")
    else:
        write_results(bench.result)


if __name__ == "__main__":
    main()
