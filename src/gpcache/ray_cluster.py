"""Connects to the user's Ray cluster, or starts a small quiet one here and stops it again."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from gpcache.errors import GPCacheError
from gpcache.extras import require

ADDRESS = "RAY_ADDRESS"
# Seconds that a cluster has to answer its port.
PATIENCE = 5


@contextmanager
def connected(cpus: int | None = None) -> Iterator[ModuleType]:
    """Ray, connected: to the cluster of RAY_ADDRESS, else to a local one of `cpus` (all of them).

    What this call started or joined is left again at the end; a connection that was there before
    is used and stays.
    """
    address = os.environ.get(ADDRESS, "")
    _settle(address)
    ray = require("ray", "ray", purpose="Running on Ray")
    if ray.is_initialized():
        yield ray
        return
    own = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    try:
        _knock(address)
        ray.init(
            **({"address": address} if address else own),
            logging_level=logging.CRITICAL,
            log_to_driver=False,
        )
    except Exception as error:  # of many kinds, from a wrong address to a full disk
        raise GPCacheError(_sentence(error, address)) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _settle(address: str) -> None:
    """What Ray and the processes that it starts read from the environment."""
    # Nothing that runs here reports to anybody, or prints what it recovers from.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if not address and "ray" not in sys.modules:
        # A local cluster listens on every network, and whoever reaches it can run programs in it:
        # it asks for a token that only its own processes have. Ray reads this when it is imported.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _knock(address: str) -> None:
    """See within seconds whether anybody is there; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():  # not "auto" or "local"
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


def _sentence(error: Exception, address: str) -> str:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if not address:
        return f"Ray could not be started on this machine: {reason}."
    return (
        f"No Ray cluster could be joined at {ADDRESS}={address!r} ({reason}): mend the address, or "
        f"unset {ADDRESS} to compute on this machine."
    )
