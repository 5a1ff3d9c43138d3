"""`gpcache extract`: turn images into a feature store."""

from pathlib import Path
from typing import Annotated

from typer import Option

import gpcache
from gpcache.cli import options, output

BATCH, WORKERS = "Encode this many images at once.", "Decode in this many processes."
SCALE = "The smallest share of the area that a view shows."

StoreOption = Annotated[Path, Option("--output", "-o", metavar="STORE", help="Folder to write.")]
ViewsOption = Annotated[
    int, Option(min=0, metavar="N", help="Encode N random views; 0 takes the centre view.")
]
KeepOption = Annotated[bool, Option("--keep-views", help="Store every view instead of their mean.")]
ScaleOption = Annotated[float, Option(min=0.01, max=1, help=SCALE)]
SplitOption = Annotated[str | None, Option(help="Record this split (train, test, …) in the store.")]


def extract(
    images: options.ImagesArgument,
    store: StoreOption,
    encoder: options.EncoderOption = "lite",
    views: ViewsOption = 0,
    keep_views: KeepOption = False,
    scale: ScaleOption = 0.5,
    seed: Annotated[int, Option(min=0, help="Seed of the views.")] = 0,
    split: SplitOption = None,
    follow: options.FollowOption = False,
    device: options.DeviceOption = "auto",
    batch_size: Annotated[int | None, Option(min=1, help=BATCH, show_default="by memory")] = None,
    workers: Annotated[int | None, Option(min=1, help=WORKERS, show_default="by cores")] = None,
    engine: options.EngineOption = "local",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Turn images into features on disk.

    Run it again to continue after a break, or to add images: images are recognised by their
    content, and none is encoded twice. Refused files are listed on stderr and in the store.

    **Examples**

    - `gpcache extract photos/ -o photos.store`
    - `gpcache extract list.csv -o photos.store --encoder clip-vit-b-16`
    - `gpcache extract photos/ -o keys.store --views 10`
    - `gpcache extract photos/ -o photos.store --engine ray`
    """
    from gpcache.cluster.extraction import encoded_on_ray
    from gpcache.features.extract import extract as run
    from gpcache.features.stream import encoded
    from gpcache.images.augment import Views
    from gpcache.images.sources import open_source

    source = open_source(images.resolve(), follow=follow)
    wanted = Views(views, (scale, 1.0), seed, not keep_views) if views else None
    network = gpcache.load_encoder(encoder, device=device)
    stream = encoded_on_ray if engine == "ray" else encoded
    done = run(
        source, store, network, views=wanted, split=split, batch_size=batch_size, workers=workers,
        stream=stream,
    )  # fmt: skip
    notes = [f"{note.name}: {note.reason}" for note in done.notes]
    output.print_notes(done.refused, [*done.notices, *notes])
    count = len(gpcache.FeatureStore.open(store, verify=False))
    facts = {
        "store": str(store),
        "images": count,
        "encoded": done.encoded,
        "known": done.known,
        "refused": output.refused_as_json(done.refused),
        "notes": [{"path": note.name, "note": note.reason} for note in done.notes],
        "notices": done.notices,
        "seconds": done.seconds,
    }
    rate = f"{done.encoded / done.seconds:.1f} images/s"
    counts = f"{count:,} images; {done.encoded:,} encoded now ({rate}), {done.known:,} known before"
    output.show(json, facts, f"{store}: {counts}, {len(done.refused):,} refused.")
