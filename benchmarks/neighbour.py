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
from development_data import Task, folder, tasks
from pages import table, write_page

from gpcache import GPCacheClassifier
from gpcache.support import threads

CELLS = (("dtd_vitb32", 4), ("dtd_vitb32", 16), ("ucf101_vitb32", 16))
CORES, RUNS = 2, 3
TEXT = """
Default fits on stored features (no accuracy is measured here), pinned to two cores: alone, and
beside a Python process that runs an empty loop on one of them; the median of three runs,
in alternation. Fits of small problems use one thread, larger ones as many as there are free cores.
The bars are 1.5 where one thread does the work, and 2.2 otherwise. *Two threads always* is what
torch does by itself, in one run of the smallest problem.
"""


def seconds(task: Task) -> float:
    """Of one default fit."""
    start = time.perf_counter()
    GPCacheClassifier(text_prior=task.prior, device="cpu").fit(task.X, task.y)
    return time.perf_counter() - start


def measured(task: Task, runs: int = RUNS) -> tuple[float, float]:
    """Median seconds alone, and beside a busy process."""
    alone, beside = [], []
    for _ in range(runs):
        alone.append(seconds(task))
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            time.sleep(0.3)
            beside.append(seconds(task))
            busy.kill()
    return statistics.median(alone), statistics.median(beside)


def main() -> None:
    """Measure and write the page."""
    os.sched_setaffinity(0, range(CORES))
    torch.set_num_threads(CORES)
    os.cpu_count = lambda: CORES  # type: ignore[assignment]
    features = folder("features")
    rows = []
    for name, shots in CELLS:
        task = next(tasks(name, (shots,), features))
        found = measured(task)
        size, ratio = f"{len(task.y):,}", f"{found[1] / found[0]:.2f}"
        times = [f"{value:.2f}" for value in found]
        rows.append([f"{name}, {shots} shots", size, *times, ratio])
    task = next(tasks(CELLS[0][0], CELLS[0][1:], features))
    threads.SMALL, threads.free_cores = 0, lambda: CORES
    found = measured(task, 1)
    times = [f"{value:.2f}" for value in found]
    rows.append(["the first, two threads always", rows[0][1], *times, f"{found[1] / found[0]:.2f}"])
    head = ["data", "n", "alone s", "beside s", "ratio"]
    write_page("neighbour", "Beside a busy process", TEXT, table([head, *rows]))


if __name__ == "__main__":
    main()
