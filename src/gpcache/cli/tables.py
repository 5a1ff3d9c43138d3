"""Tables that several commands print alike."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from gpcache.cli.options import percent, printable

if TYPE_CHECKING:
    from gpcache.evaluation import Evaluation
    from gpcache.images.records import Refused

SHOWN = 50
NOTES = 20


def print_refused(refused: "Sequence[Refused]") -> None:
    """Refused files and their reasons, on stderr."""
    if not refused:
        return
    names = [printable(file.name) for file in refused[:SHOWN]]
    width = min(60, max(map(len, names)))
    typer.echo(f"{len(refused):,} refused:", err=True)
    for name, file in zip(names, refused, strict=False):
        typer.echo(f"  {name:<{width}}  {file.reason}", err=True)
    if len(refused) > SHOWN:
        typer.echo(f"  … and {len(refused) - SHOWN:,} more.", err=True)


def print_notices(notices: Sequence[str]) -> None:
    """What the user should know, on stderr."""
    for notice in notices[:NOTES]:
        typer.echo(f"note: {printable(notice)}", err=True)
    if len(notices) > NOTES:
        typer.echo(f"note: … and {len(notices) - NOTES:,} notes more.", err=True)


def figures(evaluation: "Evaluation") -> dict[str, str]:
    """An evaluation in words: no figure without its data and protocol."""
    low, high = evaluation.interval
    rows = {
        "data": f"{evaluation.data}, n = {len(evaluation):,}",
        "protocol": evaluation.protocol,
        "accuracy": f"{percent(evaluation.accuracy)} (95 % interval {100 * low:.1f} – "
        f"{100 * high:.1f})",
        "calibration": f"ECE {percent(evaluation.ece)}, NLL {evaluation.nll:.3f}",
    }
    mistakes = ", ".join(f"{c.truth} → {c.answer} {c.images}×" for c in evaluation.confusions())
    return rows | {"confused": mistakes or "none"}
