"""`gpcache check`: what is wrong with labelled images, before anything is trained."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from gpcache.cli.options import (
    DeviceOption,
    EncoderOption,
    FollowOption,
    ImagesArgument,
    JsonOption,
    print_json,
    printable,
)


def check(
    images: ImagesArgument,
    encoder: EncoderOption = "lite",
    groups: Annotated[
        str,
        typer.Option(
            help="Photos of one burst count as one: 'list' takes the column group of a list, "
            "'folder' the innermost folder, 'none' nothing."
        ),
    ] = "list",
    top: Annotated[int, typer.Option(min=1, help="So many findings of each kind.")] = 10,
    text: Annotated[bool, typer.Option(help="Whether class names count.")] = True,
    follow: FollowOption = False,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Find label errors, outliers, duplicates, leaks between classes and harmful shots.

    Every image is judged by a model that has not seen it; exit code 1 if something was found.

    **Examples**

    - `gpcache check photos/`

    - `gpcache check list.csv --top 30 --json`
    """
    from gpcache.checking import check_images
    from gpcache.cli.tables import print_notices, print_refused
    from gpcache.encoders import load_encoder
    from gpcache.images.sources import open_source

    source = open_source(images.resolve(), follow=follow)
    found = check_images(source, load_encoder(encoder, device=device), groups=groups, text=text)
    print_refused(found.refused)
    print_notices([*source.notices, *found.audit.notices])
    findings = found.audit.findings
    if json:
        content = [
            asdict(finding)
            | {
                "image": found.names[finding.row],
                "other_image": None if finding.other is None else found.names[finding.other],
            }
            for finding in findings
        ]
        print_json({"images": len(found.names), "findings": content})
        raise typer.Exit(1 if findings else 0)
    counts = Counter(finding.kind for finding in findings)
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"
    typer.echo(f"{len(found.names):,} images of {found.classes:,} classes: {summary} found.")
    for kind in counts:
        typer.echo(f"\n{kind}")
        for finding in found.audit.of(kind)[:top]:
            typer.echo(f"  {printable(finding.sentence)}")
        if counts[kind] > top:
            typer.echo(f"  … and {counts[kind] - top} more (--top).")
    raise typer.Exit(1 if findings else 0)
