"""`gpcache store`: show what a feature store holds, or verify its files."""

from collections import Counter
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, Typer, echo

import gpcache
from gpcache.cli import options
from gpcache.cli.output import printable, show

app = Typer(no_args_is_help=True, help="Show what a feature store holds, or verify it.")

REPAIR = "Drop damaged files; extract makes them again."
StoreArgument = Annotated[Path, Argument(metavar="STORE", help="The folder of the store.")]


@app.command()
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
    show(json, content, {key: _words(value) for key, value in shown.items()})


def _words(value: object) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{name} {count}" for name, count in value.items())
    return "–" if value in (None, "") else str(value)


@app.command()
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
    run = f"Run 'gpcache store verify --repair {store}', then extract the images again."
    words = "They were dropped: extract the images again." if repair else run
    if not damaged:
        words = f"{store}: all {files} files are intact."
    for name in damaged if not json else ():
        echo(f"damaged: {printable(name)}")
    show(json, {"damaged": damaged, "files": files, "repaired": repair}, words)
    raise Exit(1 if damaged and not repair else 0)
