"""The constants of the default, each changed by itself and judged with each data set left out.

    python benchmarks/prepare_data.py
    python benchmarks/shipped_values.py --jobs 16

The constants are no options, so no spec can change them. Only the sets that defaults may be chosen
on are read. Writes shipped-values.json into the folder $OUT if that is set; ``--from FILE`` makes
of it a section of docs/results/headline.md.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from measuring import Asked, Row, measured_rows
from pages import table, text, write_page

from gpcache import GPCacheClassifier
from gpcache.benchmark.datasets.stored_features import open_features
from gpcache.benchmark.task import Task
from gpcache.errors import GPCacheError
from gpcache.methods.cache import softmax_search, softmax_weights

DATA = Path(__file__).resolve().parent.parent / "build" / "data"
WITH_TEXT = ("dtd_vitb32", "caltech20", "trash6", "caltech101_vitb32")
WITHOUT_TEXT = ("caltech20", "trash6", "caltech101_vitb32", "oxford_pets_vitb32", "ucf101_vitb32")
DRAWS, MORE = 5, (4, 8, 16)
# The shots that a constant matters for, and values to try.
CONSTANTS: dict[str, tuple[tuple[int, ...], Sequence[Any]]] = {
    "ONE_SHOT_SHRINKAGE": ((1,), (1.0, 3.0, 10.0, 30.0)),
    "ONE_SHOT_ALPHA": ((1,), (1.0, 1.25, 1.5, 2.0)),
    "FEW_THETA": ((1, 2), (100.0, 300.0, 1000.0)),
    "FEW_PULL": ((2,), (1.0, 4.0, 16.0)),
    "FEW_TRUSTS": ((2,), ((1.0, 0.7, 0.35, 0.15, 0.0), (0.7, 0.0), (1.0, 0.0), (1.0, 0.5, 0.0))),
    "TRUSTS": (
        MORE,
        ((0.7, 0.35, 0.15, 0.0), (0.7, 0.0), (1.0, 0.0), (0.7, 0.35, 0.0), (0.7, 0.4, 0.2, 0.0)),
    ),
    "DIAGONALS": (MORE, ((0.5, 0.9, 0.0), (0.0,), (0.5,), (0.9,))),
    "SHRINKAGE": (MORE, (0.3, 1.0, 3.0)),
    "BETA": (MORE, (0.25, 0.5, 1.0)),
    "THETA": (MORE, (1.0, 3.0, 10.0)),
    "PRIOR": (MORE, (0.03, 0.1, 0.3)),
    "PULL": (MORE, (0.05, 0.2, 1.0)),
    "SMALL_PULL": ((4, 8), (0.0, 10.0, 20.0, 40.0)),
    "CALIBRATION_PULL": ((4, 8), (0.0, 50.0, 100.0, 200.0)),
}
NEED_TEXT = ("ONE_SHOT_ALPHA", "FEW_TRUSTS", "TRUSTS")
# What matters where few rows are held out is tried on two, three and five of the classes, drawn.
ON_FEW_CLASSES = ("SMALL_PULL", "CALIBRATION_PULL")
FEW_CLASSES = [f"{few}-classes-{seed}" for few in (2, 3, 5) for seed in range(DRAWS)]
# constant, value, data, with text, part of the data, shots, seed
Job = tuple[str, Any, str, bool, str, int, int]


@cache
def task_of(dataset: str, text: bool, part: str) -> Task:
    """A prepared file or a part of it; with text, its classes that have text."""
    task = open_features(DATA / f"{dataset}.npz{part and ':'}{part}")
    return open_features(DATA / f"{dataset}.npz:text") if text and task.prior is None else task


def measured(job: Job) -> Row:
    """Fit and score; the constant is put back."""
    torch.set_num_threads(1)
    name, value, dataset, text, part, shots, seed = job
    task, place = task_of(dataset, text, part), f"{dataset}{', text' if text else ''}"
    # A constant may have been imported.
    modules = [one for one in (softmax_search, softmax_weights) if hasattr(one, name)]
    found = {"constant": name, "value": str(value), "dataset": place, "shots": shots}
    found["shipped"] = value == getattr(modules[0], name)
    model = GPCacheClassifier(text_prior=task.prior if text else None, device="cpu")
    try:
        with ExitStack() as changed:
            for module in modules:
                changed.enter_context(patch.object(module, name, value))
            model.fit(*task.draw(shots, seed).shots[:2])
    except GPCacheError as error:
        return found | {"error": str(error)}
    probability = model.predict_proba(task.test.features)
    truth = np.searchsorted(model.classes_, task.test.labels)
    right = probability[np.arange(len(truth)), truth]
    accuracy = 100 * float((probability.argmax(1) == truth).mean())
    return found | {"accuracy": accuracy, "nll": -float(np.log(right.clip(1e-12)).mean())}


def jobs() -> list[Job]:
    """All fits, the longest first."""
    sets = [(name, True) for name in WITH_TEXT] + [(name, False) for name in WITHOUT_TEXT]
    found = []
    for name, (shots, values) in CONSTANTS.items():
        few = name in ON_FEW_CLASSES
        for value, data, n in product(values, sets, shots):
            # Only some classes of this set have text, and few classes are drawn from all of them.
            no_few = data == ("caltech101_vitb32", True)
            if (data[1] or name not in NEED_TEXT) and not (few and no_few):
                parts = [(part, 0) for part in FEW_CLASSES]
                whole = [("", seed) for seed in task_of(*data, "").seeds(n, range(DRAWS))]
                found += [(name, value, *data, part, n, s) for part, s in (parts if few else whole)]
    size = {name: len(task_of(name, False, "").test.labels) for name, _ in sets}
    return sorted(found, key=lambda job: -job[5] * size[job[2]] * (not job[4]))


def lines_of(name: str, rows: Sequence[Row]) -> Iterator[list[str]]:
    """The lines of a constant."""
    drawn, (shots, tried) = defaultdict(list), CONSTANTS[name]
    for row in rows:
        drawn[row["value"], row["dataset"], row["shots"]].append((row["nll"], row["accuracy"]))
    values, sets = [str(value) for value in tried], sorted({row["dataset"] for row in rows})

    def mean(value: str, data: str) -> Any:  # draws, then shots: every number of shots counts alike
        found = [drawn[value, data, n] for n in shots if (value, data, n) in drawn]
        return np.mean([np.mean(one, axis=0) for one in found], axis=0)

    nll, accuracy = np.moveaxis([[mean(value, one) for one in sets] for value in values], 2, 0)
    lost = nll - nll.min(0)
    # The value that the other sets choose, for each set left out.
    chosen = np.array([np.delete(lost, one, 1).mean(1).argmin() for one in range(len(sets))])
    shipped = values.index(next(row["value"] for row in rows if row["shipped"]))
    place = [f"`{name}`", ", ".join(map(str, shots))]
    for row, value in enumerate(values):
        there = (accuracy[row] - accuracy[shipped])[chosen == row]
        figures = [f"{lost[row].mean():.4f}", f"{accuracy[row].mean():.2f}"]
        figures += [f"{len(there)} of {len(sets)}", f"{fmean(there):+.2f}" if len(there) else ""]
        yield [*place, f"**{value}**" if row == shipped else value, *figures]
        place = ["", ""]


def measure(asked: Asked) -> Iterator[Row]:
    """A row of every fit."""
    with get_context("spawn").Pool(asked.jobs) as pool:
        yield from pool.imap_unordered(measured, jobs())


def main() -> None:
    """Run every fit, or write the section of an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    _, rows = measured_rows(parser, "shipped-values.json", measure)
    lines = [["constant", "shots", "tried", "regret", "accuracy", "chosen, set left out", "there"]]
    for name in CONSTANTS:
        lines += lines_of(name, [r for r in rows if r["constant"] == name and "error" not in r])
    parts = "The constants of the default", text("shipped-values"), table(lines)
    write_page("shipped-values", *parts, made_by="`python benchmarks/shipped_values.py`")


if __name__ == "__main__":
    main()
