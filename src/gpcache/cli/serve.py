"""`gpcache serve`: the page and the API, by default only for this machine."""

import asyncio
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpcache.cli.options import DeviceOption, EncoderOption, JsonOption, VerboseOption
from gpcache.cli.output import json_text, print_notices, printable

if TYPE_CHECKING:
    from gpcache.web.workspace import Workspace

HOST_HELP = "The address to listen on; 0.0.0.0 lets other machines of the network connect."


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
        int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 8765,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help=HOST_HELP)] = "127.0.0.1",
    certificate: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Use HTTPS with this certificate.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="PEM", help="The private key of the certificate.")
    ] = None,
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

    With `--host 0.0.0.0`, phones and other machines of the network can open it too; a QR code of
    the address is printed. Give a certificate; without one, others in the network can read photos
    and the token.

    With `--engine ray`, replicas on the Ray cluster of RAY_ADDRESS decode and encode.

    **Examples**

    - `gpcache serve`

    - `gpcache serve pets.gpc --workspace pets_work --port 8000`

    - `gpcache serve pets.gpc --engine ray --replicas 4`

    - `gpcache serve pets.gpc --host 0.0.0.0`
    """
    shared = host != "127.0.0.1"
    _check(replicas if engine == "local" else None, certificate, key, shared)
    folder = workspace or _own_folder(model)
    token = secrets.token_urlsafe(24)

    def started(_: object, address: str) -> None:
        page = f"{address}/?token={token}"
        facts = {"page": page, "address": address, "token": token, "workspace": str(folder)}
        if shared:
            _tell_network(page, encrypted=certificate is not None)
        typer.echo(json_text(facts) if json else page)
        typer.echo(f"Workspace: {printable(str(folder))}. Press Ctrl+C to stop.", err=True)

    begin = partial(_opened, folder, model=model, encoder=encoder, device=device)
    files = None if certificate is None or key is None else (certificate, key)
    _run(begin, (host, port), token, started, engine == "ray", replicas, files)


def _check(replicas: int | None, certificate: Path | None, key: Path | None, shared: bool) -> None:
    """Raise an error for options that do not fit together, and for missing packages."""
    from gpcache.errors import DataError
    from gpcache.support.extras import require

    if replicas is not None:
        raise DataError("--replicas needs --engine ray: give both, or neither.")
    if (certificate is None) != (key is None):
        raise DataError("HTTPS takes a certificate and its key: give --certificate and --key.")
    needed = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
    for module in (*needed, *["segno"] * shared):
        require(module, "serve", purpose="gpcache serve")


def _opened(folder: Path, **options: Any) -> "Workspace":
    """Open the workspace, and print notices about damage."""
    from gpcache.web.open_workspace import open_workspace

    opened = open_workspace(folder, **options)
    print_notices(opened.notices)
    return opened


def _run(
    begin: "Callable[[], Workspace]",
    place: tuple[str, int],
    token: str,
    started: Callable[[object, str], None],
    on_ray: bool,
    replicas: int | None,
    certificate: tuple[Path, Path] | None,
) -> None:
    """Serve the workspace until it is stopped."""
    from gpcache.cluster.connection import connected
    from gpcache.web.ray_encoding import deployed
    from gpcache.web.server import Certificate, bind, run

    host, port = place
    listener = bind(port, host)
    secured = None if certificate is None else Certificate(*certificate)
    with ExitStack() as stack:
        ray = stack.enter_context(connected()) if on_ray else None
        opened = begin()
        encode = None if ray is None else stack.enter_context(deployed(ray, opened, replicas))
        asyncio.run(run(opened, token, listener, started, encode, secured))


def _tell_network(page: str, *, encrypted: bool) -> None:
    """Print the address as a QR code, and what others in the network can do."""
    import segno

    segno.make(page, micro=False).terminal(sys.stderr, compact=True)
    who = "Everybody in this network who has the address or the token can use the page."
    if not encrypted:
        who = (
            "warning: The connection is not encrypted: everybody in this network can read photos "
            "and the token. Give --certificate and --key for HTTPS, or share only in a network "
            f"that you trust. {who}"
        )
    typer.echo(who, err=True)


def _own_folder(model: Path | None) -> Path:
    """The default workspace of a model, which depends on the path of the model."""
    from gpcache.support.files import sha256

    root = Path(typer.get_app_dir("gpcache")) / "workspaces"
    if model is None:
        return root / "default"
    place = model.resolve()
    return root / f"{place.name.removesuffix('.gpc')[:80]}-{sha256(os.fsencode(place))[:8]}"
