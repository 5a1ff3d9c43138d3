"""`gpcache extract`: images in, a feature store out."""

from pathlib import Path
from typing import Annotated, Literal

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


def extract(
    images: ImagesArgument,
    store: Annotated[
        Path, typer.Option("--output", "-o", metavar="STORE", help="The folder of the features.")
    ],
    encoder: EncoderOption = "lite",
    views: Annotated[
        int, typer.Option(min=0, help="Random views an image; 0 is one centre view.")
    ] = 0,
    keep_views: Annotated[
        bool, typer.Option("--keep-views", help="Keep the views apart instead of their mean.")
    ] = False,
    scale: Annotated[
        float, typer.Option(min=0.01, max=1, help="The smallest share of the area a view shows.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the views.")] = 0,
    split: Annotated[
        str | None, typer.Option(help="Note this split (train, test, …) with the images.")
    ] = None,
    follow: FollowOption = False,
    device: DeviceOption = "auto",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images encoded at once.", show_default="by memory")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Decoding processes.", show_default="by cores")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="Where to work: on this machine, or on the Ray cluster at RAY_ADDRESS."),
    ] = "local",
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Turn images into features on disk.

    Run it again to go on after a break, or to add new images: they are known by their content, and
    none is encoded twice. Refused files are listed with the reason on stderr and in the store.

    **Examples**

    - `gpcache extract photos/ -o photos.store`

    - `gpcache extract list.csv -o photos.store --encoder clip-vit-b-16`

    - `gpcache extract photos/ -o keys.store --views 10`

    - `gpcache extract photos/ -o photos.store --engine ray`
    """
    from gpcache.cli.tables import listed, print_notices, print_refused
    from gpcache.cluster.extraction import encoded_on_ray
    from gpcache.encoders import load_encoder
    from gpcache.features.extract import extract as run
    from gpcache.features.store import FeatureStore
    from gpcache.features.stream import encoded
    from gpcache.images.augment import Views
    from gpcache.images.sources import open_source

    source = open_source(images.resolve(), follow=follow)
    wanted = Views(views, (scale, 1.0), seed, not keep_views) if views else None
    report = run(
        source,
        store,
        load_encoder(encoder, device=device),
        views=wanted,
        split=split,
        batch_size=batch_size,
        workers=workers,
        stream=encoded_on_ray if engine == "ray" else encoded,
    )
    print_refused(report.refused)
    print_notices([*report.notices, *(f"{note.name}: {note.reason}" for note in report.notes)])
    rows = len(FeatureStore.open(store, verify=False))
    rate = report.encoded / report.seconds
    if json:
        summary = {
            "store": str(store),
            "images": rows,
            "encoded": report.encoded,
            "known": report.known,
            "refused": listed(report.refused),
            "notes": [{"path": it.name, "note": it.reason} for it in report.notes],
            "notices": report.notices,
            "seconds": report.seconds,
        }
        print_json(summary)
        return
    typer.echo(
        f"{printable(str(store))}: {rows:,} images; {report.encoded:,} encoded now "
        f"({rate:.1f} images/s), {report.known:,} known before, {len(report.refused):,} refused."
    )
