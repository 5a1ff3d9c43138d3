"""Memory and time of fits by size, each in its own process.

    python benchmarks/memory.py             # the estimated memory of a fit, and its real peak
    python benchmarks/memory.py --growth    # how time and memory grow with n, c and d

A peak is the growth of the resident memory (VmHWM of Linux) during a call. The data are drawn
points. The bar: the estimate lies within 1.3 times the peak, both ways. Writes a section of
docs/results/faults.md, or of speed.md; the exit status is 1 where the bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from development_data import points
from measuring import once, resident
from pages import table, text, write_page

from gpcache import GPCacheClassifier, GPCacheFClassifier
from gpcache.methods import Fourier, Grouped, Nystrom, Regression, Training, Weights
from gpcache.methods.cache.memory import fit_bytes

BAR = 1.3
WIDTH, QUERIES = 128, 256
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
# Four folds, as many as the fewest shots of a class below, so that every fit has them all.
GROWTH = {"alpha": 1.0, "beta": 1.0, "tau": 8.0, "shrinkage": 1.0, "discriminant": 0.0}
GROWTH |= {"n_folds": 4, "approximation": "exact"}
# One of n, c and d through its sizes, the others held.
SERIES: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "n": ((200, 400, 800, 1600, 3200, 6400), {"c": 50, "d": 512}),
    "c": ((10, 30, 100, 300, 1000), {"n": 4000, "d": 512}),
    "d": ((64, 128, 256, 512, 1024, 2048), {"n": 1600, "c": 50}),
}
MEASURES = ("fit s", "fit MB", "predict s", "predict MB")
Found = dict[str, float]


def seconds_and_peak(what: str, call: Callable[[], object]) -> Found:
    """Seconds of a call, and the most megabytes that it holds beyond what was there before."""
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    seconds = once(call)[0]
    return {f"{what} s": seconds, f"{what} MB": (resident("VmHWM") - before) / 1e6}


def measure(case: str, n: int, c: int, d: int) -> Found:
    """What a fit takes and what was estimated for it; without a case, that of a prediction too."""
    torch.set_num_threads(1)
    make = CASES.get(case, lambda: GPCacheClassifier.from_options(**GROWTH))
    make().fit(*points(64, 4, 16))  # loads what every fit loads
    rows, labels = points(n, c, d)
    model = make()
    found = seconds_and_peak("fit", lambda: model.fit(rows, labels))
    if not case:
        queries = np.random.default_rng(0).normal(size=(QUERIES, d))
        model.posterior(queries)  # makes the factor
        return found | seconds_and_peak("predict", lambda: model.posterior(queries))
    fitted = model.fitted_
    estimate = fit_bytes(fitted.recipe, fitted.shots, trained=fitted.training is not None)
    return found | {"estimate MB": estimate / 1e6}


def measured(case: str, n: int, c: int, d: int) -> Found:
    """What `measure` finds in a process of its own, whose freed memory goes back at once."""
    command = [sys.executable, __file__, "--case", case, str(n), str(c), str(d)]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**16)} if not case else None
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def exponent(sizes: tuple[int, ...], values: list[float]) -> float:
    """The slope of log values over log sizes, over the upper half of the sizes."""
    half = len(sizes) // 2
    logs = np.log(np.maximum(values, 1e-9))
    return float(np.polyfit(np.log(sizes[half:]), logs[half:], 1)[0])


def write_growth() -> None:
    """Measure every series, and write exponents and figures."""
    exponents: list[list[object]] = [["against", *MEASURES]]
    rows: list[list[object]] = [["n", "c", "d", *MEASURES]]
    for varied, (sizes, held) in SERIES.items():
        places = [held | {varied: size} for size in sizes]
        found = [measured("", **place) for place in places]
        slopes = (exponent(sizes, [one[name] for one in found]) for name in MEASURES)
        exponents.append([varied, *(f"{slope:.1f}" for slope in slopes)])
        for place, one in zip(places, found, strict=True):
            figures = (f"{one[name]:.3g}" for name in MEASURES)
            rows.append([*(f"{place[name]:,}" for name in "ncd"), *figures])
    heading = "How time and memory grow"
    write_page("growth", heading, text("growth"), table(exponents), table(rows))


def write_estimates(sizes: list[int], classes: int, jobs: int) -> bool:
    """Measure all cases and write the page; returns whether one misses the bar."""
    todo = [(case, n) for n in sizes for case in CASES]
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(lambda one: measured(*one, classes, WIDTH), todo))
    ratios = [one["estimate MB"] / one["fit MB"] for one in found]
    rows = [
        (case, f"{n:,}", f"{one['estimate MB']:,.0f}", f"{one['fit MB']:,.0f}", f"{ratio:.2f}")
        for (case, n), one, ratio in zip(todo, found, ratios, strict=True)
    ]
    missed = sum(not 1 / BAR <= ratio <= BAR for ratio in ratios)
    write_page(
        "memory",
        "Memory of a fit: estimate and peak",
        text("memory", classes=classes, width=WIDTH),
        table([("fit", "shots", "estimate MB", "peak MB", "estimate / peak"), *rows]),
        f"Bar: within {BAR} both ways. {missed} of {len(rows)} cases miss it.",
    )
    return missed > 0


def main() -> None:
    """Measure one case for another process, or all, and write a page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_600, 3_200, 6_400])
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(measure(asked.case[0], *map(int, asked.case[1:]))))
    elif asked.growth:
        write_growth()
    else:
        sys.exit(write_estimates(asked.sizes, asked.classes, asked.jobs))


if __name__ == "__main__":
    main()
