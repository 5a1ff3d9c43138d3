"""Result pages: a Markdown table in docs/results/ with the command that made it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"


def table(rows: Iterable[Iterable[object]]) -> str:
    """Rows as a Markdown table; the first is its head."""
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * (lines[0].count("|") - 1))
    return "\n".join(lines) + "\n"


def write_page(name: str, heading: str, *parts: str, made_by: str | None = None) -> None:
    """Write and print docs/results/`name`.md: the heading, the command, and the parts.

    The command is the one that runs, unless `made_by` gives another.
    """
    script = Path(sys.argv[0])
    if made_by is None:
        made_by = f"`{' '.join(['python', f'benchmarks/{script.name}', *sys.argv[1:]])}`"
    body = "\n\n".join(part.strip() for part in parts)
    page = f"# {heading}\n\nMade by {made_by}.\n\n{body}\n"
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.md").write_text(page)
    print(page)
