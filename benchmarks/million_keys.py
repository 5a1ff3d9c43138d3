"""A grouped cache of a million synthetic keys: seconds, memory, and what more keys are worth.

    python benchmarks/million_keys.py --keys 1000000 --classes 10000 --engine ray

Writes a section of docs/results/speed.md, with a plan on paper for a hundred times as much.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pages import table, write_page

from gpcache.cluster import connection as ray_cluster
from gpcache.cluster.grouped import GroupedCache
from gpcache.gp.kernels import unit_rows

WIDTH, QUERIES, MODES, CLASSES_PER_SUPERCLASS = 512, 2_000, 4, 50
# Sizes of superclass, class, mode within a class and row, beside a common cone of size 1, in so
# many directions, and of noise in all: chosen so that the nearest class mean is right for about two
# queries in three among 10,000 classes.
SUPERCLASS, CLASS, MODE, ROW, DIRECTIONS, NOISE = 0.6, 0.6, 0.5, 1.0, 44, 0.4
WRITTEN_ROWS = 50_000

MEASURED = "rate measured ([extraction](#from-photos-to-features))"
# For the plan: images a second of `extract` and of decoding alone on 2 cores (extraction),
# operations of one image through ViT-B/16, and a second of one H200 in bfloat16.
HUNDRED_MILLION, EXTRACTED, DECODED, VIT, GPU = 100_000_000, 124, 597, 35e9, 788e12

INTRODUCTION = """
`GroupedCache` with {keys:,.0f} synthetic keys of {classes:,} classes, 512 numbers each in float32,
in a mapped file on disk; {queries:,} queries. Engine `{engine}` on {cores} CPU core(s) that much
other work shared: seconds on the clock are upper bounds, and the plan below counts processor
seconds. Everything is "auto": about 1,000 keys a group, and `beta`, `noise` and `alpha` chosen by
leave-one-out.
"""

COSTS = """
Seconds on the clock, and in brackets processor seconds of all processes together.
*read* checks every row and centres them. *choose* searches (beta, noise) on at most 50,000 keys,
then leaves 2,000 keys out of all groups once to fit `alpha` and the calibration. *fit* factorises
every group and keeps the solved values, 10 numbers a key; factors are not kept. *with variance* is
`posterior`, which factorises again: once for up to 3,355 queries at this many classes. Memory is
anonymous memory at its peak, sampled twice a second; the mapped keys come on top as file pages that
the system may drop. An exact Gaussian process over a million keys would need 4 TB for its matrix.
"""

ACCURACIES = """
The same queries for all. The data are synthetic: the accuracies compare numbers of keys and the
nearest class mean with each other, and say nothing about real images. With one key a class nothing
can be left out, and default hyper-parameters are used.
"""

PLAN = """
* A request that asks 1e8 keys would cost 100 times what one at 1e6 costs: 10,000 of them a second
  are 1e15 operations a second for the similarities alone. The plan is therefore to *embed* and
  store 100 million, and to *answer* from about a million of them, 100 keys for each of 10,000
  classes; the table above says what the last factor of ten in keys was worth on this data.
* A class cannot be split over groups. With 10,000 classes, 100 million keys are 10,000 a class, a
  group would be a single class with no other to compare it with, and grouping loses its point: the
  line for 1e8 keys is for 1e6 classes of 100. Its sample of left-out logits, 2,000 × 1e6 × 4 bytes,
  is 8 GB a copy: use `loo_rows=200`.
* Fitting is the same task for every group and needs no exchange, so it grows with the machines of a
  Ray cluster, if the file with the keys is where all of them can map it. That was not measured:
  here one machine ran all tasks.
* Answering many requests a second wants the keys in the memory of a GPU, 1 GB in bfloat16, behind
  stateless replicas that batch; starting Ray tasks for every request would not do.
"""


class Made(NamedTuple):
    """Where keys lie, row i of class i mod c; queries (m, d) and their classes (m,)."""

    path: Path
    queries: NDArray[np.float32]
    truth: NDArray[np.int64]


class Process(NamedTuple):
    """Parent, bytes of anonymous memory (no mapped files), processor seconds so far."""

    parent: int
    memory: int
    seconds: float


class Cost(NamedTuple):
    """Seconds on the clock, and processor seconds of all processes together."""

    clock: float
    processor: float

    def since(self, before: Cost, per: float = 1.0) -> Cost:
        """The cost since `before`, divided by `per`."""
        clock, processor = self.clock - before.clock, self.processor - before.processor
        return Cost(clock / per, processor / per)

    @classmethod
    def now(cls) -> Cost:
        """Of this process and its descendants, from their start."""
        return cls(time.perf_counter(), sum(one.seconds for one in ours().values()))

    def __str__(self) -> str:
        return f"{self.clock:.3g} ({self.processor:.3g})"


class Timed(GroupedCache):
    """Notes what the parts of a fit cost."""

    def _scanned(self, *arguments: Any) -> Any:
        before = Cost.now()
        result = super()._scanned(*arguments)
        self.read_at_ = Cost.now()
        self.reading_ = self.read_at_.since(before)
        return result

    def _accept(self, chosen: Any) -> None:
        self.choosing_ = Cost.now().since(self.read_at_)
        super()._accept(chosen)

    def _solved(self, problem: Any) -> Any:
        before = Cost.now()
        result = super()._solved(problem)
        self.fitting_ = Cost.now().since(before)
        return result


def make(folder: Path, n_keys: int, n_classes: int) -> Made:
    """Write unit rows that fill few of their directions, as an encoder's do."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int, width: int = DIRECTIONS) -> torch.Tensor:
        return torch.randn(*shape, width, generator=generator) / width**0.5

    directions: torch.Tensor = torch.linalg.qr(drawn(WIDTH))[0].mT

    superclass = torch.arange(n_classes) // CLASSES_PER_SUPERCLASS
    centres = drawn(1) + SUPERCLASS * drawn(int(superclass.max()) + 1)[superclass]
    modes = (centres + CLASS * drawn(n_classes))[:, None] + MODE * drawn(n_classes, MODES)

    def rows_of(labels: torch.Tensor) -> NDArray[np.float32]:
        mode = torch.randint(MODES, (len(labels),), generator=generator)
        inside = modes[labels, mode] + ROW * drawn(len(labels))
        found = unit_rows(inside @ directions + NOISE * drawn(len(labels), width=WIDTH))
        array: NDArray[np.float32] = found.numpy()
        return array

    path = folder / "keys.f32"
    with path.open("wb") as file:
        for first in range(0, n_keys, WRITTEN_ROWS):
            numbers = torch.arange(first, min(n_keys, first + WRITTEN_ROWS))
            file.write(rows_of(numbers % n_classes).tobytes())
    truth = torch.randint(n_classes, (QUERIES,), generator=generator)
    return Made(path, rows_of(truth), truth.numpy())


def first_keys(made: Made, n_keys: int) -> NDArray[np.float32]:
    """Keys (n, d) as a mapped file: as many of every class."""
    return np.memmap(made.path, dtype=np.float32, mode="r", shape=(n_keys, WIDTH))


def nearest_mean(made: Made, n_keys: int, n_classes: int) -> float:
    """Accuracy of the nearest class mean by cosine, after the mean of all keys is taken out."""
    sums = np.zeros((n_classes, WIDTH), dtype=np.float32)
    keys = first_keys(made, n_keys)
    for first in range(0, n_keys, n_classes):
        part = keys[first : first + n_classes]
        sums[: len(part)] += part
    centre = sums.sum(0) / n_keys
    means = sums / np.bincount(np.arange(n_keys) % n_classes)[:, None] - centre
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    found = ((made.queries - centre) @ means.T).argmax(1)
    return float((found == made.truth).mean())


class Memory:
    """The most memory of its own that this process, and all that it started, has held."""

    def __init__(self) -> None:
        self.here, self.others = 0, 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(0.5):
            held = {number: one.memory for number, one in ours().items()}
            self.here = max(self.here, held.pop(os.getpid(), 0))
            self.others = max(self.others, sum(held.values()))


def ours() -> dict[int, Process]:
    """This process and its descendants, by number."""
    everything = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text().splitlines()
            # The name in brackets may hold blanks; what follows does not.
            times = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        words = dict(line.split(":", 1) for line in status)
        memory = 1024 * int(words.get("RssAnon", "0 kB").split()[0])
        seconds = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        everything[int(folder.name)] = Process(int(words["PPid"]), memory, seconds)
    found = {os.getpid()}
    while more := {n for n, one in everything.items() if one.parent in found} - found:
        found |= more
    return {number: everything[number] for number in found if number in everything}


def measured(made: Made, n_keys: int, n_classes: int, engine: str) -> dict[str, Any]:
    """Fit on the first keys and ask all queries; costs, numbers and accuracies."""
    memory, thousands = Memory(), QUERIES / 1000
    labels = np.arange(n_keys) % n_classes
    # Workers that have imported everything.
    numbers = {"alpha": 1.0, "beta": 1.0, "noise": 1.0, "n_groups": 20}
    GroupedCache(**numbers, engine=engine).fit(first_keys(made, 100), np.arange(100) % 50)
    with memory.watched():
        model = Timed(engine=engine, device="cpu").fit(first_keys(made, n_keys), labels)
        fitted = Cost.now()
        found = model.predict(made.queries)
        answered = Cost.now()
        model.posterior(made.queries)
        with_variance = Cost.now()
    return {
        "keys": n_keys,
        "groups": model.n_groups_,
        "settings": len(model.search_["beta"]) - 1,
        "beta": model.beta_,
        "noise": model.noise_,
        "alpha": model.alpha_,
        "read": model.reading_,
        "choose": model.choosing_,
        "fit": model.fitting_,
        "predict": answered.since(fitted, thousands),
        "variance": with_variance.since(answered, thousands),
        "driver": memory.here / 1e9,
        "others": memory.others / 1e9,
        "accuracy": float((found == made.truth).mean()),
        "loo": model.loo_.accuracy,
        "ece": model.loo_.ece,
        "mean": nearest_mean(made, n_keys, n_classes),
    }


def main() -> None:
    """Measure each number of keys, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--engine", choices=["local", "ray"], default="ray")
    options = parser.parse_args()
    # Threads that wait for each other on a shared machine cost processor seconds.
    torch.set_num_threads(1)
    per_class = options.keys // options.classes
    sizes = [k * options.classes for k in (1, 10, 100) if k < per_class] + [options.keys]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder), options.keys, options.classes)
        for n_keys in sizes:
            start = time.perf_counter()
            if options.engine == "ray":
                with ray_cluster.connected():
                    found = measured(made, n_keys, options.classes, options.engine)
            else:
                found = measured(made, n_keys, options.classes, options.engine)
            print(f"{n_keys:,} keys: {time.perf_counter() - start:.0f} s {found}", flush=True)
            rows.append(found)
    write(rows, options.classes, options.engine)


def write(rows: list[dict[str, Any]], n_classes: int, engine: str) -> None:
    """The page: what was measured, then the plan."""
    cores = (os.cpu_count() or 1) if engine == "ray" else 1
    most = rows[-1]
    write_page(
        "million-keys",
        f"A cache of {most['keys']:,.0f} keys",
        INTRODUCTION.format(
            keys=most["keys"], classes=n_classes, queries=QUERIES, engine=engine, cores=cores
        ),
        "## Seconds and memory",
        table(_costs(rows)),
        COSTS,
        "## Accuracy with more keys",
        table(_accuracies(rows, n_classes)),
        ACCURACIES,
        "## On paper: 100 million images, 10,000 requests a second",
        table(_plan(most)),
        PLAN,
    )


def _costs(rows: list[dict[str, Any]]) -> Iterator[list[Any]]:
    yield [
        "keys", "groups", "read", "choose", "settings", "fit", "predict 1,000",
        "with variance", "driver GB", "Ray and workers GB",
    ]  # fmt: skip
    for row in rows:
        yield [
            f"{row['keys']:,}", f"{row['groups']:,}", row["read"], row["choose"], row["settings"],
            row["fit"], row["predict"], row["variance"], f"{row['driver']:.1f}",
            f"{row['others']:.1f}",
        ]  # fmt: skip


def _accuracies(rows: list[dict[str, Any]], n_classes: int) -> Iterator[list[Any]]:
    yield [
        "keys a class", "accuracy", "nearest class mean", "leave-one-out accuracy", "its ECE",
        "beta", "noise", "alpha",
    ]  # fmt: skip
    for row in rows:
        percents = [f"{100 * row[name]:.1f} %" for name in ("accuracy", "mean", "loo", "ece")]
        numbers = [f"{row[name]:.3g}" for name in ("beta", "noise", "alpha")]
        shown = ["–" if "nan" in cell else cell for cell in percents]
        yield [f"{row['keys'] / n_classes:.0f}", *shown, *numbers]


def _plan(most: dict[str, Any]) -> Iterator[list[Any]]:
    """Each line: what, the arithmetic, what comes out, and where its figures are from."""
    times = HUNDRED_MILLION / most["keys"]
    per_group = most["fit"].processor / most["groups"]
    per_query = most["predict"].processor / 1000
    yield ["what", "arithmetic", "comes to", "figures"]
    yield [
        "features on disk", f"1e8 × ({WIDTH} × 4 + 32) bytes (float32 and a hash)",
        f"{1e8 * (WIDTH * 4 + 32) / 1e9:.0f} GB", "arithmetic",
    ]  # fmt: skip
    yield [
        "embed, this machine", f"1e8 / {EXTRACTED} images a second, 2 cores, `lite`",
        f"{1e8 / EXTRACTED / 86400:.1f} days", MEASURED,
    ]  # fmt: skip
    yield [
        "embed in 10 hours", f"1e8 / 36,000 s = 2,778 images a second; / {EXTRACTED}",
        f"{1e8 / 36000 / EXTRACTED:.0f} such machines", "extrapolated, linear in machines",
    ]  # fmt: skip
    yield [
        "fit 1e8 keys, 1e6 classes", f"1e5 groups × {1000 * per_group:.0f} ms of a core",
        f"{1e5 * per_group / 3600:.1f} core hours", "time of a group measured; extrapolated",
    ]  # fmt: skip
    yield [
        "its solved values", "1e8 keys × 10 classes × 4 bytes", "4 GB", "arithmetic",
    ]  # fmt: skip
    yield [
        "choose beta and noise", "50,000 keys, however many there are",
        "as in the table", "measured",
    ]  # fmt: skip
    yield [
        "one query at 1e8 keys", f"{times:.0f} × {1000 * per_query:.0f} ms of a core",
        f"{times * per_query:.1f} core seconds", "extrapolated, linear in keys",
    ]  # fmt: skip
    yield [
        "10,000 requests a second, 1e6 keys, CPUs",
        f"10,000 × {1e6 / most['keys'] * 1000 * per_query:.0f} ms of a core",
        f"{1e4 * 1e6 / most['keys'] * per_query:,.0f} cores", "extrapolated, linear in cores",
    ]  # fmt: skip
    yield [
        "the same, GPUs", f"10,000 × 2 × 1e6 × {WIDTH} operations",
        f"{1e4 * 2e6 * WIDTH / 1e12:.0f} TFLOP/s: {1e4 * 2e6 * WIDTH / GPU:.1%} of one H200",
        "not measured: the GPU's peak in bfloat16",
    ]  # fmt: skip
    yield [
        "its encoder, GPUs", f"10,000 × {VIT / 1e9:.0f}e9 operations (ViT-B/16)",
        f"{1e4 * VIT / 1e12:.0f} TFLOP/s: {1e4 * VIT / GPU:.0%} of one H200's peak, so two",
        "not measured: operations of the network, peak of the GPU",
    ]  # fmt: skip
    yield [
        "decoding its photos", f"10,000 / {DECODED / 2:.0f} a second and core",
        f"{1e4 / (DECODED / 2):.0f} cores", MEASURED,
    ]  # fmt: skip
    yield [
        "network in", "10,000 × 100 kB", "1 GB/s", "a photo's size is assumed",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
