"""Runs the application, only for this machine by default."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from errno import EADDRINUSE
from pathlib import Path

import uvicorn

from gpcache.errors import DataError
from gpcache.web.app import create_app
from gpcache.web.encoding import MakeEncoding
from gpcache.web.protocol import DeadlineProtocol
from gpcache.web.workspace import Workspace

HOST = "127.0.0.1"
MAX_HEAD = 32_768
STOP_SECONDS = 10
# For clients that do not read the answer.
READ_SECONDS = 30


def network_address(host: str) -> str:
    """The address by which other machines reach this one; no packet is sent to find it."""
    if host != "0.0.0.0":
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
        except OSError:
            return HOST
        return str(probe.getsockname()[0])


def bind(port: int, host: str = HOST) -> socket.socket:
    """A socket on an IPv4 address; port 0 takes any. Connections inherit its options."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Otherwise the second half of an answer waits 40 ms for an acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000 * READ_SECONDS)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if host != HOST and not isinstance(error, PermissionError) and error.errno != EADDRINUSE:
            raise DataError(
                f"The address {host!r} does not belong to this machine ({error.strerror}): give "
                "--host 0.0.0.0 for all of its addresses."
            ) from None
        raise DataError(
            f"Port {port} cannot be used ({error.strerror}): give another with --port, 0 for any."
        ) from None
    return listener


async def run(
    workspace: Workspace,
    token: str,
    listener: socket.socket,
    started: Callable[[uvicorn.Server, str], None],
    make_encoding: MakeEncoding | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
) -> None:
    """Serve until interrupted; `started` gets the server and its address once it answers.

    `make_encoding` decodes and encodes photos; without it this process does. With the
    files of a `certificate` and its private `key` it uses HTTPS.
    """
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        create_app(workspace, token, make_encoding, sharing=host != HOST),
        http=DeadlineProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEAD,
        # asyncio accepts this many connections at once, before the protocol can count them.
        backlog=64,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise DataError(
            f"The certificate and its key cannot be used ({error}): give two PEM files that belong "
            "together."
        ) from None
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0.01)
    if server.started:
        scheme = "http" if certificate is None else "https"
        started(server, f"{scheme}://{network_address(host)}:{port}")
    await task
