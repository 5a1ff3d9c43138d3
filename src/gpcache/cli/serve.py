"""`gpcache serve`: the page and the API, on this machine alone."""

import asyncio
import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from gpcache.cli.options import DeviceOption, EncoderOption, JsonOption, VerboseOption
from gpcache.cli.output import json_text, printable


def serve(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL", help="A model folder to start from, for example pets.gpc."),
    ] = None,
    workspace: Annotated[
        Path | None,
        typer.Option("--workspace", "-w", metavar="DIR", help="Where photos and changes are kept."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 takes a free one.")
    ] = 8765,
    encoder: EncoderOption = "lite",
    device: DeviceOption = "auto",
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="Where photos are decoded and encoded: in this process, or by replicas."),
    ] = "local",
    replicas: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Replicas of --engine ray. Default: one for 2 CPUs."),
    ] = None,
    json: JsonOption = False,
    _verbose: VerboseOption = False,
) -> None:
    """Collect, check, try and grow a model in the browser.

    Only this machine can reach it, and only with the token in the address that is printed. Changes
    are kept in the workspace folder. `--encoder` is used only for a new workspace without a model.

    With `--engine ray`, replicas on the Ray cluster of RAY_ADDRESS decode and encode.

    **Examples**

    - `gpcache serve`

    - `gpcache serve pets.gpc --workspace pets_work --port 8000`

    - `gpcache serve pets.gpc --engine ray --replicas 4`
    """
    from gpcache.errors import DataError
    from gpcache.support.extras import require

    if replicas is not None and engine != "ray":
        raise DataError("--replicas counts only with --engine ray: give both, or neither.")
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(module, "serve", purpose="gpcache serve")
    folder = workspace or _own_folder(model)
    token = secrets.token_urlsafe(24)

    def started(_: object, address: str) -> None:
        page = f"{address}/?token={token}"
        facts = {"page": page, "address": address, "token": token, "workspace": str(folder)}
        typer.echo(json_text(facts) if json else page)
        typer.echo(f"Workspace: {printable(str(folder))}. Press Ctrl+C to stop.", err=True)

    _run(folder, model, encoder, device, port, token, started, engine == "ray", replicas)


def _run(
    folder: Path,
    model: Path | None,
    encoder: str,
    device: str,
    port: int,
    token: str,
    started: Callable[[object, str], None],
    on_ray: bool,
    replicas: int | None,
) -> None:
    """Serve the workspace until it is stopped."""
    from gpcache.cluster.connection import connected
    from gpcache.web.open_workspace import open_workspace
    from gpcache.web.ray_encoding import deployed
    from gpcache.web.server import bind, run

    listener = bind(port)
    with ExitStack() as stack:
        ray = stack.enter_context(connected()) if on_ray else None
        opened = open_workspace(folder, model=model, encoder=encoder, device=device)
        encode = None if ray is None else stack.enter_context(deployed(ray, opened, replicas))
        asyncio.run(run(opened, token, listener, started, encode))


def _own_folder(model: Path | None) -> Path:
    """The user's own workspace for a model: told apart by where the model lies."""
    from gpcache.support.files import sha256

    root = Path(typer.get_app_dir("gpcache")) / "workspaces"
    if model is None:
        return root / "default"
    place = model.resolve()
    return root / f"{place.name.removesuffix('.gpc')[:80]}-{sha256(os.fsencode(place))[:8]}"
