"""Memory and time of fits by size, each in its own process.

    python benchmarks/memory.py             # the estimated memory of a fit, and its real peak
    python benchmarks/memory.py --growth    # how time and memory grow with n, c and d

A peak is the growth of the resident memory (VmHWM of Linux) during a call. The data are drawn
points. The bar: the estimate lies within 1.3 times the peak, both ways; the peak is the median of
five runs. Writes a section of docs/results/faults.md, or of speed.md; the exit status is 1 where
the bar is missed.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
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

BAR, CLASSES, WIDTH, QUERIES, RUNS = 1.3, 50, 128, 256, 5
# Shots and features of default fits with more features than shots.
WIDE = ((900, 1024), (400, 4096))
FITS: dict[str, Callable[..., Any]] = {
    "softmax": GPCacheClassifier,
    "search in folds": partial(GPCacheClassifier, likelihood="gaussian"),
    "leave-one-out search": partial(GPCacheClassifier, likelihood="gaussian", kernel_space="raw"),
    "training": partial(GPCacheFClassifier, training=Training(epochs=1)),
}
APPROXIMATIONS = {"exact": "exact", "grouped": Grouped(8), "Nyström": Nystrom(400)}
APPROXIMATIONS |= {"Fourier": Fourier(1024), "class mean": "class_mean"}
CASES = {
    f"{fit}, {name}": partial(make, approximation=value)
    for name, value in APPROXIMATIONS.items()
    for fit, make in FITS.items()
}
GIVEN = {"likelihood": Regression(noise=0.1), "beta": 2.0, "weights": Weights(cache=3.0)}
CASES["given hyper-parameters, exact"] = partial(GPCacheClassifier, kernel_space="raw", **GIVEN)
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


def seconds_and_peak(what: str, call: Callable[[], object]) -> dict[str, float]:
    """Seconds of a call, and the most megabytes that it holds beyond what was there before."""
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    seconds = once(call)[0]
    return {f"{what} s": seconds, f"{what} MB": (resident("VmHWM") - before) / 1e6}


def measure(case: str, n: int, c: int, d: int) -> dict[str, float]:
    """What a fit takes and what was estimated for it; without a case, that of a prediction too."""
    torch.set_num_threads(1)
    make = CASES.get(case, partial(GPCacheClassifier.from_options, **GROWTH))
    make().fit(*points(64, 4, 16))  # loads what every fit loads
    model, shots = make(), points(n, c, d)
    found = seconds_and_peak("fit", lambda: model.fit(*shots))
    if not case:
        queries = np.random.default_rng(0).normal(size=(QUERIES, d))
        model.posterior(queries)  # makes the factor
        return found | seconds_and_peak("predict", lambda: model.posterior(queries))
    fitted = model.fitted_
    estimate = fit_bytes(fitted.recipe, fitted.shots, trained=fitted.training is not None)
    return found | {"estimate MB": estimate / 1e6}


def measured(case: str, n: int, c: int, d: int) -> dict[str, float]:
    """What `measure` finds in a process of its own, whose freed memory goes back at once."""
    command = [sys.executable, __file__, "--case", case, str(n), str(c), str(d)]
    environment = os.environ | ({} if case else {"MALLOC_MMAP_THRESHOLD_": str(2**16)})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_growth() -> None:
    """Measure every series, and write figures, and exponents over the upper half of the sizes."""
    exponents: list[list[str]] = [["against", *MEASURES]]
    rows: list[list[str]] = [["n", "c", "d", *MEASURES]]
    for varied, (sizes, held) in SERIES.items():
        places = [[(held | {varied: size})[name] for name in "ncd"] for size in sizes]
        found = [[one[name] for name in MEASURES] for one in (measured("", *p) for p in places)]
        logs, half = np.log(np.maximum(found, 1e-9)), len(sizes) // 2
        slopes = np.polyfit(np.log(sizes[half:]), logs[half:], 1)[0]
        exponents.append([varied, *(f"{slope:.1f}" for slope in slopes)])
        for place, figures in zip(places, found, strict=True):
            rows.append([*(f"{one:,}" for one in place), *(f"{one:.3g}" for one in figures)])
    write_page("growth", "How time and memory grow", text("growth"), table(exponents), table(rows))


def write_estimates(sizes: list[int]) -> bool:
    """Measure all cases and write the page; returns whether one misses the bar."""
    todo = [(case, n, WIDTH) for n in sizes for case in CASES]
    todo += [("softmax, exact", *size) for size in WIDE]
    head = ("fit", "shots", "features", "estimate MB", "peak MB", "lowest – highest")
    rows, missed = [(*head, "estimate / peak")], 0
    for case, n, width in todo:
        runs = [measured(case, n, CLASSES, width) for _ in range(RUNS)]
        estimate, peaks = runs[0]["estimate MB"], sorted(one["fit MB"] for one in runs)
        peak = peaks[RUNS // 2]
        missed += not 1 / BAR <= estimate / peak <= BAR
        figures = f"{estimate:,.0f}", f"{peak:,.0f}", f"{peaks[0]:,.0f} – {peaks[-1]:,.0f}"
        rows.append((case, f"{n:,}", f"{width:,}", *figures, f"{estimate / peak:.2f}"))
        print(*rows[-1], flush=True)
    about = text("memory", classes=CLASSES, runs=RUNS)
    verdict = f"Bar: within {BAR} both ways. {missed} of {len(todo)} cases miss it."
    write_page("memory", "Memory of a fit: estimate and peak", about, table(rows), verdict)
    return missed > 0


def main() -> None:
    """Measure and write a page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_600, 3_200, 6_400])
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(measure(asked.case[0], *map(int, asked.case[1:]))))
        return
    sys.exit(write_growth() if asked.growth else write_estimates(asked.sizes))


if __name__ == "__main__":
    main()
