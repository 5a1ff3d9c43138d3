"""Photos of many requests through the decoders and, in shared batches, through the encoder.

Every step is bounded: what is admitted, what is decoded at once, what waits for the encoder.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders import Encoder
from gpcache.errors import GPCacheError
from gpcache.files import sha256
from gpcache.images.augment import Views
from gpcache.images.thumbnails import thumbnail
from gpcache.images.workers import MAX_WORKERS, DecodePool
from gpcache.web.metrics import Metrics

# A batch waits so long for company, in seconds.
MAX_WAIT = 0.005
# Requests with photos that may be at work at once; the others are told to come back.
MAX_WAITING = 64
RETRY_AFTER = 1

Rows = NDArray[np.float32]
Reader = Callable[[], Awaitable[bytes]]


class BusyError(GPCacheError):
    """There is more to do than can be done soon; the client should come back."""


class _Job(NamedTuple):
    pixels: NDArray[np.uint8]
    views: bool
    done: asyncio.Future[Rows]


class Encoding:
    """Bytes → features (dim,), batched across requests; lives in one event loop."""

    def __init__(self, encoder: Encoder, metrics: Metrics, *, views: int = 0) -> None:
        self._encoder = encoder
        self._metrics = metrics
        self._views = Views(views) if views else None
        workers = min(os.cpu_count() or 1, MAX_WORKERS)
        self._pool = DecodePool(encoder.preprocess, workers=workers)
        self._pools = [self._pool]
        self._learn_pool = self._pool
        if self._views is not None:
            self._learn_pool = DecodePool(encoder.preprocess, self._views, workers=workers)
            self._pools.append(self._learn_pool)
        # Whole files in memory: as many as a pool takes without making the event loop wait.
        self._decoding = asyncio.Semaphore(2 * workers)
        # Decoded images that wait for the encoder.
        self._ahead = asyncio.Semaphore(4 * encoder.batch_size)
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue(2 * encoder.batch_size)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._task = asyncio.create_task(self._run())
        self._waiting = 0

    def busy(self) -> str:
        """Why there is no place for another request; nothing where there is one."""
        if self._waiting < MAX_WAITING:
            return ""
        return (
            f"The server is busy with {self._waiting} requests: try again in {RETRY_AFTER} second."
        )

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """A place for one request, or BusyError.

        Its body must be here already: who sends slowly would take the place from others.
        """
        if told := self.busy():
            self._metrics.turned_away()
            raise BusyError(told)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    @property
    def waiting(self) -> int:
        """Requests with photos that are at work."""
        return self._waiting

    async def features(self, read: Reader, *, learn: bool = False) -> tuple[str, Rows, bytes]:
        """The hash of an image's content, its features (dim,), and with `learn` a small picture.

        `read` is called when there is room for the content. `learn` takes the views that examples
        are made of.
        """
        pool, picture = self._learn_pool if learn else self._pool, b""
        async with self._ahead:
            async with self._decoding:
                content = await read()
                key = sha256(content)
                prepared = await asyncio.wrap_future(pool.submit(content, key))
                if learn:
                    picture = await asyncio.to_thread(thumbnail, content)
                del content
            done: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()
            await self._jobs.put(_Job(prepared.pixels, learn and self._views is not None, done))
            return key, await done, picture

    async def close(self) -> None:
        """End the processes and threads; what still waits is refused."""
        self._task.cancel()
        while not self._jobs.empty():
            self._jobs.get_nowait().done.cancel()
        for pool in self._pools:
            await asyncio.to_thread(pool.close)
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._collect()
            # Who has gone away needs no answer.
            batch = [job for job in batch if not job.done.done()]
            for part in ([j for j in batch if not j.views], [j for j in batch if j.views]):
                if not part:
                    continue
                self._metrics.batch(len(part))
                try:
                    rows = await loop.run_in_executor(self._thread, self._encode, part)
                except Exception as error:  # it belongs to the requests, not to the loop
                    for job in part:
                        if not job.done.done():
                            job.done.set_exception(error)
                    continue
                for job, row in zip(part, rows, strict=True):
                    if not job.done.done():
                        job.done.set_result(row)

    async def _collect(self) -> list[_Job]:
        """The first job, and those that come with it or soon after."""
        batch = [await self._jobs.get()]
        end = asyncio.get_running_loop().time() + MAX_WAIT
        while len(batch) < self._encoder.batch_size:
            try:
                async with asyncio.timeout_at(end):
                    batch.append(await self._jobs.get())
            except TimeoutError:
                break
        return batch

    def _encode(self, batch: list[_Job]) -> Rows:
        pixels = np.stack([job.pixels for job in batch])
        if not batch[0].views:
            return self._encoder.encode_pixels(pixels[:, 0])
        return self._encoder.encode_views(pixels, average=True)
