"""The rows of the result pages: one append-only CSV file per spec in docs/results/rows.

    python benchmarks/row_files.py build/results/*.jsonl     # append the rows of a run

A run of a spec writes whole rows, with options, notes and the outcome on every test image. What
pages need of them is kept in git: the cell, the figures, and the version that made them. The last
row of a cell counts.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROWS = Path(__file__).resolve().parent.parent / "docs" / "results" / "rows"
CELL = ("protocol", "encoder", "dataset", "test", "shots", "seed", "label")
_NUMBERS = ("accuracy", "nll", "ece", "seconds", "predict_seconds", "validation_accuracy")
_HELD_OUT = ("held_out_accuracy", "held_out_ece", "held_out_rows")
COLUMNS = ("key", *CELL, "method", "status", "why", "n_shots", "n_choosing", "n_test", *_NUMBERS)
COLUMNS += (*_HELD_OUT, "further", "device", "version", "source")
KEY_LENGTH = 16
DIGITS = 5  # enough for one test image of 50,000
Row = dict[str, Any]


def compact(row: Row) -> Row:
    """The columns of a row of a run; figures of measures go together into `further`."""
    found = {name: row.get(name) for name in COLUMNS}
    found["key"] = row["key"][:KEY_LENGTH]
    further = {key: round(value, DIGITS) for key, value in _measured(row)}
    found["further"] = json.dumps(further, separators=(",", ":")) if further else ""
    versions = row.get("versions", {})
    found |= {"version": versions.get("gpcache"), "source": versions.get("source")}
    for name in (*_NUMBERS, *_HELD_OUT):
        if isinstance(found[name], float):
            found[name] = round(found[name], DIGITS)
    return {name: "" if value is None else str(value) for name, value in found.items()}


def _measured(row: Row) -> Iterable[tuple[str, float]]:
    starts = ("perfect_ece", "aurc", "coverage", "set_size", "auroc", "fpr95", "refused")
    starts += ("errors",)
    for name, value in row.items():
        if name.startswith(starts) and value is not None:
            yield name, float(value)


def read(path: Path) -> list[Row]:
    """The last row of each cell in a file, with numbers as numbers; [] if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    return list({tuple(line[name] for name in CELL): typed(line) for line in lines}.values())


def typed(line: dict[str, str]) -> Row:
    """A line with numbers as numbers and further figures beside the others."""
    row: Row = dict(line)
    for name in ("shots", "seed", "n_shots", "n_choosing", "n_test", "held_out_rows"):
        row[name] = int(line[name]) if line[name] else None
    for name in (*_NUMBERS, "held_out_accuracy", "held_out_ece"):
        row[name] = float(line[name]) if line[name] else None
    return row | (json.loads(line["further"]) if line["further"] else {})


def known_keys(spec: str, source: str | None = None, folder: Path = ROWS) -> set[str]:
    """The keys, cut to KEY_LENGTH, of the rows of a spec that are done, of one source if given."""
    rows = (row for row in read(folder / f"{spec}.csv") if row["status"] == "done")
    return {row["key"] for row in rows if source in (None, row["source"])}


def append(runs: Iterable[Path], folder: Path = ROWS) -> None:
    """Append the rows of runs to the files of their specs; a row that is there is left out."""
    for run in runs:
        place = folder / f"{run.stem}.csv"
        there = set()
        if place.exists():
            with place.open(newline="", encoding="utf-8") as file:
                there = {tuple(line.values()) for line in csv.DictReader(file)}
        lines = run.read_text(encoding="utf-8").splitlines()
        rows = [compact(json.loads(line)) for line in lines if line.endswith("}")]
        new = [row for row in rows if tuple(row.values()) not in there and row["label"]]
        folder.mkdir(parents=True, exist_ok=True)
        with place.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if not there:
                writer.writeheader()
            writer.writerows(new)
        print(f"{place.name}: {len(new)} rows more")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="rows of runs, one .jsonl file a spec")
    append(parser.parse_args().runs)
