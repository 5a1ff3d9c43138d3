"""`gpcache demo`: few-shot on handwritten digits, nothing to download."""

from typing import Annotated

import typer


def demo(
    shots: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Images per class; repeat for several.",
            show_default="1 2 4 8 16",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Random draws behind each mean ± deviation.")
    ] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare GPCache with its rivals on handwritten digits; needs no download."""
    from gpcache.demo import main

    main(shots=shots or [1, 2, 4, 8, 16], seeds=seeds, json=json)
