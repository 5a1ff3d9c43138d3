"""The engine `ray`: photos are decoded and encoded by replicas, a Ray Serve application.

One server, which owns the workspace, receives all requests. It asks a replica for each photo, and
another one if that replica dies before it has answered.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpcache.encoders import Encoder, load_same_encoder
from gpcache.errors import GPCacheError, ImageRefusedError
from gpcache.images.workers import MAX_WORKERS
from gpcache.support.extras import require
from gpcache.web import encoding
from gpcache.web.metrics import Metrics
from gpcache.web.workspace import Workspace
from gpcache.web.workspace_folder import EncodedPhoto

# Photos in progress for each replica; each may have the largest allowed size.
PHOTOS_EACH = 32
# Seconds to look for a live replica, to wait before asking another, and between two counts of live
# replicas.
PATIENCE = 30.0
PAUSE = 0.1
LOOK = 0.5
# Seconds between two checks of a replica, and for a check: a batch may take long on a CPU, and must
# not be mistaken for a hang.
CHECK = 2.0
CHECK_LIMIT = 120.0
# Ray Serve's settings must not be read by two threads at once.
STATUS_LOCK = threading.Lock()

logger = logging.getLogger(__name__)


class ReplicaAnswer(NamedTuple):
    """The features of a photo, or the error; Ray would wrap an exception in its own."""

    photo: tuple[EncodedPhoto, int] | None = None
    refused: str = ""
    failed: str = ""


class Replica:
    """Encodes photos in a process of Ray."""

    def __init__(self, name: str, fingerprint: str, device: str, views: int, workers: int) -> None:
        encoder = load_same_encoder(name, device=device, fingerprint=fingerprint)
        self._pipeline = encoding.Pipeline(encoder, views=views, workers=workers)
        size = encoder.preprocess.size
        self._grey = np.full((1, size, size, 3), 127, dtype=np.uint8)

    async def encode(self, content: bytes, learn: bool) -> ReplicaAnswer:
        """Decode and encode an image."""

        async def read() -> bytes:
            return content

        try:
            return ReplicaAnswer(await self._pipeline.encode(read, learn=learn))
        except ImageRefusedError as error:
            return ReplicaAnswer(refused=error.reason)
        except GPCacheError as error:
            return ReplicaAnswer(failed=str(error))

    async def check_health(self) -> None:
        """Encode a grey image: only this detects a failed driver or a hanging thread."""
        await self._pipeline.features(self._grey)


class RayEncoding(encoding.PhotoEncoding):
    """Asks the replicas of an application, and counts the live ones."""

    def __init__(
        self, metrics: Metrics, *, ray: ModuleType, serve: ModuleType, name: str, count: int
    ) -> None:
        super().__init__(metrics)
        self._ray, self._serve, self._name = ray.exceptions, serve, name
        self._handle = serve.get_app_handle(name)
        # Complete files in memory, here and in the replicas.
        self._ahead = asyncio.Semaphore(PHOTOS_EACH * count)
        self._up = count
        self._last_up = asyncio.get_running_loop().time()
        self._watching = asyncio.create_task(self._watch())

    @property
    def ready(self) -> bool:
        return self._up > 0

    async def encode(self, read: encoding.Reader, *, learn: bool = False) -> EncodedPhoto:
        async with self._ahead:
            outcome = await self._ask(await read(), learn)
        if outcome.refused:
            raise ImageRefusedError(outcome.refused)
        if outcome.photo is None:
            raise GPCacheError(outcome.failed)
        return self._counted(*outcome.photo)

    async def close(self) -> None:
        self._watching.cancel()

    async def _ask(self, content: bytes, learn: bool) -> ReplicaAnswer:
        """Ask until a replica answers, so that no photo is lost with a replica."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while True:
            try:
                return await self._ask_once(content, learn)
            except self._ray.RayTaskError:
                raise  # an error of ours, not of the replica
            except self._serve.exceptions.BackPressureError:
                raise encoding.BusyError("The replicas have too much to do") from None
            except (self._ray.RayError, self._serve.exceptions.RayServeException) as error:
                if loop.time() > end:
                    raise _no_replica() from None
                logger.warning(
                    "A replica was lost; its photo is sent to another one: %s", type(error).__name__
                )
            await asyncio.sleep(PAUSE)

    async def _ask_once(self, content: bytes, learn: bool) -> ReplicaAnswer:
        """The answer of one replica; raises an error if none is live for long."""
        call = asyncio.ensure_future(self._handle.encode.remote(content, learn))
        try:
            while not call.done():
                await asyncio.wait({call}, timeout=LOOK)
                if not call.done() and asyncio.get_running_loop().time() > self._last_up + PATIENCE:
                    raise _no_replica()
        finally:
            call.cancel()
        return ReplicaAnswer(*call.result())

    async def _watch(self) -> None:
        while True:
            self._up = await asyncio.to_thread(self._running)
            if self._up:
                self._last_up = asyncio.get_running_loop().time()
            await asyncio.sleep(LOOK)

    def _running(self) -> int:
        """The number of live replicas; 0 if Ray Serve does not say."""
        try:
            with STATUS_LOCK:
                deployments = _deployments(self._serve, self._name)
        except Exception as error:  # any error; the next check may succeed
            logger.warning("Ray Serve does not say which replicas are live: %s", error)
            return 0
        return sum(int(one.replica_states.get("RUNNING", 0)) for one in deployments)


def _no_replica() -> encoding.BusyError:
    return encoding.BusyError(f"No replica has answered for {PATIENCE:g} seconds")


def _deployments(serve: ModuleType, name: str) -> list[Any]:
    application = serve.status().applications.get(name)
    return [] if application is None else list(application.deployments.values())


@contextmanager
def deployed(
    ray: ModuleType, workspace: Workspace, count: int | None = None
) -> Iterator[encoding.MakeEncoding]:
    """Start `count` replicas on a connected Ray: one for every two CPUs, at least two."""
    serve = require("ray.serve", "ray", purpose="gpcache serve --engine ray")
    # It logs every start, and a dead replica once for each photo.
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    resources = ray.cluster_resources()
    cpus = int(resources.get("CPU", 1))
    count = count or max(2, cpus // 2)
    encoder = workspace.encoder
    options = _options(encoder, resources, count)
    wanted = count * options["ray_actor_options"]["num_cpus"]
    if wanted > (free := ray.available_resources().get("CPU", 0)):
        logger.warning("The replicas wait for %g CPUs of Ray, %g are free now.", wanted, free)
    application = serve.deployment(Replica, **options).bind(
        workspace.document.encoder,
        encoder.fingerprint,
        encoder.device.type,
        workspace.document.views,
        min(max(1, cpus // count), MAX_WORKERS),
    )
    # A cluster may serve other applications too.
    name = f"gpcache-{secrets.token_hex(8)}"
    # Without Ray's HTTP server, which holds a body in memory before it can be refused.
    serve.start(proxy_location="Disabled")
    try:
        try:
            serve.run(application, name=name, route_prefix=None)
        except RuntimeError as error:
            reason = _failure(_deployments(serve, name), error)
            raise GPCacheError(f"The replicas do not start: {reason}") from None
        yield partial(RayEncoding, ray=ray, serve=serve, name=name, count=count)
    finally:
        serve.delete(name)


def _options(encoder: Encoder, resources: dict[str, float], count: int) -> dict[str, Any]:
    gpus = resources.get("GPU", 0) if encoder.device.type == "cuda" else 0
    return {
        "num_replicas": count,
        # One replica can take the photos of two, while the other one restarts.
        "max_ongoing_requests": 2 * PHOTOS_EACH,
        "max_queued_requests": PHOTOS_EACH * count,
        "health_check_period_s": CHECK,
        "health_check_timeout_s": CHECK_LIMIT,
        "graceful_shutdown_timeout_s": 5,
        # Only at the start: later, a failed replica is restarted until it runs.
        "max_constructor_retry_count": 1,
        "ray_actor_options": {
            "num_cpus": _share(resources.get("CPU", 1), count),
            "num_gpus": _share(gpus, count) if gpus else 0,
        },
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
    }


def _share(units: float, count: int) -> float:
    """The share of whole units for each of `count`, so that all fit; at most one."""
    together = math.ceil(count / max(1, int(units)))
    return math.floor(10_000 / together) / 10_000  # Ray counts in ten-thousandths


def _failure(deployments: Sequence[Any], error: Exception) -> str:
    """Why replicas did not start: Serve's message ends with the traceback of the last one."""
    message = "\n".join(one.message for one in deployments).strip() or str(error)
    last = message.splitlines()[-1].strip()
    return last.partition(": ")[2] if last.startswith(GPCacheError.__module__) else last
