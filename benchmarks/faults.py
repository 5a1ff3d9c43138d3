"""Damaged images, forged models and flipped bits: what is refused, and what is not noticed.

    python benchmarks/faults.py [EXPERIMENT …]

Each experiment yields what was tried and its outcome: "refused" in one sentence, "unchanged" (used,
with the same result), "changed" (used, with another result) or "traceback". An experiment is a
function of an empty folder with an entry in EXPERIMENTS; without a name, all of them are run.
Writes docs/results/faults.md; rows of experiments that are not run stay as they are.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from faults_files import flipped_files, forged_models
from faults_images import damaged_images
from pages import RESULTS, table, write_page

OUTCOMES = ("refused", "unchanged", "changed", "traceback")
HEAD = ["tried", "number", "refused in a sentence", "used, same result", "used, other result"]
PAGE = "faults"
Experiment = Callable[[Path], Iterator[tuple[str, str]]]
EXPERIMENTS: dict[str, tuple[str, Experiment]] = {
    "images": (
        "Files of drawn pictures in every format, damaged in every way. *Other result*: at least "
        "one pixel differs and no note says so; [what may go in](../images.md) lists all of them.",
        damaged_images,
    ),
    "forged": (
        "Model folders whose checksums are right: every field removed, of another type, negative, "
        "huge, NaN or nested; every array missing, of another shape or type, NaN or huge. "
        "*Other result*: what was changed is what another fit could have written.",
        forged_models,
    ),
    "flips": (
        "One bit flipped in one file, then everything is read. *Other result* is a fault.",
        flipped_files,
    ),
}


def main() -> None:
    """Run the experiments that are named, and write the page of all."""
    parts = _known_parts()
    for name in sys.argv[1:] or list(EXPERIMENTS):
        text, experiment = EXPERIMENTS[name]
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        with tempfile.TemporaryDirectory() as folder:
            for tried, outcome in experiment(Path(folder)):
                counts[tried][outcome] += 1
        rows = [
            [tried, found.total(), *(found[outcome] for outcome in OUTCOMES)]
            for tried, found in counts.items()
        ]
        parts[name] = f"## {name}\n\n{text}\n\n{table([[*HEAD, 'traceback or NaN'], *rows])}"
    write_page(
        PAGE,
        "Faults",
        "What was tried, how often, and what became of it. The goal is zero in the last column.",
        *(parts[name] for name in EXPERIMENTS if name in parts),
        made_by="`python benchmarks/faults.py`",
    )


def _known_parts() -> dict[str, str]:
    """The parts of the page as it is, by the name of their experiment."""
    page = RESULTS / f"{PAGE}.md"
    parts = page.read_text().split("\n## ")[1:] if page.exists() else []
    return {part.split("\n", 1)[0]: f"## {part}" for part in parts}


if __name__ == "__main__":
    main()
