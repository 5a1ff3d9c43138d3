"""Runs the application on this machine alone, under clocks that slow clients cannot stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from gpcache.errors import DataError
from gpcache.web.app import create_app
from gpcache.web.batching import Engine
from gpcache.web.opening import Opened
from gpcache.web.slow_clients import GuardedProtocol

HOST = "127.0.0.1"
MAX_HEADERS = 32_768
STOP_SECONDS = 10


def bind(port: int) -> socket.socket:
    """A socket on 127.0.0.1; port 0 takes any that is free."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((HOST, port))
    except OSError as error:
        opened.close()
        raise DataError(
            f"Port {port} cannot be used ({error.strerror}): give another with --port, 0 for any."
        ) from None
    return opened


async def run(
    opened: Opened,
    token: str,
    listener: socket.socket,
    started: Callable[[uvicorn.Server, str], None],
    engine: Engine | None = None,
) -> None:
    """Serve until interrupted; `started` gets the server and its address once it answers.

    `engine` decodes and encodes photos, without one this process does.
    """
    config = uvicorn.Config(
        create_app(opened, token, engine),
        http=GuardedProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEADERS,
        backlog=2048,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0.01)
    if server.started:
        started(server, f"http://{HOST}:{listener.getsockname()[1]}")
    await task
