"""Connects to the user's Ray cluster, or starts a local one and stops it again."""

import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from gpcache.errors import GPCacheError
from gpcache.support.extras import require

ADDRESS = "RAY_ADDRESS"
# Seconds that a cluster has to answer its port.
PATIENCE = 5


@contextmanager
def connected(cpus: int | None = None) -> Iterator[ModuleType]:
    """Ray, connected: to the cluster of RAY_ADDRESS, else to a local one of `cpus` (all of them).

    At the end it disconnects, and stops the cluster that it started. An earlier connection is used
    and stays open.
    """
    address = os.environ.get(ADDRESS, "")
    _set_environment(address)
    ray = require("ray", "ray", purpose="Running on Ray")
    if ray.is_initialized():
        yield ray
        return
    try:
        _require_listener(address)
        with _no_dashboard() as refused:
            own = {"address": "local", "num_cpus": cpus, **refused}
            ray.init(
                **({"address": address} if address else own),
                logging_level=logging.CRITICAL,
                log_to_driver=False,
            )
    except Exception as error:  # of many kinds, from a wrong address to a full disk
        raise GPCacheError(_failure(error, address)) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _set_environment(address: str) -> None:
    """Set the environment variables that Ray and its processes read."""
    # Ray would print what it recovers from; the second setting keeps that out of stdout.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    if not address and "ray" not in sys.modules:
        # Ray reads these when it is imported. The first keeps a local cluster on 127.0.0.1, on
        # every system; otherwise it listens on the network, and tries 8.8.8.8 to find its address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # Whoever reaches a cluster can run programs in it: it asks for a token that only its own
        # processes have.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@contextmanager
def _no_dashboard() -> Iterator[dict[str, Any]]:
    """Options of `ray.init` that start a local cluster without the dashboard's process.

    Without its page that process still asks the network which cloud this machine belongs to, even
    when usage reports are off. If its port is taken, Ray continues without it.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield {
            "include_dashboard": False,
            "dashboard_host": "127.0.0.1",
            "dashboard_port": taken.getsockname()[1],
        }


def _require_listener(address: str) -> None:
    """Raise within seconds if nothing listens at the address; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():  # not "auto" or "local"
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


def _failure(error: Exception, address: str) -> str:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if not address:
        return f"Ray could not be started on this machine: {reason}."
    return (
        f"No Ray cluster could be joined at {ADDRESS}={address!r} ({reason}): correct the address, "
        f"or unset {ADDRESS} to compute on this machine."
    )


def reason_of(error: BaseException) -> str:
    """One line of Ray's message: the first, or the last if it shows a worker's traceback."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    trace = any(line.startswith('  File "') for line in lines)
    return lines[-1 if trace else 0].strip().rstrip(".")
