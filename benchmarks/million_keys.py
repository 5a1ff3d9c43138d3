"""A million synthetic shots in explicit features: seconds, memory, and accuracy.

    python benchmarks/million_keys.py --keys 100000 --classes 1000
    PYTHONPATH=src python3 benchmarks/million_keys.py --device cuda
    PYTHONPATH=src python3 benchmarks/million_keys.py --device cuda --keys 10000000 --classes 1000

Each size of features is one fit with all choices; `--given` takes β, τ and the shrinkage of the
command line instead of a search. `--why` also measures the reasons of one query, from an index and
by reading all keys. The last command streams 20 GB from disk. Writes million-keys.json into the
folder $OUT if that is set; ``--from FILE …`` makes of such files a section of
docs/results/speed.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from measuring import least, name_of, once, resident, watched
from numpy.typing import NDArray
from pages import keep, table, text, write_page
from sklearn.preprocessing import normalize

from gpcache import GPCacheClassifier, metrics
from gpcache.features.shot_index import ShotIndex, write_index
from gpcache.gp.kernels import unit_rows
from gpcache.methods import Explicit, Whitened
from gpcache.methods.cache import explicit_reasons
from gpcache.support.devices import resolve_device

WIDTH, QUERIES, MODES, CLASSES_PER_SUPERCLASS = 512, 10_000, 4, 50
# Sizes of superclass, class, mode within a class and row, beside a common cone of size 1, in so
# many directions, and of noise in all: chosen so that the nearest class mean is right for about two
# queries in three among 10,000 classes.
SUPERCLASS, CLASS, MODE, ROW, DIRECTIONS, NOISE = 0.6, 0.6, 0.5, 1.0, 44, 0.4
WRITTEN_ROWS = 50_000


class Made(NamedTuple):
    """Keys (n, d) in a mapped file, row i of class i mod c; queries (m, d), their classes (m,)."""

    path: Path
    rows: NDArray[np.float32]
    labels: NDArray[np.int64]
    n_classes: int
    queries: NDArray[np.float32]
    truth: NDArray[np.int64]


def make(folder: Path, n_keys: int, n_classes: int, device: torch.device) -> Made:
    """Write unit rows that fill few of their directions, as an encoder's do.

    More than a million are drawn on the device: other rows of the same kind.
    """
    device = device if n_keys > 1_000_000 else torch.device("cpu")
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int, width: int = DIRECTIONS) -> torch.Tensor:
        return torch.randn(*shape, width, generator=generator, device=device) / width**0.5

    directions: torch.Tensor = torch.linalg.qr(drawn(WIDTH))[0].mT

    superclass = torch.arange(n_classes, device=device) // CLASSES_PER_SUPERCLASS
    centres = drawn(1) + SUPERCLASS * drawn(int(superclass.max()) + 1)[superclass]
    modes = (centres + CLASS * drawn(n_classes))[:, None] + MODE * drawn(n_classes, MODES)

    def rows_of(labels: torch.Tensor) -> NDArray[np.float32]:
        mode = torch.randint(MODES, (len(labels),), generator=generator, device=device)
        inside = modes[labels, mode] + ROW * drawn(len(labels))
        found = unit_rows(inside @ directions + NOISE * drawn(len(labels), width=WIDTH))
        array: NDArray[np.float32] = found.cpu().numpy()
        return array

    path = folder / "keys.f32"
    with path.open("wb") as file:
        for first in range(0, n_keys, WRITTEN_ROWS):
            numbers = torch.arange(first, min(n_keys, first + WRITTEN_ROWS), device=device)
            file.write(rows_of(numbers % n_classes).tobytes())
    truth = torch.randint(n_classes, (QUERIES,), generator=generator, device=device)
    rows = np.memmap(path, dtype=np.float32, mode="r", shape=(n_keys, WIDTH))
    labels = np.arange(n_keys) % n_classes
    return Made(path, rows, labels, n_classes, rows_of(truth), truth.cpu().numpy())


def nearest_mean(made: Made, held: NDArray[np.int64]) -> tuple[float, float]:
    """Accuracy of the nearest class mean by cosine, after the mean of all keys is taken out.

    On the queries, and on the keys of the numbers `held`, each without itself.
    """
    keys, n_classes = made.rows, made.n_classes
    sums = np.zeros((n_classes, WIDTH), dtype=np.float32)
    for first in range(0, len(keys), n_classes):
        part = keys[first : first + n_classes]
        sums[: len(part)] += part
    centre = sums.sum(0) / len(keys)
    counts = np.bincount(made.labels)[:, None]
    means = normalize(sums / counts - centre)
    found = ((made.queries - centre) @ means.T).argmax(1)
    rows, labels = keys[held], made.labels[held]
    own = normalize((sums[labels] - rows) / (counts[labels] - 1) - centre)
    cosines = (rows - centre) @ means.T
    cosines[np.arange(len(held)), labels] = ((rows - centre) * own).sum(1)
    return float((found == made.truth).mean()), float((cosines.argmax(1) == labels).mean())


def measured(made: Made, n_features: int, options: argparse.Namespace) -> dict[str, Any]:
    """Fit on all keys and ask all queries."""
    device = resolve_device(options.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    given: dict[str, Any] = {}
    if options.given is not None:
        beta, tau, shrinkage = options.given
        given = {"beta": beta, "tau": tau, "kernel_space": Whitened(shrinkage)}
    model = GPCacheClassifier(approximation=Explicit(n_features), device=device, **given)
    with watched(lambda: resident("RssAnon"), 0.1) as memory:
        processor = time.process_time()
        seconds = least(lambda: model.fit(made.rows, made.labels))
        processor = time.process_time() - processor
        probabilities = model.predict_proba(made.queries)
    gpu = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    assert model.fitted_.kept_rows is not None
    held = model.fitted_.kept_rows.cpu().numpy()
    mean, mean_of_held = nearest_mean(made, held)
    return (why(model, made) if options.why else {}) | {
        "machine": name_of(device),
        "keys": len(made.rows),
        "classes": made.n_classes,
        "features": n_features,
        "given": bool(given),
        "seconds": seconds,
        "processor": processor,
        "memory": max(memory) / 1e9,
        "gpu": gpu / 1e9,
        "accuracy": float((probabilities.argmax(1) == made.truth).mean()),
        "ece": metrics.ece(probabilities, made.truth),
        "held_out": model.loo_.accuracy,
        "queries": QUERIES,
        "n_held": len(held),
        "clusters": model.fitted_.streamed.n_modes if model.fitted_.streamed else 1,
        "mean": mean,
        "mean_of_held": mean_of_held,
        "beta": model.beta_,
        "tau": model.tau_,
        "shrinkage": model.shrinkage_,
    }


class CountedIndex(ShotIndex):
    """Counts the rows that are read."""

    n_read = 0

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        self.n_read += len(numbers)
        return super().rows(numbers)


def why(model: GPCacheClassifier, made: Made) -> dict[str, Any]:
    """Seconds, and bytes read, for the five largest shares in the answer to one query."""
    rows, labels, fitted = made.rows, made.labels, model.fitted_
    start = time.perf_counter()
    shots = model.shots_elsewhere(rows, labels)
    residuals = explicit_reasons.residuals_of(fitted.model, fitted.streamed, shots)
    names = [f"{number}.jpg" for number in range(len(rows))]
    path = made.path.parent / "shots.safetensors"
    seal = write_index(path, rows, labels, names, residuals, made.n_classes)
    written = time.perf_counter() - start
    asked = []
    for query in made.queries[:5, None]:
        start = time.perf_counter()
        index = CountedIndex(path, seal)  # opened and checked for each query, as by a command
        found = model.explain(query, shots=index).shots[0]
        seconds = time.perf_counter() - start
        named = {int(index.name(row).removesuffix(".jpg")) for row in found.tolist()}
        scan, scanned = once(lambda query=query: model.explain(query, shots=(rows, labels)))
        same = len(named & set(scanned.shots[0].tolist())) / 5
        asked.append((seconds, index.n_read, scan, same))
    seconds, read, scan, same = zip(*asked, strict=True)
    return {
        "index_written_s": written,
        "index_gb": path.stat().st_size / 1e9,
        "index_s": float(np.median(seconds)),
        "index_read_mb": (seal.n_bytes + 2 * WIDTH * sum(read) / 5) / 1e6,
        "scan_s": float(np.median(scan)),
        "scan_read_mb": 4 * WIDTH * len(rows) / 1e6,
        "scan_finds": float(np.mean(same)),
    }


def main() -> None:
    """Measure each number of features, or write the section of earlier runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--features", default="1024", help="numbers of features, with commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--why", action="store_true", help="measure reasons too")
    parser.add_argument("--given", type=float, nargs=3, metavar=("BETA", "TAU", "SHRINKAGE"))
    parser.add_argument(
        "--from", dest="files", type=Path, nargs="+", help="million-keys.json files"
    )
    options = parser.parse_args()
    if options.files:
        write([row for file in options.files for row in json.loads(file.read_text())])
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder), options.keys, options.classes, resolve_device(options.device))
        for size in map(int, options.features.split(",")):
            rows.append(measured(made, size, options))
            print(json.dumps(rows[-1]), flush=True)
            keep("million-keys.json", rows)


def with_error(share: float, count: int) -> str:
    """A share of `count` rows in %, with its standard error."""
    return f"{100 * share:.1f} ± {100 * (share * (1 - share) / count) ** 0.5:.1f} %"


def write(rows: list[dict[str, Any]]) -> None:
    """The section of all rows."""
    head = ["shots", "classes", "machine", "features", "choices", "fit s", "processor s", "GB"]
    head += ["GPU GB", "accuracy", "ECE", "held-out accuracy", "nearest mean", "clusters"]
    head += ["beta", "tau", "shrinkage"]
    lines = [
        [
            f"{row['keys']:,}", f"{row['classes']:,}",
            row["machine"], f"{row['features']:,}", "given" if row["given"] else "all",
            f"{row['seconds']:.0f}", f"{row['processor']:.0f}",
            f"{row['memory']:.1f}", f"{row['gpu']:.1f}" if row["gpu"] else "–",
            with_error(row["accuracy"], row["queries"]), f"{100 * row['ece']:.1f} %",
            with_error(row["held_out"], row["n_held"]),
            f"{100 * row['mean']:.1f} % / {100 * row['mean_of_held']:.1f} %", str(row["clusters"]),
            *(f"{row[name]:.3g}" for name in ("beta", "tau", "shrinkage")),
        ]
        for row in rows
    ]  # fmt: skip
    heading = f"Up to {max(row['keys'] for row in rows):,} shots in explicit features"
    made_by = "`python benchmarks/million_keys.py`, one run for each row"
    parts = [text("million-keys"), table([head, *lines])]
    if some := [row for row in rows if "index_s" in row]:
        parts += [text("million-keys-reasons"), table([WHY_HEAD, *map(why_line, some)])]
    write_page("million-keys", heading, *parts, made_by=made_by)


WHY_HEAD = ["shots", "classes", "index GB", "written s", "index s", "MB read", "all shots s"]
WHY_HEAD += ["MB read", "of the same five"]


def why_line(row: dict[str, Any]) -> list[str]:
    """A line of the table of reasons."""
    return [
        f"{row['keys']:,}", f"{row['classes']:,}", f"{row['index_gb']:.2f}",
        f"{row['index_written_s']:.0f}", f"{row['index_s']:.2f}", f"{row['index_read_mb']:.1f}",
        f"{row['scan_s']:.2f}", f"{row['scan_read_mb']:,.0f}", f"{100 * row['scan_finds']:.0f} %",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
