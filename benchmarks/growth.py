"""How time and memory of fitting and predicting grow with n, c and d: exponents and a plot.

    python benchmarks/growth.py                   # a section of speed.md, and growth.png
    PYTHONPATH=src python3 benchmarks/growth.py --device cuda    # needs no matplotlib there

*fit* is `GPCacheClassifier.fit` with given hyper-parameters: a search tries more or fewer settings
depending on the data, not on their size. It includes the whitening, the held-out report in four
folds and the calibration. *predict* is mean and variance of 256 rows. An exponent is the slope of
the logarithms over the upper half of the sizes. Writes growth.json into the folder $OUT if that is
set; ``--from FILE …`` makes page and plot from results of another machine.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from measuring import median, name_of, watched
from pages import RESULTS, keep, table, write_page

from gpcache import GPCacheClassifier
from gpcache.support.devices import resolve_device
from gpcache.support.extras import require

QUERIES = 256
# As many as the fewest shots of a class below, so that every fit has them all.
FOLDS = 4
# Seconds between two samples of the memory.
SAMPLING = 5e-4
STYLES = (("-o", "#2a78d6"), ("--s", "#6b6b68"))  # of the first and the second machine


class Series(NamedTuple):
    """One of n, c and d through its sizes, the others held."""

    varied: str
    sizes: tuple[int, ...]
    held: dict[str, int]


SERIES = (
    Series("n", (200, 400, 800, 1600, 3200, 6400), {"c": 50, "d": 512}),
    Series("c", (10, 30, 100, 300, 1000), {"n": 4000, "d": 512}),
    Series("d", (64, 128, 256, 512, 1024, 2048), {"n": 1600, "c": 50}),
)
MEASURES = ("fit s", "fit MB", "predict s", "predict MB")


def peak_memory(call: Callable[[], object], device: torch.device) -> float:
    """The most megabytes that a call holds at once beyond what was there before."""
    if device.type == "cuda":
        allocated = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return (torch.cuda.max_memory_allocated(device) - allocated) / 1e6
    page: int = os.sysconf("SC_PAGE_SIZE")

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page / 1e6

    with watched(resident, SAMPLING) as found:
        call()
    return max(found) - found[0]


class Case:
    """A fit of n rows of width d in c classes, and a prediction from it."""

    def __init__(self, n: int, c: int, d: int, device: torch.device) -> None:
        generator, labels = np.random.default_rng(0), np.arange(n) % c
        rows = generator.normal(size=(c, d))[labels] + 3 * generator.normal(size=(n, d))
        queries = generator.normal(size=(QUERIES, d)).astype(np.float32)
        model = GPCacheClassifier.from_options(
            alpha=1.0, beta=1.0, tau=8.0, shrinkage=1.0, discriminant=0.0, n_folds=FOLDS,
            approximation="exact", device=device,
        )  # fmt: skip
        self._fit = partial(model.fit, rows.astype(np.float32), labels)
        self._predict = partial(model.posterior, queries)  # mean and variance
        self._device = device

    def measured(self, measure: Callable[..., float], unit: str) -> dict[str, float]:
        """A measure of fitting and predicting; the factor is made before the latter."""
        fit = measure(self._fit, self._device)
        self._predict()
        return {f"fit {unit}": fit, f"predict {unit}": measure(self._predict, self._device)}


def megabytes(n: int, c: int, d: int, device: str) -> dict[str, float]:
    """The memory of a case; a call that another process can be given."""
    return Case(n, c, d, torch.device(device)).measured(peak_memory, "MB")


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """The median."""
    return median(call, device)[0]


def measured(device: torch.device) -> Iterator[dict[str, Any]]:
    """Every point of every series."""
    # A process whose freed memory goes back to the system at once: what it holds is what it needs.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**16)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        # Libraries are loaded on first use.
        pool.submit(megabytes, 100, 10, 64, str(device)).result()
        for series in SERIES:
            for size in series.sizes:
                place = {**series.held, series.varied: size}
                memory = pool.submit(megabytes, **place, device=str(device)).result()
                times = Case(**place, device=device).measured(seconds, "s")
                yield {"varied": series.varied, **place, **times, **memory}


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of log values over log sizes, over the upper half of the sizes."""
    half = len(sizes) // 2
    logs = np.log(np.maximum(values, 1e-9))
    return float(np.polyfit(np.log(sizes[half:]), logs[half:], 1)[0])


def plot(results: list[dict[str, Any]], place: Path) -> None:
    """Small multiples: a column for what varies, a row for what is measured."""
    pyplot = require("matplotlib.pyplot", "report", purpose="Drawing the plot")
    figure, axes = pyplot.subplots(
        len(MEASURES), len(SERIES), figsize=(9, 10), sharey="row", layout="constrained"
    )
    for row, measure in enumerate(MEASURES):
        for column, series in enumerate(SERIES):
            axis = axes[row][column]
            for result, (style, colour) in zip(results, STYLES, strict=False):
                sizes, values = curve(result, series.varied, measure)
                power = f"${series.varied}^{{{exponent(sizes, values):.1f}}}$"
                label = f"{result['machine']}: {power}" if len(results) > 1 else power
                axis.loglog(sizes, values, style, color=colour, ms=4, lw=1.5, label=label)
            axis.legend(frameon=False, fontsize=9, loc="upper left")
            axis.grid(True, which="major", color="#e4e4e0", lw=0.6)
            axis.set_xticks(series.sizes, [f"{size:,}" for size in series.sizes], fontsize=8)
            axis.set_yscale("log", subs=[])
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.minorticks_off()
            axis.margins(y=0.3)
            axis.spines[["top", "right"]].set_visible(False)
            if column == 0:
                axis.set_ylabel(measure)
            if row == 0:
                held = ", ".join(f"{name} = {value:,}" for name, value in series.held.items())
                axis.set_title(f"against {series.varied} ({held})", fontsize=10)
    figure.savefig(place, dpi=110)


def curve(result: dict[str, Any], varied: str, measure: str) -> tuple[list[int], list[float]]:
    """Sizes and values of one line of the plot."""
    points = [point for point in result["points"] if point["varied"] == varied]
    return [point[varied] for point in points], [point[measure] for point in points]


def write_results(results: list[dict[str, Any]]) -> None:
    """The page and its plot."""
    plot(results, RESULTS / "growth.png")
    exponents: list[list[object]] = [["machine", "against", *MEASURES]]
    rows: list[list[object]] = [["machine", "n", "c", "d", *MEASURES]]
    for result in results:
        for series in SERIES:
            slopes = (exponent(*curve(result, series.varied, measure)) for measure in MEASURES)
            shown = [f"{slope:.1f}" for slope in slopes]
            exponents.append([result["machine"], series.varied, *shown])
        for point in result["points"]:
            values = (f"{point[measure]:.3g}" for measure in MEASURES)
            rows.append([result["machine"], *(f"{point[name]:,}" for name in "ncd"), *values])
    about = f"""
    Time and peak memory, beyond the model and the features, of `GPCacheClassifier.fit` with given
    hyper-parameters (whitening, held-out report in {FOLDS} folds, calibration) and of mean and
    variance of {QUERIES} rows. Synthetic features, medians.
    Exponents are slopes of the logarithms over the upper half of the sizes.
    """
    about = " ".join(about.split())
    picture = "![time and memory against n, c and d](growth.png)"
    heading = "How time and memory grow"
    write_page("growth", heading, about, picture, table(exponents), table(rows))


def main() -> None:
    """Measure, or make the page of what was measured; see the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--from", dest="files", type=Path, nargs="+", metavar="JSON")
    asked = parser.parse_args()
    if asked.files:
        write_results([json.loads(file.read_text()) for file in asked.files])
        return
    device = resolve_device(asked.device)
    result: dict[str, Any] = {"machine": name_of(device), "points": []}
    for point in measured(device):
        result["points"].append(point)
        print(json.dumps(point), flush=True)
    keep("growth.json", result)
    if device.type == "cpu":
        write_results([result])


if __name__ == "__main__":
    main()
