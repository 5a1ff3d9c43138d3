"""Sections of result pages: tables of time and faults, kept in docs/results/sections.

A script that measures writes its section by `write_page`; `results.py` puts sections and rows
together into the pages. What they say beside their tables lies in benchmarks/text.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import gpcache

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
SECTIONS = RESULTS / "sections"
TEXTS = Path(__file__).resolve().parent / "text"


def text(name: str, **values: object) -> str:
    """What benchmarks/text/NAME.md says, with these values in its braces, if there are any."""
    content = (TEXTS / f"{name}.md").read_text(encoding="utf-8").strip()
    return content.format(**values) if values else content


def table(rows: Iterable[Iterable[object]]) -> str:
    """Rows as a Markdown table; the first is its head."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    lines.insert(1, "|" + "---|" * (lines[0].count("|") - 1))
    return "\n".join(lines) + "\n"


def write_page(name: str, heading: str, *parts: str, made_by: str | None = None) -> None:
    """Write and print the section `name`: the heading, the command, and the parts.

    The command is the one that runs, unless `made_by` gives another.
    """
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    version, body = f"gpcache {gpcache.__version__}", "\n\n".join(part.strip() for part in parts)
    content = {"heading": heading, "made_by": made_by or f"`{command}`", "version": version}
    written = json.dumps(content | {"body": body}, ensure_ascii=False, indent=1)
    (SECTIONS / f"{name}.json").write_text(f"{written}\n", encoding="utf-8")
    print(section(name))
    print(f"Run `make results` to renew the page that shows the section {name}.", file=sys.stderr)


def section(name: str) -> str:
    """A section in Markdown, with its headings one level down."""
    content = json.loads((SECTIONS / f"{name}.json").read_text(encoding="utf-8"))
    lines, fenced = [], False
    for line in content["body"].split("\n"):
        fenced ^= line.startswith("```")
        lines.append(f"#{line}" if line.startswith("#") and not fenced else line)
    made = f"Made by {content['made_by']}, {content['version']}."
    return f"## {content['heading']}\n\n{made}\n\n" + "\n".join(lines).strip() + "\n"
