"""What several commands print alike."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gpcache.images.records import Refused

SHOWN = 50


def print_refused(refused: "Sequence[Refused]") -> None:
    """A table of refused files and their reasons, on stderr."""
    if not refused:
        return
    shown = refused[:SHOWN]
    width = min(60, max(len(file.name) for file in shown))
    typer.echo(f"{len(refused):,} refused:", err=True)
    for file in shown:
        # A name may hold anything, also what a terminal would obey.
        name = "".join(letter if letter.isprintable() else "�" for letter in file.name)
        typer.echo(f"  {name:<{width}}  {file.reason}", err=True)
    if len(refused) > SHOWN:
        typer.echo(f"  … and {len(refused) - SHOWN:,} more, all listed in the store.", err=True)
