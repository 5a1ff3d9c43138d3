"""`gpcache store`: what a feature store holds, and whether it is still what was written."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from gpcache.cli.options import JsonOption, VerboseOption, print_json, print_rows, printable

app = typer.Typer(no_args_is_help=True, help="Look into a feature store, or check it.")

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="The folder of the store.")]


@app.command()
def info(store: StoreArgument, json: JsonOption = False, _verbose: VerboseOption = False) -> None:
    """Say which encoder made a store, and what is in it.

    **Example**

    - `gpcache store info photos.store`
    """
    from gpcache.features.store import FeatureStore
    from gpcache.support.devices import format_bytes

    opened = FeatureStore.open(store, verify=False)
    manifest, items = opened.manifest, opened.items()
    size = sum((store / file.name).stat().st_size for file in manifest.files)
    found = {
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
    if json:
        print_json(found)
        return
    rows = {}
    for key, value in (found | {"bytes": format_bytes(size)}).items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {count}" for name, count in value.items())
        rows[key] = "–" if value in (None, "") else str(value)
    print_rows(rows)


@app.command()
def verify(
    store: StoreArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Forget what is damaged; extract makes it again.")
    ] = False,
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Check every file against its SHA-256; exit code 1 if one is damaged.

    **Example**

    - `gpcache store verify photos.store`
    """
    from gpcache.features.store import FeatureStore
    from gpcache.support.progress import progress_bar

    opened = FeatureStore.open(store)
    with progress_bar("verify", total=len(opened.manifest.files), unit="file") as bar:
        damaged = opened.damaged(bar.update)
    if repair and damaged:
        opened.drop(damaged)
    if json:
        files = len(opened.manifest.files)
        print_json({"damaged": damaged, "files": files, "repaired": repair})
    elif not damaged:
        typer.echo(
            f"{printable(str(store))}: all {len(opened.manifest.files)} files are what was written."
        )
    else:
        for name in damaged:
            typer.echo(f"damaged: {printable(name)}")
        mend = (
            "They were forgotten: extract the images again."
            if repair
            else f"Run 'gpcache store verify --repair {store}', then extract the images again."
        )
        typer.echo(printable(mend))
    raise typer.Exit(1 if damaged and not repair else 0)
