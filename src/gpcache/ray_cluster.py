"""Connects to the user's Ray cluster, or starts a small quiet one here and stops it again."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from gpcache.errors import DataError, GPCacheError
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
    ray = require("ray", "ray", purpose="Running on Ray")
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get(ADDRESS, "")
    if address:
        _join(ray, address)
    else:
        _start(ray, cpus)
    try:
        yield ray
    finally:
        ray.shutdown()


def _join(ray: ModuleType, address: str) -> None:
    try:
        _knock(address)
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"No Ray cluster could be joined at {ADDRESS}={address!r} ({reason}): mend the "
            f"address, or unset {ADDRESS} to compute on this machine."
        ) from None


def _knock(address: str) -> None:
    """See within seconds whether anybody is there; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():  # not "auto" or "local"
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


def _start(ray: ModuleType, cpus: int | None) -> None:
    # Read by the processes of the cluster: nothing that runs here reports to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise GPCacheError(f"Ray could not be started on this machine: {reason}") from None
