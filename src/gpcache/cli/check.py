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
    VerboseOption,
    print_json,
    printable,
)

HEADINGS = {
    "leak": "Copies in two classes or groups",
    "label": "Labels that are probably wrong",
    "duplicate": "Copies",
    "near-duplicate": "Near copies",
    "harmful": "Images without which the others do better",
    "outlier": "Unlike all other images",
}


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
    _verbose: VerboseOption = False,
) -> None:
    """Find wrong labels, copies, outliers and harmful images.

    Every image is judged by a model that has not seen it; exit code 1 if something was found.

    **Examples**

    - `gpcache check photos/`

    - `gpcache check list.csv --top 30 --json`
    """
    from gpcache.cli.tables import listed, print_notices, print_refused
    from gpcache.encoders import load_encoder
    from gpcache.images.records import plural
    from gpcache.images.sources import open_source
    from gpcache.model.audit.images import check_images

    source = open_source(images.resolve(), follow=follow)
    found = check_images(source, load_encoder(encoder, device=device), groups=groups, text=text)
    print_refused(found.refused)
    notices = [*found.notices, *found.audit.notices]
    print_notices(notices)
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
        print_json(
            {
                "images": len(found.names),
                "classes": found.classes,
                "findings": content,
                "refused": listed(found.refused),
                "notices": notices,
            }
        )
        raise typer.Exit(1 if findings else 0)
    classes = "1 class" if found.classes == 1 else f"{found.classes:,} classes"
    summary = plural(len(findings), "finding") if findings else "nothing found"
    typer.echo(f"{plural(len(found.names), 'image')} of {classes}: {summary}.")
    for kind, count in Counter(finding.kind for finding in findings).items():
        typer.echo(f"\n{HEADINGS[kind]} ({count:,})")
        for finding in found.audit.of(kind)[:top]:
            typer.echo(f"  {printable(finding.sentence)}")
        if count > top:
            typer.echo(f"  … and {count - top:,} more (--top).")
    raise typer.Exit(1 if findings else 0)
