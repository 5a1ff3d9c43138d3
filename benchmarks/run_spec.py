"""Run specs of `gpcache benchmark` where gpcache is not installed.

    PYTHONPATH=src python3 benchmarks/run_spec.py benchmarks/shared/curves.toml -o build/benchmark

needs torch, numpy, scipy, scikit-learn, pillow, safetensors, pydantic, filelock, tqdm, and neither
typer nor matplotlib: a machine with a GPU often has just these. It is `gpcache benchmark SPEC -o
FOLDER` otherwise: a row goes to FOLDER/NAME.jsonl as soon as it is known, and the same command goes
on where it was stopped. ``--jobs`` computes so many cells at once. Data sets lie below ``--root``,
by default $GPCACHE_DEV_DATA or `shared` beside the checkout. Tables and figures are made elsewhere:
they need the rows and the spec in one folder.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from gpcache.benchmark.rows import Row
from gpcache.benchmark.run import run
from gpcache.benchmark.spec import read_spec
from gpcache.errors import GPCacheError

BESIDE = Path(__file__).resolve().parents[2] / "shared"


def main() -> int:
    """Run the specs of the command line; 1 where something failed."""
    parser = argparse.ArgumentParser(description="Run specs of gpcache benchmark.")
    parser.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument(
        "--root", type=Path, default=Path(os.environ.get("GPCACHE_DEV_DATA", BESIDE))
    )
    options = parser.parse_args()
    failed = 0
    for place in options.specs:
        start = time.monotonic()

        def say(row: Row, start: float = start) -> None:
            what = f"{row.get('accuracy', 0):.4f}" if row["status"] == "done" else row["why"]
            words = (row["dataset"], row["protocol"], f"{row['shots']} shots", row["label"], what)
            print(f"{time.monotonic() - start:7.1f} s  {', '.join(words)}", flush=True)

        outcome = run(
            read_spec(place),
            options.output,
            root=options.root,
            device=options.device,
            jobs=options.jobs,
            command=command(place, options),
            progress=say,
        )
        counts = outcome.counts
        print(f"{place}: {dict(counts)}, {outcome.known} known before", *outcome.notices, sep="\n")
        failed += counts["failed"]
    return 1 if failed else 0


def command(place: Path, options: argparse.Namespace) -> str:
    """What a user types for the same rows."""
    words = ["gpcache", "benchmark", str(place), "-o", str(options.output), "--root", "../shared"]
    words += ["--device", options.device]
    return shlex.join(words + ["--jobs", str(options.jobs)] if options.jobs > 1 else words)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GPCacheError as error:
        sys.exit(str(error))
