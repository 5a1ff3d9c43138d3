"""The rows of the result pages: one append-only CSV file per spec in docs/results/rows.

    python benchmarks/row_files.py build/results/*.jsonl     # append the rows of a run

A run of a spec writes whole rows, with options, notes and the outcome on every test image. What
pages need of them is kept in git: the cell, the figures, and the version that made them. The last
row of a cell counts.
"""

import csv
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpcache.benchmark.rows import latest, read_rows

ROWS = Path(__file__).resolve().parent.parent / "docs" / "results" / "rows"
_NUMBERS = ("accuracy", "nll", "ece", "seconds", "predict_seconds", "validation_accuracy")
_NUMBERS += ("held_out_accuracy", "held_out_ece", "held_out_rows")
_COUNTS = ("n_shots", "n_choosing", "n_test")
COLUMNS = ("key", "protocol", "encoder", "dataset", "test", "shots", "seed", "label", "method")
COLUMNS += ("status", "why", *_COUNTS, *_NUMBERS, "further", "device", "version", "source")
MEASURES = ("perfect_ece", "aurc", "coverage", "set_size", "auroc", "fpr95", "refused", "errors")
KEY_LENGTH = 16
DIGITS = 5  # enough for one test image of 50,000
Row = dict[str, Any]


def compact(row: Row) -> Row:
    """The columns of a row of a run; figures of measures go together into `further`."""
    row = {name: round(one, DIGITS) if isinstance(one, float) else one for name, one in row.items()}
    measured = [name for name in row if name.startswith(MEASURES) and row[name] is not None]
    further = {name: float(row[name]) for name in measured}
    versions = row.get("versions", {})
    row |= {"version": versions.get("gpcache"), "source": versions.get("source")}
    row |= {"key": row["key"][:KEY_LENGTH], "further": ""}
    if further:
        row["further"] = json.dumps(further, separators=(",", ":"))
    return {name: "" if row.get(name) is None else str(row[name]) for name in COLUMNS}


def lines_of(path: Path) -> list[dict[str, str]]:
    """The lines of a file; [] if there is none."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read(path: Path) -> list[Row]:
    """The last row of each cell in a file, with numbers as numbers; [] if there is no file."""
    rows = []
    for line in lines_of(path):
        numbers = ("shots", "seed", *_COUNTS, *_NUMBERS)
        typed = {name: json.loads(line[name]) if line[name] else None for name in numbers}
        rows.append(line | typed | json.loads(line["further"] or "{}"))
    return latest(rows)


def known_keys(spec: str, source: str | None = None, folder: Path = ROWS) -> set[str]:
    """The keys, cut to KEY_LENGTH, of the rows of a spec that are done, of one source if given."""
    rows = (row for row in read(folder / f"{spec}.csv") if row["status"] == "done")
    return {row["key"] for row in rows if source in (None, row["source"])}


def append(runs: Iterable[Path], folder: Path = ROWS) -> None:
    """Append the rows of runs to the files of their specs; a row that is there is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        place = folder / f"{run.stem}.csv"
        there = {tuple(line.values()) for line in lines_of(place)}
        rows = [row for row in map(compact, read_rows(run)) if row["label"]]
        new = [row for row in rows if tuple(row.values()) not in there]
        with place.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if not there:
                writer.writeheader()
            writer.writerows(new)
        print(f"{place.name}: {len(new)} rows more")


if __name__ == "__main__":
    append(map(Path, sys.argv[1:]))
