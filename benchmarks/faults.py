"""Damaged and forged files, fuzzed requests, parallel writers, kills, connections: what fails.

    python benchmarks/faults.py [EXPERIMENT …]

An experiment is a function that returns a part of the page; EXPERIMENTS lists them by name. Most
of them are `counted`: they yield what was tried and its outcome, a key of OUTCOMES or of
PROCESS_OUTCOMES.
Without a name, all of them are run. Writes the section `damage` of docs/results/faults.md; the
parts of experiments that are not run stay as they are.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from faults_files import flipped_files, forged_models
from faults_images import check_costs, damaged_images
from faults_processes import connections, fuzzed_requests, killed_updates, parallel_writers
from pages import SECTIONS, table, write_page

OUTCOMES = {
    "refused": "refused in a sentence, or noted",
    "unchanged": "used, same result",
    "changed": "used, other result",
    "traceback": "traceback or NaN",
}
PROCESS_OUTCOMES = {
    "kept": "done, and kept",
    "refused": "refused in a sentence",
    "failed": "lost, damaged, server error or traceback",
}
SECTION = "damage"
Experiment = Callable[[Path], Iterator[tuple[str, str]]]


def counted(
    text: str, experiment: Experiment, outcomes: dict[str, str] = OUTCOMES
) -> Callable[[], str]:
    """A part of the page: what an experiment tried in an empty folder, counted by outcome."""

    def run() -> str:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        with tempfile.TemporaryDirectory() as folder:
            for tried, outcome in experiment(Path(folder)):
                counts[tried][outcome] += 1
        rows: list[list[object]] = [["tried", "number", *outcomes.values()]]
        for tried, found in counts.items():
            rows.append([tried, found.total(), *(found[outcome] for outcome in outcomes)])
        return f"{text}\n\n{table(rows)}"

    return run


def costs() -> str:
    """A part of the page: what the checks of image files take."""
    return (
        "Time of the checks and of the decoding, in processor time, the best of nine; a drawn "
        "picture of 1600 × 1200 pixels.\n\n"
        + table([["file", "MB", "decoding, ms", "checks, ms", "share"], *check_costs()])
    )


def traced() -> str:
    """A part of the page: what the commands connect to."""
    head = ["command", "calls about this machine", "calls about any other"]
    return (
        "Every name look-up, connection, datagram and listening socket of a command and of all "
        "processes that it starts, noted by a library that is loaded into them "
        "(`tests/support/network.c`). `gpcache fetch` is not run: it downloads. The goal of the "
        "last column is zero.\n\n" + table([head, *connections()])
    )


EXPERIMENTS: dict[str, Callable[[], str]] = {
    "Damaged images": counted(
        "Files of a drawn picture in every format, damaged in every way. *Other result*: at least "
        "one pixel differs, and no note says so. [Image "
        "input](../reference/images.md#damage-that-cannot-be-detected) lists all of them.",
        damaged_images,
    ),
    "Cost of the checks": costs,
    "Forged models": counted(
        "Model folders whose checksums are right: every field removed, of another type, negative, "
        "huge, NaN or nested; every array missing, of another shape or type, NaN or huge. *Other "
        "result* is not a fault here: another fit could have written the changed model.",
        forged_models,
    ),
    "Flipped bits": counted(
        "One bit flipped in one file, then everything is read. *Other result* is a fault.",
        flipped_files,
    ),
    "Fuzzed requests": counted(
        "Requests to every operation of a running server, made by schemathesis from its OpenAPI "
        "document: some follow the document, others break it.",
        fuzzed_requests,
        PROCESS_OUTCOMES,
    ),
    "Parallel writers": counted(
        "Four processes, or four clients, that write to the same place at the same time.",
        parallel_writers,
        PROCESS_OUTCOMES,
    ),
    "Killed updates": counted(
        "`kill -9` at random moments: a process that adds and removes a photo in turns and saves "
        "the model each time, and a server that learns photo after photo.",
        killed_updates,
        PROCESS_OUTCOMES,
    ),
    "Connections": traced,
}


def main() -> None:
    """Run the experiments that are named, and write the page of all."""
    parts = _known_parts()
    for name in sys.argv[1:] or list(EXPERIMENTS):
        parts[name] = f"## {name}\n\n{EXPERIMENTS[name]()}"
    write_page(
        SECTION,
        "Damaged files, hostile requests, writers and kills",
        "What was tried, how often, and the outcome. The goal of the last column is zero.",
        *(parts[name] for name in EXPERIMENTS if name in parts),
        made_by="`python benchmarks/faults.py`",
    )


def _known_parts() -> dict[str, str]:
    """The parts of the page as it is, by the name of their experiment."""
    place = SECTIONS / f"{SECTION}.json"
    body = json.loads(place.read_text(encoding="utf-8"))["body"] if place.exists() else ""
    parts = f"\n{body}".split("\n## ")[1:]
    return {part.split("\n", 1)[0]: f"## {part}" for part in parts}


if __name__ == "__main__":
    main()
