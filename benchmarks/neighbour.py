"""How much longer do fits and answers take beside a process that keeps a core busy?

python benchmarks/neighbour.py      # on two cores; for docs/results/faults.md
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from timeit import timeit

import torch
from development_data import task_of
from measuring import least
from pages import table, text, write_page

from gpcache import GPCacheClassifier
from gpcache.support import threads

CELLS = (("dtd_vitb32", 4), ("dtd_vitb32", 16), ("ucf101_vitb32", 16))
CORES, RUNS, ANSWERS = 2, 3, 20


def measured(work: Callable[[], object], runs: int = RUNS) -> list[str]:
    """Median milliseconds of work alone and beside a busy process, and their ratio."""
    alone, beside = [], []
    for _ in range(runs):
        alone.append(1000 * least(work))
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            time.sleep(0.3)
            beside.append(1000 * least(work))
            busy.kill()
    found = median(alone), median(beside)
    return [*(f"{value:.0f}" for value in found), f"{found[1] / found[0]:.2f}"]


def main() -> None:
    """Measure and write the page."""
    os.sched_setaffinity(0, range(CORES))
    torch.set_num_threads(CORES)
    os.cpu_count = lambda: CORES  # type: ignore[assignment]
    works: dict[str, Callable[[], object]] = {}
    for name, shots in CELLS:
        task = task_of(name, shots)
        model = GPCacheClassifier(text_prior=task.prior, device="cpu").fit(task.X, task.y)
        title = f"fit, {name}, {shots} shots, n = {len(task.y):,}"
        works[title] = partial(model.fit, task.X, task.y)
    for count in (1, 64):
        answer = partial(model.predict_proba, task.X_test[:count])
        answers = partial(timeit, answer, number=ANSWERS)
        works[f"{ANSWERS} × `predict_proba`, {count} of its rows"] = answers
    rows = [[name, *measured(work)] for name, work in works.items()]
    large = list(works)[1 : len(CELLS)]  # they use two threads where both are free
    threads.SMALL, threads.free_cores = 0, lambda *_: CORES
    small = [name for name in works if name not in large]
    rows += [[f"{name}, two threads always", *measured(works[name], 1)] for name in small]
    head = ["work", "alone ms", "beside ms", "ratio"]
    write_page("neighbour", "Beside a busy process", text("neighbour"), table([head, *rows]))


if __name__ == "__main__":
    main()
