"""Damaged and forged files, fuzzed requests, parallel writers, kills: what fails.

    python benchmarks/faults.py [EXPERIMENT …]

EXPERIMENTS lists them by name: each makes a table, below what text/faults.md says of it. Most of
them are `counted`: they yield what was tried and its outcome, a key of OUTCOMES or of
PROCESS_OUTCOMES.
Without a name, all of them are run. Writes the section `damage` of docs/results/faults.md; the
parts of experiments that are not run stay as they are.
"""

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from faults_files import check_costs, damaged_images, flipped_files, forged_models
from faults_processes import fuzzed_requests, killed_extractions, killed_updates, parallel_writers
from pages import SECTIONS, table, text, write_page

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
CHECK_HEAD = ["file", "MB", "decoding, ms", "checks, ms", "share"]


def counted(
    experiment: Callable[[Path], Iterator[tuple[str, str]]], outcomes: dict[str, str]
) -> str:
    """What an experiment tried in an empty folder, counted by outcome."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        for tried, outcome in experiment(Path(folder)):
            counts[tried][outcome] += 1
    lines = ([tried, of.total(), *(of[kind] for kind in outcomes)] for tried, of in counts.items())
    return table([["tried", "number", *outcomes.values()], *lines])


EXPERIMENTS: dict[str, Callable[[], str]] = {
    "Damaged images": partial(counted, damaged_images, OUTCOMES),
    "Cost of the checks": lambda: table([CHECK_HEAD, *check_costs()]),
    "Forged models": partial(counted, forged_models, OUTCOMES),
    "Flipped bits": partial(counted, flipped_files, OUTCOMES),
    "Fuzzed requests": partial(counted, fuzzed_requests, PROCESS_OUTCOMES),
    "Parallel writers": partial(counted, parallel_writers, PROCESS_OUTCOMES),
    "Killed updates": partial(counted, killed_updates, PROCESS_OUTCOMES),
    "Killed extractions": partial(counted, killed_extractions, PROCESS_OUTCOMES),
}


def parts_of(body: str) -> dict[str, str]:
    """The parts of a text by their headings."""
    parts = (part.split("\n", 1) for part in f"\n{body}".split("\n## ")[1:])
    return {heading: content.strip() for heading, content in parts}


if __name__ == "__main__":
    section = json.loads((SECTIONS / "damage.json").read_text(encoding="utf-8"))
    parts, about = parts_of(section["body"]), parts_of(text("faults"))
    for name in sys.argv[1:] or EXPERIMENTS:
        parts[name] = f"{about[name]}\n\n{EXPERIMENTS[name]()}"
    write_page(
        "damage",
        "Damaged files, hostile requests, writers and kills",
        "What was tried, how often, and the outcome. Faults in the last column: the goal is 0.",
        *(f"## {name}\n\n{parts[name]}" for name in EXPERIMENTS if name in parts),
        made_by="`python benchmarks/faults.py`",
    )
