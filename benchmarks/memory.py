"""Compares the estimated memory of a fit with its real peak; each case in its own process.

    python benchmarks/memory.py

The peak is the growth of the resident memory (VmHWM of Linux) during the fit. The data are drawn
points. The bar: the estimate lies within 1.3 times the peak, both ways. Writes a section of
docs/results/faults.md; the exit status is 1 where the bar is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from development_data import points
from pages import table, write_page

from gpcache import GPCacheClassifier, GPCacheFClassifier
from gpcache.methods import Fourier, Grouped, Nystrom, Regression, Training, Weights
from gpcache.methods.cache.memory import fit_bytes

BAR = 1.3
WIDTH = 128
GIVEN = {"likelihood": Regression(noise=0.1), "beta": 2.0, "weights": Weights(cache=3.0)}
RAW = {"likelihood": "gaussian", "kernel_space": "raw"}
TRAINED = {"training": Training(epochs=1)}
APPROXIMATIONS = {
    "exact": "exact",
    "grouped": Grouped(8),
    "Nyström": Nystrom(400),
    "Fourier": Fourier(1024),
    "class mean": "class_mean",
}
CASES: dict[str, Callable[[], Any]] = {
    "exact, given hyper-parameters": lambda: GPCacheClassifier(kernel_space="raw", **GIVEN),
    "exact, leave-one-out search": lambda: GPCacheClassifier(**RAW),
    "exact, search in folds": lambda: GPCacheClassifier(likelihood="gaussian"),
}
for name, value in APPROXIMATIONS.items():
    CASES[f"softmax, {name}"] = lambda value=value: GPCacheClassifier(approximation=value)
    if name != "exact":
        CASES[f"search in folds, {name}"] = lambda value=value: GPCacheClassifier(
            likelihood="gaussian", approximation=value
        )
        CASES[f"leave-one-out search, {name}"] = lambda value=value: GPCacheClassifier(
            approximation=value, **RAW
        )
    CASES[f"training, {name}"] = lambda value=value: GPCacheFClassifier(
        approximation=value, **TRAINED
    )


def resident(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def measure(case: str, n: int, n_classes: int) -> None:
    """Print estimate and peak of one case."""
    torch.set_num_threads(1)
    CASES[case]().fit(*points(64, 4, 16))  # loads what every fit loads
    rows, labels = points(n, n_classes, WIDTH)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    fitted = CASES[case]().fit(rows, labels).fitted_
    peak = resident("VmHWM") - before
    estimate = fit_bytes(fitted.recipe, fitted.shots, trained=fitted.training is not None)
    print(json.dumps([estimate, peak]))


def measured(case: str, n: int, n_classes: int) -> tuple[int, int]:
    """Estimate and peak of one case, in a process of its own."""
    command = [sys.executable, __file__, "--case", case, str(n), str(n_classes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    estimate, peak = json.loads(done.stdout.splitlines()[-1])
    return estimate, peak


def main() -> None:
    """Measure all cases and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_600, 3_200, 6_400])
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        measure(asked.case[0], int(asked.case[1]), int(asked.case[2]))
        return
    todo = [(case, n) for n in asked.sizes for case in CASES]
    with ThreadPoolExecutor(asked.jobs) as pool:
        found = list(pool.map(lambda one: measured(*one, asked.classes), todo))
    ratios = [estimate / peak for estimate, peak in found]
    rows = [
        (case, f"{n:,}", f"{estimate / 1e6:,.0f}", f"{peak / 1e6:,.0f}", f"{ratio:.2f}")
        for (case, n), (estimate, peak), ratio in zip(todo, found, ratios, strict=True)
    ]
    missed = sum(not 1 / BAR <= ratio <= BAR for ratio in ratios)
    write_page(
        "memory",
        "Memory of a fit: estimate and peak",
        f"Drawn points of {asked.classes} classes in {WIDTH} dimensions, float64, on a CPU; each "
        "case in its own process. *Estimate* is what the check before a fit counts, *peak* the "
        "growth of the resident memory during the fit.",
        table([("fit", "shots", "estimate MB", "peak MB", "estimate / peak"), *rows]),
        f"Bar: within {BAR} both ways. {missed} of {len(rows)} cases miss it.",
    )
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
