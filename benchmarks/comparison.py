"""Does the default beat every simple baseline? All methods, all data, no validation set.

    python benchmarks/comparison.py --sets choosing --jobs 2    # goes on where it was stopped
    python benchmarks/comparison.py --sets reporting --jobs 16  # once, when defaults are settled
    python benchmarks/comparison.py --render                    # the pages, from the rows

Each finished fit is one line of the rows file. A fit that has a line there is skipped; with
`--stale` it is repeated if its line comes from other source, and the last line counts. The first
run extracts the features of the photos through `lite`, if their file does not exist.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comparison_data import PROTOCOLS, SETS, Cell, cells, extract_photos, load, without_names
from comparison_methods import (
    DEFAULT,
    MAIN,
    METHODS,
    ON_GPU,
    ROBUST,
    fit,
    has_probabilities,
)
from comparison_pages import default_page, methods_page
from comparison_photos import held_out_page, photos_page
from comparison_summary import Results, summary

import gpcache
from gpcache import metrics

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("GPCACHE_DEV_DATA", ROOT.parent / "shared"))
Job = tuple[Cell, str]
Row = dict[str, Any]


def measure(job: Job, features: Path, photos: Path, limit: int) -> Row:
    """One fit and what it says of the test rows; `skipped` says why there is none."""
    cell, name = job
    task = load(cell, features, photos)
    row: Row = {**asdict(cell), "method": name, "n": len(task.y), "n_test": len(task.y_test)}
    row["device"] = "cuda" if name in ON_GPU and torch.cuda.is_available() else "cpu"
    signal.signal(signal.SIGALRM, _time_over)
    signal.alarm(limit)
    try:
        model, row["fit_s"] = fit(name, task.X, task.y, task.prior)
        row |= _figures(name, model, task.X_test, task.y_test)
    except TimeoutError:
        row["skipped"] = f"more than {limit} s"
    finally:
        signal.alarm(0)
    return row


def _time_over(*_: Any) -> None:
    raise TimeoutError


def _figures(name: str, model: Any, X: Any, y: Any) -> Row:
    if has_probabilities(name, model):
        probabilities = model.predict_proba(X)
        labels = np.searchsorted(model.classes_, y)
        correct = probabilities.argmax(1) == labels
        row: Row = {"ece": metrics.ece(probabilities, labels)}
        row["nll"] = metrics.nll(probabilities, labels)
    else:
        correct, row = model.predict(X) == y, {"ece": None, "nll": None}
    row["accuracy"] = float(np.mean(correct))
    row["correct"] = base64.b64encode(np.packbits(correct).tobytes()).decode()
    held_out = getattr(model, "loo_", None)
    if held_out is not None and np.isfinite(held_out.accuracy):
        row |= {"loo": held_out.accuracy, "loo_ece": held_out.ece}
        row["loo_n"] = int(held_out.counted.sum())
    return row


def wanted(arguments: argparse.Namespace) -> Iterator[Job]:
    """The fits that are asked for."""
    names = {"main": list(MAIN), "all": list(METHODS)}.get(arguments.methods[0], arguments.methods)
    for protocol in arguments.protocols:
        for cell in cells(protocol):
            data = SETS[cell.data]
            if data.group not in arguments.sets or cell.shots not in arguments.shots:
                continue
            if arguments.only and not any(part in cell.data for part in arguments.only):
                continue
            for name in names:
                if is_measured(cell, name):
                    yield cell, name


def is_measured(cell: Cell, name: str) -> bool:
    """Whether a method is run on a cell."""
    method = METHODS[name]
    if cell.protocol == "interval":
        return name == DEFAULT
    if cell.protocol != "plain":
        return name in ROBUST and (SETS[cell.data].text or not method.needs_text)
    if not method.uses_text and without_names(cell.data) != cell.data:
        return False  # its rows are those of the same photos without names
    return SETS[cell.data].text or not method.needs_text


def estimate(job: Job, features: Path, photos: Path) -> float:
    """Seconds that a fit is expected to take on one thread."""
    cell, name = job
    X, y = (task := load(cell, features, photos)).X, task.y
    method = METHODS[name]
    growth = (len(y) / 1000) ** method.power * len(np.unique(y)) / 100 * X.shape[1] / 512
    return float(method.seconds * growth + 0.05)


def read_rows(path: Path) -> dict[Job, Row]:
    """The last line of each fit; a line that a stopped run left unfinished does not count."""
    found: dict[Job, Row] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            cell = Cell(row["data"], row["shots"], row["draw"], row["protocol"])
            found[cell, row["method"]] = row
    return found


def provenance(commit: str | None) -> Row:
    """The commit, the version, and a digest of the estimators' source."""
    if commit is None:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        commit = answer.stdout.strip() or "unknown"
    digest = hashlib.sha256()
    package = Path(gpcache.__file__).parent
    parts = [package / part for part in ("gp", "methods", "probability")]
    for path in sorted(path for part in parts for path in part.rglob("*.py")):
        digest.update(path.read_bytes())
    return {"commit": commit, "version": gpcache.__version__, "source": digest.hexdigest()[:12]}


def run(jobs: list[Job], arguments: argparse.Namespace) -> None:
    """Measure the jobs in processes of one thread each, and append a line for each."""
    made_by = provenance(arguments.commit)
    guess = {job: estimate(job, arguments.features, arguments.lite_features) for job in jobs}
    jobs = sorted(jobs, key=lambda job: guess[job] * (1 if arguments.short_first else -1))
    by_cell: dict[tuple[str, int, str], float] = defaultdict(float)
    for (cell, _), seconds in guess.items():
        by_cell[cell.data, cell.shots, cell.protocol] += seconds
    for (data, shots, protocol), seconds in by_cell.items():
        print(f"{data}, {shots} shots, {protocol}: about {seconds:.0f} s")
    print(f"{len(jobs)} fits, about {sum(guess.values()) / arguments.jobs / 60:.0f} minutes")
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # inherited by the processes, which start afresh
    work = partial(
        measure,
        features=arguments.features,
        photos=arguments.lite_features,
        limit=arguments.limit,
    )
    end, queue = time.monotonic() + 60 * arguments.minutes, iter(jobs)
    arguments.rows.parent.mkdir(parents=True, exist_ok=True)
    is_torn = arguments.rows.exists() and arguments.rows.read_bytes()[-1:] not in (b"", b"\n")
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool,
        arguments.rows.open("a") as file,
    ):
        waiting: dict[Future[Row], Job] = {}
        done = 0
        while True:
            while len(waiting) < arguments.jobs and time.monotonic() < end:
                job = next(queue, None)
                if job is None:
                    break
                waiting[pool.submit(work, job)] = job
            if not waiting:
                break
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                (cell, name), error = waiting.pop(future), future.exception()
                done += 1
                label = f"{done} of {len(jobs)}: {cell.data}, {cell.shots}, {cell.draw}, "
                label += f"{cell.protocol}, {name}:"
                if error is not None:
                    print(label, f"failed: {type(error).__name__}: {error}", flush=True)
                    continue
                row = future.result() | made_by
                file.write("\n" * is_torn + json.dumps(row) + "\n")
                is_torn = False
                file.flush()
                shown = row.get("skipped") or f"{100 * row['accuracy']:.1f} % {row['fit_s']:.1f} s"
                print(label, shown, flush=True)
    if done < len(jobs):
        print(f"{len(jobs) - done} fits are left: run the same command again.")


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--features", type=Path, default=SHARED / "features", help="folder of the feature files")
    add("--images", type=Path, default=SHARED / "images", help="folder of the photos")
    add("--lite-features", type=Path, default=ROOT / "build" / "lite_features.npz")
    add("--rows", type=Path, default=ROOT / "build" / "comparison.jsonl")
    groups, shots = ["choosing", "reporting"], [1, 2, 4, 5, 8, 16]
    add("--sets", nargs="*", choices=groups, default=groups, help="default: both")
    add("--protocols", nargs="*", choices=PROTOCOLS, default=list(PROTOCOLS))
    add("--only", nargs="*", help="data sets whose name contains one of these")
    add("--shots", nargs="*", type=int, choices=shots, default=shots)
    add("--methods", nargs="*", choices=["all", "main", *METHODS], default=["all"])
    add("--jobs", type=int, default=1, help="processes of one thread each")
    add("--minutes", type=float, default=1e6, help="start no fit after so many minutes")
    add("--limit", type=int, default=600, help="give a fit up after so many seconds")
    add("--short-first", action="store_true", help="the shortest fits first, not the longest")
    add("--stale", action="store_true", help="repeat our fits that other source made")
    add("--commit", help="the commit to write in the rows, where git cannot tell")
    add("--summary", action="store_true", help="print where the default loses")
    add("--render", action="store_true", help="write the pages instead of measuring")
    return parser.parse_args()


def main() -> None:
    """Measure what is missing, or write the pages."""
    arguments = parse()
    rows = read_rows(arguments.rows)
    if arguments.summary:
        print(summary(rows.values()))
        return
    if arguments.render:
        for write in (default_page, methods_page, held_out_page, photos_page):
            write(Results(rows.values()))
        return
    if not arguments.lite_features.exists():
        extract_photos(arguments.images, arguments.lite_features)
    source = provenance(arguments.commit)["source"]
    stale = {
        job for job, row in rows.items() if METHODS[job[1]].is_ours and row["source"] != source
    }
    jobs = [
        job for job in wanted(arguments) if job not in rows or (arguments.stale and job in stale)
    ]
    if jobs:
        run(jobs, arguments)
    else:
        print("Nothing is left to measure.", file=sys.stderr)


if __name__ == "__main__":
    main()
