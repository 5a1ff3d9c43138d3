"""Makes the result pages in docs/results, their index, and the table of the README.

    python benchmarks/results.py            # make results: render everything from rows and sections
    python benchmarks/results.py --run      # make results RUN=1: first run what is missing
    python benchmarks/results.py --check    # are the pages those of the rows? 1 if not

A page is made of rows (docs/results/rows, one file per spec) and of sections that scripts for time
and faults wrote (docs/results/sections). `--run` needs the data of `prepare_data.py`; it goes on
where it was stopped, and `--only NAME` runs one spec.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import row_files
from pages import RESULTS, section, section_names, table
from result_pages import calibration, headline, headline_csv, similarity, training
from result_paper import paper
from result_photos import photos
from result_rows import DEFAULT, NO_VALIDATION, PAPER, SPECS, VALIDATION, Cell, results, title

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "build" / "results"
# features.toml has no rows; similarity.toml needs projections, see its first lines.
RUN_BY_DEFAULT = sorted({path.stem for path in SPECS.glob("*.toml")} - {"features", "similarity"})
IN_THE_README = (("stanford_cars_vitb32", 4), ("stanford_cars_vitb32", 16), ("dtd_rn50", 4))
IN_THE_README += (("oxford_flowers_vitb32", 4),)
MARKS = ("<!-- headline table: make results -->", "<!-- end of the headline table -->")

# Title, what the page is made of, specs of its rows, and sections.
PAGES: dict[str, tuple[str, Any, tuple[str, ...], tuple[str, ...]]] = {
    "headline": (
        "Every method",
        headline,
        ("headline", "robust", "transductive"),
        ("shipped-values",),
    ),
    "calibration": ("Calibration", calibration, ("headline", "coverage", "rejection"), ()),
    "paper": (
        "The paper's tables and figures",
        paper,
        ("headline", "modules", "hyper-parameters", "approximations", "group-splits", "explicit"),
        (),
    ),
    "photos": (
        "Photos",
        photos,
        ("headline", "photos", "encoders", "label-errors", "suggest", "updates"),
        ("copies", "label-errors", "suggest", "encoders"),
    ),
    "training": ("Training", training, ("headline",), ()),
    "similarity": ("Similarity projections", similarity, ("similarity",), ("similarity-speed",)),
    "speed": (
        "Speed on CPU and GPU",
        list,
        (),
        ("latency", "fit-speed", "roofline", "roofline-gpu", "growth", "extraction")
        + ("million-keys", "scale", "product"),
    ),
    "faults": (
        "Faults and load",
        list,
        (),
        ("damage", "connections", "serving", "neighbour", "memory"),
    ),
}
SHOWN_ELSEWHERE = ("approximations-gpu",)


def pages() -> dict[str, str]:
    """Every file that is generated below docs/results, by name."""
    listed = {name for page in PAGES.values() for name in page[3]} | set(SHOWN_ELSEWHERE)
    # A section that no page names yet is one of faults and load.
    others = tuple(name for name in section_names() if name not in listed)
    found = {"headline.csv": headline_csv()}
    index: list[list[object]] = [["page", "made of"]]
    for name, (heading, make, specs, sections) in PAGES.items():
        shown_here = sections + (others if name == "faults" else ())
        made = " ".join(f"`{spec}.toml`: {results(spec).made_by()}" for spec in specs)
        start = [f"# {heading}", "Made by `make results`.", made]
        parts = [*start, *make(), *(section(one) for one in shown_here)]
        body = "\n\n".join(part.strip() for part in parts if part.strip())
        found[f"{name}.md"] = f"{body}\n"
        run = [spec for spec in specs if (row_files.ROWS / f"{spec}.csv").exists()]
        sources = [f"[{spec}.csv](rows/{spec}.csv)" for spec in run] + list(shown_here)
        index.append([f"[{heading}]({name}.md)", ", ".join(sources)])
    text = (
        "`make results` renders these pages from the rows and sections in this folder; `make "
        "results RUN=1` first runs what is missing. [How the benchmark "
        "works](../reference/benchmark.md)."
    )
    found["index.md"] = f"# Results\n\n{text}\n\n{table(index)}"
    return found


def readme_table() -> str:
    """The table of the README: data, shots, method, accuracy, ECE, seconds."""
    found = results("headline")
    rows: list[list[object]] = [["data", "shots", "method", "accuracy", "ECE", "seconds"]]
    lines = [(DEFAULT, NO_VALIDATION, "**GPCache** (this default)")]
    lines += [(PAPER, VALIDATION, "GPCache as published, tuned on validation rows")]
    others = ("Tip-Adapter-F", "LP++", "GDA", "LogisticRegressionCV")
    lines += [(label, NO_VALIDATION, label) for label in others]
    for (data, shots), (label, protocol, name) in product(IN_THE_README, lines):
        cell = Cell(protocol, data, shots)
        if found.draws(cell, label):
            figures = [found.figure(cell, label, "ece"), found.figure(cell, label, "seconds", 2)]
            rows.append([title(data), shots, name, found.accuracy(cell, label), *figures])
    if len(rows) == 1:
        return "The rows of the headline are not run yet.\n"
    where = "Seconds of a fit on one core; Tip-Adapter-F and LP++, which train, on one H200."
    return f"{table(rows)}\n{where}\n"


def with_table(readme: str) -> str:
    """The README with its table renewed."""
    before, found, rest = readme.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not found or not end:
        sys.exit(f"README.md lacks the lines {MARKS[0]!r} and {MARKS[1]!r}.")
    return f"{before}{MARKS[0]}\n\n{readme_table()}\n{MARKS[1]}{after}"


def generated() -> dict[Path, str]:
    """Every generated file with its content."""
    readme = ROOT / "README.md"
    files = {RESULTS / name: text for name, text in pages().items()}
    return files | {readme: with_table(readme.read_text(encoding="utf-8"))}


def contradictions(folder: Path = row_files.ROWS) -> list[str]:
    """Cells that two specs show with different figures, and pages whose rows mix versions."""
    seen: dict[str, dict[str, str]] = defaultdict(dict)
    versions: dict[str, set[str]] = defaultdict(set)
    for file in sorted(folder.glob("*.csv")):
        for row in row_files.read(file):
            if row["status"] == "done":
                seen[row["key"]][file.stem] = f"{row['accuracy']} / {row['ece']}"
                versions[file.stem].add(row["version"])
    found = [
        f"{', '.join(specs)} show {' and '.join(sorted(set(specs.values())))} for the cell {key}"
        for key, specs in seen.items()
        if len(set(specs.values())) > 1
    ]
    for page, (_, _, specs, _) in PAGES.items():
        mixed = sorted(set().union(*(versions[spec] for spec in specs)))
        if len(mixed) > 1:
            found.append(f"{page}.md shows rows of the versions {' and '.join(mixed)}")
    return found


def problems() -> list[str]:
    """Why the pages are not those of the rows; none if they are."""
    files = generated()
    stale = [
        f"{path.relative_to(ROOT)} is not what `make results` writes: run it"
        for path, text in files.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    known = {path.name for path in files} | {"rows", "sections"}
    extra = [
        f"docs/results/{path.name} is not a generated page"
        for path in sorted(RESULTS.iterdir())
        if path.name not in known and path.suffix != ".png"
    ]
    return stale + extra + contradictions()


def run(names: Iterable[str], jobs: int) -> None:
    """Run what is missing of the specs, and append the rows."""
    for name in names:
        command = [sys.executable, ROOT / "benchmarks" / "run_spec.py", SPECS / f"{name}.toml"]
        command += ["-o", RUNS, "--jobs", str(jobs), "--device", "cpu"]
        command += ["--root", ROOT / "build" / "data"]
        subprocess.run(command, check=False)  # what failed has a row that says why
        if (RUNS / f"{name}.jsonl").exists():
            row_files.append([RUNS / f"{name}.jsonl"])


def main() -> int:
    """Run, check or render."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", nargs="*", default=RUN_BY_DEFAULT, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.run:
        run(options.only, options.jobs)
    if options.check:
        found = problems()
        print("\n".join(found))
        return 1 if found else 0
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
