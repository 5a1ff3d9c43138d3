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

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from measuring import Asked, Row, least, measured_rows, name_of, once, resident, watched
from numpy.typing import NDArray
from pages import table, text, write_page
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
# Columns of the tables, and how their cells are written.
FITS = {
    "shots": "{keys:,}", "classes": "{classes:,}", "machine": "{machine}",
    "features": "{features:,}", "choices": "{choices}", "fit s": "{seconds:.0f}",
    "processor s": "{processor:.0f}", "GB": "{memory:.1f}", "GPU GB": "{gpu}",
    "accuracy": "{accuracy:.1f} ± {accuracy_error:.1f} %", "ECE": "{ece:.1f} %",
    "held-out accuracy": "{held_out:.1f} ± {held_out_error:.1f} %",
    "nearest mean": "{mean:.1f} % / {mean_of_held:.1f} %", "clusters": "{clusters}",
    "beta": "{beta:.3g}", "tau": "{tau:.3g}", "shrinkage": "{shrinkage:.3g}",
}  # fmt: skip
REASONS = {
    "shots": "{keys:,}", "classes": "{classes:,}", "index GB": "{index_gb:.2f}",
    "written s": "{index_written_s:.0f}", "index s": "{index_s:.2f}",
    "MB read": "{index_read_mb:.1f}", "all shots s": "{scan_s:.2f}",
    " MB read": "{scan_read_mb:,.0f}", "of the same five": "{scan_finds:.0f} %",
}  # fmt: skip


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
    """Accuracy in % of the nearest class mean by cosine, after the mean of all keys is taken out.

    On the queries, and on the keys of the numbers `held`, each without itself.
    """
    sums, counts = np.zeros((made.n_classes, WIDTH), np.float32), np.bincount(made.labels)[:, None]
    for first in range(0, len(made.rows), made.n_classes):
        part = made.rows[first : first + made.n_classes]
        sums[: len(part)] += part
    centre = sums.sum(0) / len(made.rows)
    means = normalize(sums / counts - centre)
    found = ((made.queries - centre) @ means.T).argmax(1)
    rows, labels = made.rows[held], made.labels[held]
    own = normalize((sums[labels] - rows) / (counts[labels] - 1) - centre)
    cosines = (rows - centre) @ means.T
    cosines[np.arange(len(held)), labels] = ((rows - centre) * own).sum(1)
    return 100 * (found == made.truth).mean(), 100 * (cosines.argmax(1) == labels).mean()


def measured(made: Made, n_features: int, asked: Asked) -> Row:
    """Fit on all keys and ask all queries."""
    device, given = resolve_device(asked.device), {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    if asked.given is not None:
        beta, tau, shrinkage = asked.given
        given = {"beta": beta, "tau": tau, "kernel_space": Whitened(shrinkage)}
    model = GPCacheClassifier(approximation=Explicit(n_features), device=device, **given)
    with watched(lambda: resident("RssAnon"), 0.1) as memory:
        processor = time.process_time()
        seconds = least(lambda: model.fit(made.rows, made.labels))
        processor = time.process_time() - processor
        probabilities = model.predict_proba(made.queries)
    gpu = f"{torch.cuda.max_memory_allocated() / 1e9:.1f}" if device.type == "cuda" else "–"
    held, streamed = model.fitted_.kept_rows.cpu().numpy(), model.fitted_.streamed
    means, right = nearest_mean(made, held), float((probabilities.argmax(1) == made.truth).mean())
    row = {"machine": name_of(device), "keys": len(made.rows), "classes": made.n_classes}
    row |= {"features": n_features, "choices": "given" if given else "all", "seconds": seconds}
    row |= {"processor": processor, "memory": max(memory) / 1e9, "gpu": gpu, "mean": means[0]}
    row |= {"mean_of_held": means[1], "clusters": streamed.n_modes if streamed else 1}
    row |= {name: getattr(model, f"{name}_") for name in ("beta", "tau", "shrinkage")}
    row |= {"ece": 100 * metrics.ece(probabilities, made.truth)}
    row |= in_percent("accuracy", right, QUERIES)
    row |= in_percent("held_out", model.loo_.accuracy, len(held))
    return row | (why(model, made) if asked.why else {})


def in_percent(name: str, share: float, count: int) -> Row:
    """A share of `count` rows, and its standard error."""
    return {name: 100 * share, f"{name}_error": 100 * (share * (1 - share) / count) ** 0.5}


class CountedIndex(ShotIndex):
    """Counts the rows that are read."""

    n_read = 0

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        self.n_read += len(numbers)
        return super().rows(numbers)


def why(model: GPCacheClassifier, made: Made) -> Row:
    """Seconds, and bytes read, for the five largest shares in the answer to one query."""
    rows, labels, fitted = made.rows, made.labels, model.fitted_
    path, asked = made.path.parent / "shots.safetensors", []

    def write() -> Any:
        shots = model.shots_elsewhere(rows, labels)
        residuals = explicit_reasons.residuals_of(fitted.model, fitted.streamed, shots)
        names = [f"{number}.jpg" for number in range(len(rows))]
        return write_index(path, rows, labels, names, residuals, made.n_classes)

    written, seal = once(write)
    for query in made.queries[:5, None]:

        def ask(query: Any = query) -> tuple[int, set[int]]:
            index = CountedIndex(path, seal)  # opened and checked for each query, as by a command
            found = model.explain(query, shots=index).shots[0].tolist()
            return index.n_read, {int(index.name(row).removesuffix(".jpg")) for row in found}

        seconds, (read, named) = once(ask)
        scan, scanned = once(lambda query=query: model.explain(query, shots=(rows, labels)))
        asked.append((seconds, read, scan, len(named & set(scanned.shots[0].tolist())) / 5))
    (seconds, _, scan, _), (_, read, _, same) = np.median(asked, axis=0), np.mean(asked, axis=0)
    found = {"index_written_s": written, "index_gb": path.stat().st_size / 1e9, "index_s": seconds}
    found |= {"index_read_mb": (seal.n_bytes + 2 * WIDTH * read) / 1e6, "scan_s": scan}
    return found | {"scan_read_mb": 4 * WIDTH * len(rows) / 1e6, "scan_finds": 100 * same}


def measure(asked: Asked) -> Iterator[Row]:
    """A row for each number of features."""
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder), asked.keys, asked.classes, resolve_device(asked.device))
        for size in asked.features.split(","):
            yield measured(made, int(size), asked)


def main() -> None:
    """Measure each number of features, or write the section of earlier runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--features", default="1024", help="numbers of features, with commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--why", action="store_true", help="measure reasons too")
    parser.add_argument("--given", type=float, nargs=3, metavar=("BETA", "TAU", "SHRINKAGE"))
    asked, rows = measured_rows(parser, "million-keys.json", measure)
    if not asked.files:
        return

    def shown(columns: dict[str, str], rows: list[Row]) -> str:
        lines = ([cell.format(**row) for cell in columns.values()] for row in rows)
        return table([columns, *lines])

    parts = [text("million-keys"), shown(FITS, rows)]
    if some := [row for row in rows if "index_s" in row]:
        parts += [text("million-keys-reasons"), shown(REASONS, some)]
    heading = f"Up to {max(row['keys'] for row in rows):,} shots in explicit features"
    made_by = "`python benchmarks/million_keys.py`, one run for each row"
    write_page("million-keys", heading, *parts, made_by=made_by)


if __name__ == "__main__":
    main()
