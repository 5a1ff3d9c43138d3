"""Run specs of `gpcache benchmark` where gpcache is not installed.

    PYTHONPATH=src python3 benchmarks/run_spec.py benchmarks/shared/headline.toml -o build/results

needs torch, numpy, scipy, scikit-learn, safetensors, filelock and tqdm; and pydantic to read a
spec. A machine without pydantic reads a plan, which a machine with it writes:

    python benchmarks/run_spec.py benchmarks/shared/*.toml --plan build/data/plan.json
    PYTHONPATH=src python3 benchmarks/run_spec.py build/data/plan.json -o build/results

It is `gpcache benchmark SPEC -o FOLDER` otherwise: a row goes to FOLDER/NAME.jsonl as soon as it is
known, and the same command goes on where it was stopped. Cells that have a row of the spec in
docs/results/rows are left out. ``--jobs`` is the number of cells to compute at once,
``--trained-device`` the device of methods that train. ``--stale`` repeats rows that another version
of the estimators made. Data sets lie below ``--root``, by default build/data (`prepare_data.py`
writes it) or $GPCACHE_DEV_DATA.
"""

import argparse
import json
import os
import shlex
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from row_files import KEY_LENGTH, known_keys

from gpcache.benchmark.cells import estimator_source
from gpcache.benchmark.rows import Row
from gpcache.benchmark.run import run
from gpcache.benchmark.spec import Claim, MethodSpec, Override, Spec, read_spec
from gpcache.errors import GPCacheError

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the specs of the command line; 1 where something failed."""
    parser = argparse.ArgumentParser(description="Run specs of gpcache benchmark.")
    parser.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", default="build/results")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="write a plan instead")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--trained-device")
    parser.add_argument("--stale", action="store_true", help="repeat rows of other source")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    root = os.environ.get("GPCACHE_DEV_DATA", ROOT / "build" / "data")
    parser.add_argument("--root", type=Path, default=root)
    options = parser.parse_args()
    specs = [spec for place in options.specs for spec in specs_in(place)]
    if options.plan is not None:
        # A file is named from the root of the repository.
        plain = partial(os.path.relpath, start=ROOT)
        options.plan.write_text(json.dumps([asdict(spec) for spec in specs], default=plain))
        return 0
    return 1 if sum(run_one(spec, options) for spec in specs) else 0


def run_one(spec: Spec, options: argparse.Namespace) -> int:
    """Run a spec; returns how many rows failed."""
    start = time.monotonic()
    known = known_keys(spec.name, estimator_source() if options.stale else None)

    def say(row: Row) -> None:
        what = f"{row.get('accuracy', 0):.4f}" if row["status"] == "done" else row["why"]
        words = (row["dataset"], row["protocol"], f"{row['shots']} shots", row["label"], what)
        print(f"{time.monotonic() - start:7.1f} s  {', '.join(words)}", flush=True)

    # What a user types for the same rows.
    words = ["gpcache", "benchmark", os.path.relpath(spec.path), "-o", str(options.output)]
    words += ["--root", "build/data", "--device", options.device]
    words += ["--jobs", str(options.jobs)] if options.jobs > 1 else []
    names = ("root", "device", "trained_device", "jobs")
    given = {name: getattr(options, name) for name in names} | {"command": shlex.join(words)}
    given |= {"is_done": lambda key: key[:KEY_LENGTH] in known, "progress": say}
    outcome = run(spec, options.output, **given)
    print(f"{spec.name}: {outcome.sentence()}", *outcome.notices, sep="\n")
    return outcome.counts["failed"]


def specs_in(place: Path) -> list[Spec]:
    """The spec of a .toml file, or the specs of a plan."""
    if place.suffix != ".json":
        return [read_spec(place)]
    return [from_plan(content) for content in json.loads(place.read_text())]


def from_plan(content: dict[str, Any]) -> Spec:
    """A spec of a plan."""
    methods = tuple(
        MethodSpec(**method | {"where": tuple(Override(**one) for one in method["where"])})
        for method in content["methods"]
    )
    claims = tuple(Claim(**claim) for claim in content["claims"])
    places = {key: ROOT / content[key] for key in ("path", "folder")}
    return Spec(**content | places | {"methods": methods, "claims": claims})


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GPCacheError as error:
        sys.exit(str(error))
