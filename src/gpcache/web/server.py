"""Runs the application, only for this machine by default, with deadlines for slow clients."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from errno import EADDRINUSE
from pathlib import Path
from typing import Any, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpcache.errors import DataError
from gpcache.web.app import create_app
from gpcache.web.encoding import MakeEncoding
from gpcache.web.middleware import SECURITY_HEADERS
from gpcache.web.workspace import Workspace

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

HOST = "127.0.0.1"
MAX_HEAD = 32_768
MAX_CONNECTIONS = 512
STOP_SECONDS = 10
# For clients that do not read the answer.
READ_SECONDS = 30
# Bytes per second of a body that is large but not slow: it may continue after its deadline.
LARGE_RATE = 1_000_000


class DeadlineProtocol(H11Protocol):
    """uvicorn's protocol, with limits that uvicorn does not have.

    A head and a body must arrive in time, and there are never more connections than this process
    has descriptors for: asyncio would log a traceback for each further one. (uvicorn's
    limit_concurrency counts requests, and ignores connections without one.)
    """

    head_seconds = 10.0
    body_seconds = 30.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._awaited: tuple[object, ...] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            transport.abort()
        else:
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_deadline()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, which never reaches the application, in our format."""
        headers = {"content-type": "application/json", "connection": "close"} | SECURITY_HEADERS
        start = h11.Response(status_code=400, headers=list(headers.items()), reason="Bad Request")
        body = h11.Data(data=json.dumps({"error": msg}).encode())
        for event in (start, body, h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _set_deadline(self) -> None:
        """Set the deadline for what the client sends next: a head, a body or a new request."""
        state, begun = self.conn.their_state, bool(self.conn.trailing_data[0])
        awaited = (state, begun, self.cycle) if state in (h11.IDLE, h11.SEND_BODY) else None
        if awaited == self._awaited:
            return
        self._awaited, self._received = awaited, 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if awaited is not None:
            between = state is h11.IDLE and not begun and self.cycle is not None
            head = self.timeout_keep_alive if between else self.head_seconds
            seconds = self.body_seconds if state is h11.SEND_BODY else head
            self._deadline = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        large = self._received > LARGE_RATE * self.body_seconds
        if large or self.flow.read_paused:  # the client is not slow
            self._received = 0
            self._deadline = self.loop.call_later(self.body_seconds, self._give_up)
        else:
            self.transport.abort()


def max_connections() -> int:
    """The largest number of connections: half of the descriptors."""
    if resource is None:
        return MAX_CONNECTIONS
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if descriptors < 0 else min(MAX_CONNECTIONS, descriptors // 2)


class Certificate(NamedTuple):
    """The files of a certificate for HTTPS and of its private key."""

    file: Path
    key: Path


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
    certificate: Certificate | None = None,
) -> None:
    """Serve until interrupted; `started` gets the server and its address once it answers.

    `make_encoding` decodes and encodes photos; without it this process does. With a `certificate`
    it uses HTTPS.
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
        ssl_certfile=None if certificate is None else certificate.file,
        ssl_keyfile=None if certificate is None else certificate.key,
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
