"""`gpcache extract`, `project` and `store`: features on disk and what is learned from them."""

import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

from typer import Argument, Exit, Option, Typer

import gpcache
from gpcache.cli import options, output

BATCH, WORKERS = "Encode this many images at once.", "Decode in this many processes."
SCALE = "The smallest share of the area that a view shows."
VIEWS = "Encode N random views; 0 takes the centre view."
POOL_VIEWS = "Views of the same images, kept apart."
MINING = "Contrast nearest neighbours instead of random images."
REDUCTION = "Sum or mean over the images of an anchor."
REPAIR = "Drop damaged files; extract makes them again."

StoreOption = Annotated[Path, Option("--output", "-o", metavar="STORE", help="Folder to write.")]
KeepOption = Annotated[bool, Option("--keep-views", help="Store every view instead of their mean.")]
SplitOption = Annotated[
    str | None, Option(metavar="NAME", help="Record this split (train, test, …) in the store.")
]
PoolArgument = Annotated[Path, Argument(metavar="STORE", help="A store of unlabelled images.")]
OutputOption = Annotated[Path, Option("--output", "-o", metavar="PROJ", help="Folder to write.")]
Kind = Literal["contrastive", "whitening"]
TransductiveOption = Annotated[bool, Option("--transductive", help="These are the test images.")]
CONTRASTED = "Number of images to contrast."
NeighboursOption = Annotated[int, Option("--neighbours", "-r", min=2, metavar="R", help=CONTRASTED)]
StoreArgument = Annotated[Path, Argument(metavar="STORE", help="The folder of the store.")]

store_app = Typer(no_args_is_help=True, help="Show what a feature store holds, or verify it.")


def extract(
    images: options.ImagesArgument,
    store: StoreOption,
    encoder: options.EncoderOption = "lite",
    views: Annotated[int, Option(min=0, metavar="N", help=VIEWS)] = 0,
    keep_views: KeepOption = False,
    scale: Annotated[float, Option(min=0.01, max=1, metavar="SHARE", help=SCALE)] = 0.5,
    seed: Annotated[int, Option(min=0, metavar="N", help="Seed of the views.")] = 0,
    split: SplitOption = None,
    follow: options.FollowOption = False,
    device: options.DeviceOption = "auto",
    batch_size: Annotated[
        int | None, Option(min=1, metavar="N", help=BATCH, show_default="by memory")
    ] = None,
    workers: Annotated[
        int | None, Option(min=1, metavar="N", help=WORKERS, show_default="by cores")
    ] = None,
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


def project(
    store: PoolArgument,
    folder: OutputOption,
    views: Annotated[Path, Option(metavar="STORE", help=POOL_VIEWS)],
    kind: Annotated[Kind, Option(help="Train it, or compute a whitening.")] = "contrastive",
    split: Annotated[
        str | None, Option(metavar="NAME", help="Use only the images of this split.")
    ] = None,
    transductive: TransductiveOption = False,
    neighbours: NeighboursOption = 128,
    hard_mining: Annotated[bool, Option(help=MINING)] = True,
    bottleneck: Annotated[
        int, Option(min=1, metavar="N", help="Divide the inner dimension by this.")
    ] = 1,
    residual: Annotated[bool, Option(help="Add the feature itself.")] = True,
    temperature: Annotated[
        float, Option(metavar="X", help="Temperature that divides the cosines.")
    ] = 0.07,
    reduction: Annotated[Literal["sum", "mean"], Option(help=REDUCTION)] = "sum",
    epochs: Annotated[int, Option(min=1, metavar="N", help="Passes over all images.")] = 10,
    batch_size: Annotated[int, Option(min=1, metavar="N", help="Anchors in a step.")] = 256,
    learning_rate: Annotated[
        float, Option(metavar="X", help="Initial learning rate of SGD.")
    ] = 0.01,
    weight_decay: Annotated[float, Option(metavar="X", help="Weight decay of SGD.")] = 0.05,
    seed: Annotated[int, Option(min=0, metavar="N", help="Seed of order, views and draws.")] = 0,
    device: options.DeviceOption = "auto",
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Learn a similarity projection from unlabelled images.

    A run that was stopped continues after its last complete epoch, from a file next to the output.
    A whitening has a closed form and ignores the options from `--neighbours` to `--seed`.

    **Examples**

    - `gpcache extract pool/ -o pool.store`
    - `gpcache extract pool/ -o views.store --views 2 --keep-views`
    - `gpcache project pool.store --views views.store -o proj.gpp`
    - `gpcache fit photos/ -o pets.gpc --projection proj.gpp`
    """
    from gpcache.similarity import ProjectionOptions
    from gpcache.similarity.from_stores import project_stores

    start = time.perf_counter()
    chosen = ProjectionOptions(
        bottleneck=bottleneck, residual=residual, hard_mining=hard_mining, neighbours=neighbours,
        temperature=temperature, reduction=reduction, epochs=epochs, batch_size=batch_size,
        learning_rate=learning_rate, weight_decay=weight_decay, seed=seed,
    )  # fmt: skip
    facts = project_stores(
        store, views, folder, kind=kind, options=chosen, split=split, transductive=transductive,
        device=device,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    loss, note = "none, closed form", ", transductive" if transductive else ""
    if facts.history:
        loss = f"{facts.history[0]:.4f} → {facts.history[-1]:.4f} an image"
    rows = {
        "projection": f"{folder}: {kind}, encoder {facts.encoder}{note}",
        "learned from": f"{facts.images:,} images, {facts.views} views each",
        "loss": loss,
        "change": f"{facts.change:.3f} (the mean sine between features before and after)",
        "seconds": f"{seconds:.1f}",
    }
    output.show(json, {"projection": str(folder), "seconds": seconds, **asdict(facts)}, rows)


@store_app.command()
def info(
    store: StoreArgument,
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Show which encoder made a store, and what is in it.

    **Example**

    - `gpcache store info photos.store`
    """
    from gpcache.support.devices import format_bytes

    opened = gpcache.FeatureStore.open(store, verify=False)
    manifest, items = opened.manifest, opened.items()
    size = sum((store / file.name).stat().st_size for file in manifest.files)
    content = {
        "encoder": manifest.encoder,
        "fingerprint": manifest.fingerprint,
        "dim": manifest.dim,
        "views": manifest.views,
        "features": sum(shard.rows for shard in manifest.shards),
        "items": len(items),
        "classes": len({item.label for item in items} - {None}),
        "splits": dict(Counter(item.split for item in items if item.split)),
        "sources": dict(Counter(item.source for item in items)),
        "refused": len(opened.refused()),
        "texts": len(manifest.texts),
        "shards": len(manifest.shards),
        "bytes": size,
    }
    shown = content | {"bytes": format_bytes(size)}
    output.show(json, content, {key: _words(value) for key, value in shown.items()})


def _words(value: object) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{name} {count}" for name, count in value.items())
    return "–" if value in (None, "") else str(value)


@store_app.command()
def verify(
    store: StoreArgument,
    repair: Annotated[bool, Option("--repair", help=REPAIR)] = False,
    json: options.JsonOption = False,
    _verbose: options.VerboseOption = False,
) -> None:
    """Compare every file with its SHA-256; exit code 1 if one is damaged.

    **Example**

    - `gpcache store verify photos.store`
    """
    from gpcache.support.progress import progress_bar

    opened = gpcache.FeatureStore.open(store)
    files = len(opened.manifest.files)
    with progress_bar("verify", total=files, unit="file") as bar:
        damaged = opened.damaged(bar.update)
    if repair and damaged:
        opened.drop(damaged)
    command = f"gpcache store verify --repair {quote(str(store))}"
    run = f"Run '{command}', then extract the images again."
    words = "They were dropped: extract the images again." if repair else run
    if not damaged:
        words = f"{store}: all {files} files are intact."
    lines = [*(f"damaged: {name}" for name in damaged), words]
    output.show(json, {"damaged": damaged, "files": files, "repaired": repair}, lines)
    raise Exit(1 if damaged and not repair else 0)
