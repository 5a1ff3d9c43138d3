"""Printing: JSON and tables on stdout, refused files and notes on stderr.

In a terminal rich wraps the tables; in a pipe or a file they are plain lines that are not wrapped.
"""

import json as json_format
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from gpcache.support.names import is_printed, printable

if TYPE_CHECKING:
    from gpcache.images.records import Refused

# The value of a row: a line, or several.
Value = str | list[str]
# What is printed for people: a sentence, lines or rows.
Words = str | Sequence[str] | Mapping[str, Value]

MOST_REFUSED = 50
MOST_NOTES = 20
# Wider than any cell: rich has no table without a width.
NO_WRAPPING = 10_000_000


def percent(value: float) -> str:
    """0.961 → 96.1 %."""
    return f"{100 * value:.1f} %"


def json_text(content: Any, indent: int | None = None) -> str:
    """JSON that cannot control a terminal: characters that are not printable are escaped."""
    text = json_format.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    # Outside of strings everything is printable except line breaks.
    escaped = (x if is_printed(x) or x == "\n" else json_format.dumps(x)[1:-1] for x in text)
    return text if text.isprintable() else "".join(escaped)


def show(json: bool, content: Any, words: Words) -> None:
    """Print `content` as JSON, or `words` for people: a sentence, lines or rows."""
    if json:
        typer.echo(json_text(content, indent=1))
    elif isinstance(words, Mapping):
        print_rows(words)
    else:
        for line in [words] if isinstance(words, str) else words:
            typer.echo(printable(line))


def print_rows(rows: "Mapping[str, Value]") -> None:
    """Print names and values in two columns; a list takes a line for each of its values.

    A name with an empty list is left out.
    """
    _print_columns((name, value) for name, value in rows.items() if value != [])


def shortened(lines: Sequence[str], most: int, more: str) -> list[str]:
    """The first lines and the number of further ones; `more` says how to see them."""
    further = [f"… and {len(lines) - most:,} more{more}"] if len(lines) > most else []
    return [*lines[:most], *further]


def print_notes(refused: "Sequence[Refused]", notices: Sequence[str] = ()) -> None:
    """Print refused files with their reasons, and notices, on stderr."""
    if refused:
        typer.echo(f"{len(refused):,} refused:", err=True)
        shown = refused[:MOST_REFUSED]
        _print_columns(((f"  {file.name}", file.reason) for file in shown), stderr=True)
    if len(refused) > MOST_REFUSED:
        typer.echo(f"  … and {len(refused) - MOST_REFUSED:,} more.", err=True)
    print_notices(notices)


def print_notices(notices: Sequence[str]) -> None:
    """Print notices on stderr."""
    for notice in shortened(notices, MOST_NOTES, " notes."):
        typer.echo(f"note: {printable(notice)}", err=True)


def refused_as_json(refused: "Sequence[Refused]") -> list[dict[str, str]]:
    """Refused files and their reasons, as `--json` prints them."""
    return [{"path": file.name, "reason": file.reason} for file in refused]


def _print_columns(rows: "Iterable[tuple[str, Value]]", *, stderr: bool = False) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    stream = sys.stderr if stderr else sys.stdout
    terminal = stream.isatty()
    width = None if terminal else NO_WRAPPING
    console = Console(file=stream, force_terminal=terminal, width=width, markup=False, emoji=False)
    columns = Column(style="bold", overflow="fold"), Column(overflow="fold")
    table = Table.grid(*columns, padding=(0, 2, 0, 0))
    for name, value in rows:
        lines = [value] if isinstance(value, str) else value
        table.add_row(printable(name), "\n".join(map(printable, lines)))
    with console.capture() as captured:
        console.print(table, highlight=False)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip(), err=stderr)
