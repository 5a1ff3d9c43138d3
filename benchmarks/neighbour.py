"""How much longer does a fit take beside a process that keeps a core busy?

python benchmarks/neighbour.py      # on two cores; for docs/results/faults.md
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import torch
from development_data import Task, task_of
from measuring import least
from pages import table, text, write_page

from gpcache import GPCacheClassifier
from gpcache.support import threads

CELLS = (("dtd_vitb32", 4), ("dtd_vitb32", 16), ("ucf101_vitb32", 16))
CORES, RUNS = 2, 3


def measured(task: Task, runs: int = RUNS) -> list[float]:
    """Median seconds of a default fit alone, and beside a busy process."""
    model = GPCacheClassifier(text_prior=task.prior, device="cpu")
    alone, beside = [], []
    for _ in range(runs):
        alone.append(least(lambda: model.fit(task.X, task.y)))
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            time.sleep(0.3)
            beside.append(least(lambda: model.fit(task.X, task.y)))
            busy.kill()
    return [statistics.median(alone), statistics.median(beside)]


def shown(found: list[float]) -> list[str]:
    """Both seconds, and their ratio."""
    return [f"{value:.2f}" for value in (*found, found[1] / found[0])]


def main() -> None:
    """Measure and write the page."""
    os.sched_setaffinity(0, range(CORES))
    torch.set_num_threads(CORES)
    os.cpu_count = lambda: CORES  # type: ignore[assignment]
    rows = []
    for name, shots in CELLS:
        task = task_of(name, shots)
        rows.append([f"{name}, {shots} shots", f"{len(task.y):,}", *shown(measured(task))])
    threads.SMALL, threads.free_cores = 0, lambda: CORES
    found = measured(task_of(*CELLS[0]), 1)
    rows.append(["the first, two threads always", rows[0][1], *shown(found)])
    head = ["data", "n", "alone s", "beside s", "ratio"]
    write_page("neighbour", "Beside a busy process", text("neighbour"), table([head, *rows]))


if __name__ == "__main__":
    main()
