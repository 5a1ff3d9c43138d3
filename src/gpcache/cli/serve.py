"""`gpcache serve`: the page and the API, by default only for this machine."""

import os
import secrets
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option, echo, get_app_dir

from gpcache.cli.options import DeviceOption, EncoderOption, JsonOption, VerboseOption
from gpcache.cli.output import json_text, print_notices
from gpcache.support.names import printable

MODEL = "A model folder to start from, for example pets.gpc."
PORT = "The port; 0 takes a free one."
WORKSPACE = "Where photos and changes are kept."
HOST = "The address to listen on; 0.0.0.0 lets other machines of the network connect."
ENGINE = "Where photos are decoded and encoded: in this process, or by replicas."
REPLICAS = "Replicas of --engine ray. Default: one for 2 CPUs."
CERTIFICATE = "Use HTTPS with this certificate."
KEY = "The private key of the certificate."
# Packages of the extra `serve`.
NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
WorkspaceOption = Annotated[Path | None, Option("--workspace", "-w", metavar="DIR", help=WORKSPACE)]


def serve(
    model: Annotated[Path | None, Argument(metavar="MODEL", help=MODEL)] = None,
    workspace: WorkspaceOption = None,
    port: Annotated[int, Option(min=0, max=65535, metavar="N", help=PORT)] = 8765,
    host: Annotated[str, Option(metavar="ADDRESS", help=HOST)] = "127.0.0.1",
    certificate: Annotated[Path | None, Option(metavar="PEM", help=CERTIFICATE)] = None,
    key: Annotated[Path | None, Option(metavar="PEM", help=KEY)] = None,
    encoder: EncoderOption = "lite",
    device: DeviceOption = "auto",
    engine: Annotated[Literal["local", "ray"], Option(help=ENGINE)] = "local",
    replicas: Annotated[int | None, Option(min=1, metavar="N", help=REPLICAS)] = None,
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
    import asyncio  # a tenth of a second that --help need not wait for

    from gpcache.cluster.connection import connected
    from gpcache.errors import DataError
    from gpcache.support.extras import require

    if replicas is not None and engine == "local":
        raise DataError("--replicas needs --engine ray: give both, or neither.")
    if (certificate is None) != (key is None):
        raise DataError("HTTPS takes a certificate and its key: give --certificate and --key.")
    shared = host != "127.0.0.1"
    for module in (*NEEDED, *["segno"] * shared):
        require(module, "serve", purpose="gpcache serve")
    from gpcache.web.open_workspace import open_workspace
    from gpcache.web.ray_encoding import deployed
    from gpcache.web.server import bind, run

    folder = workspace or _own_folder(model)
    token = secrets.token_urlsafe(24)

    def started(_: object, address: str) -> None:
        page = f"{address}/?token={token}"
        facts = {"page": page, "address": address, "token": token, "workspace": str(folder)}
        if shared:
            _print_for_network(page, encrypted=certificate is not None)
        echo(json_text(facts) if json else page)
        echo(f"Workspace: {printable(str(folder))}. Press Ctrl+C to stop.", err=True)

    listener = bind(port, host)
    with connected() if engine == "ray" else nullcontext() as ray:
        opened = open_workspace(folder, model=model, encoder=encoder, device=device)
        print_notices(opened.notices)
        with nullcontext() if ray is None else deployed(ray, opened, replicas) as make_encoding:
            asyncio.run(run(opened, token, listener, started, make_encoding, certificate, key))


def _print_for_network(page: str, *, encrypted: bool) -> None:
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
    echo(who, err=True)


def _own_folder(model: Path | None) -> Path:
    """The default workspace of a model, which depends on the path of the model."""
    from gpcache.support.files import sha256

    root = Path(get_app_dir("gpcache")) / "workspaces"
    if model is None:
        return root / "default"
    place = model.resolve()
    return root / f"{place.name.removesuffix('.gpc')[:80]}-{sha256(os.fsencode(place))[:8]}"
