"""Turns the photos of many requests into features: decodes in parallel, encodes in batches.

Every step has a limit: admitted requests, photos in decoding, photos that wait for the encoder.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders import Encoder
from gpcache.encoders.vectors import Features
from gpcache.errors import GPCacheError
from gpcache.images.augment import Views
from gpcache.images.worker import THUMBNAIL
from gpcache.images.workers import MAX_WORKERS, DecodePool
from gpcache.support.cores import usable_cores
from gpcache.support.files import sha256
from gpcache.web.metrics import Metrics
from gpcache.web.workspace_folder import EncodedPhoto

# Seconds that a batch waits for more images.
MAX_WAIT = 0.005
# Requests with photos in progress; while there are so many, others get a 429.
MAX_WAITING = 64
RETRY_AFTER = 1

Pixels = NDArray[np.uint8]
Reader = Callable[[], Awaitable[bytes]]


class BusyError(GPCacheError):
    """The server is overloaded."""

    status = 429

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}: try again in {RETRY_AFTER} second.")


class PhotoEncoding(ABC):
    """Encodes photos for the requests that it admits; made inside the event loop that uses it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.waiting = 0

    def busy(self, *, received: bool = False) -> BusyError | None:
        """The error of a request that gets no place, which is counted; None if there is one.

        A request that is `received` found a place when it began. There are twice as many places for
        these, because refusing them now would waste the work on their bodies.
        """
        if self.waiting < (2 * MAX_WAITING if received else MAX_WAITING):
            return None
        self._metrics.turned_away.inc()
        return BusyError(f"The server is busy with {self.waiting} requests")

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """A place for one request, or BusyError.

        Its body must be complete: a slow client would otherwise block others.
        """
        if (error := self.busy(received=True)) is not None:
            raise error
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def _counted(self, photo: EncodedPhoto, batch: int) -> EncodedPhoto:
        """The photo, after its batch was added to the metrics."""
        if batch:
            self._metrics.batches.observe(batch)
        return photo

    @property
    def ready(self) -> bool:
        """Whether photos can be encoded."""
        return True

    @abstractmethod
    async def encode(self, read: Reader, *, learn: bool = False) -> EncodedPhoto:
        """Decode and encode an image; `read` is called when there is memory for its content.

        `learn` uses the views of training images, and makes a thumbnail.
        """

    @abstractmethod
    async def close(self) -> None:
        """End its processes; waiting photos are refused."""


MakeEncoding = Callable[[Metrics], PhotoEncoding]


class _Job(NamedTuple):
    pixels: Pixels
    done: asyncio.Future[tuple[Features, int]]


class Pipeline:
    """Decoding processes and an encoder, batched across requests.

    Results come with the size of their batch; 0 for all but the first of a batch.
    """

    def __init__(self, encoder: Encoder, *, views: int, workers: int) -> None:
        self._encoder = encoder
        self._pool = self._learn_pool = DecodePool(encoder.preprocess, workers=workers)
        if views:
            self._learn_pool = DecodePool(encoder.preprocess, Views(views), workers=workers)
        # As many files in memory as the pool accepts without blocking the event loop.
        self._room = asyncio.Semaphore(2 * workers)
        self._decoding = 0
        # Decoded images that wait for the encoder.
        self._ahead = asyncio.Semaphore(4 * encoder.batch_size)
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue(2 * encoder.batch_size)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._task = asyncio.create_task(self._run())

    async def encode(self, read: Reader, *, learn: bool) -> tuple[EncodedPhoto, int]:
        """Decode and encode an image, as `PhotoEncoding.encode` does."""
        async with self._ahead:
            self._decoding += 1
            try:
                async with self._room:
                    content = await read()
                    key, pool = sha256(content), self._learn_pool if learn else self._pool
                    decoded = pool.submit(content, key, thumbnail=THUMBNAIL * learn)
                    image = await asyncio.wrap_future(decoded)
            finally:
                self._decoding -= 1
            features, batch = await self.features(image.pixels)
            return EncodedPhoto(key, features, image.thumbnail), batch

    async def features(self, pixels: Pixels) -> tuple[Features, int]:
        """The features (dim,) of a decoded image (v, size, size, 3)."""
        job = _Job(pixels, asyncio.get_running_loop().create_future())
        await self._jobs.put(job)
        return await job.done

    async def close(self) -> None:
        """End the processes; waiting photos are refused."""
        self._task.cancel()
        while not self._jobs.empty():
            self._jobs.get_nowait().done.cancel()
        for pool in (self._pool, self._learn_pool):
            await asyncio.to_thread(pool.close)
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # A request that was cancelled needs no answer.
            batch = [job for job in await self._collect() if not job.done.done()]
            if not batch:
                continue
            images = [job.pixels for job in batch]
            try:
                rows = await loop.run_in_executor(self._thread, encode_batch, self._encoder, images)
            except Exception as error:  # the error belongs to the requests, not to the loop
                for job in batch:
                    if not job.done.done():
                        job.done.set_exception(error)
                continue
            size = len(batch)
            for job, row in zip(batch, rows, strict=True):
                if not job.done.done():
                    job.done.set_result((row, size))
                    size = 0

    async def _collect(self) -> list[_Job]:
        """The first job, and those that arrive with it or soon after."""
        batch = [await self._jobs.get()]
        end = asyncio.get_running_loop().time() + MAX_WAIT
        while len(batch) < self._encoder.batch_size and (self._decoding or self._jobs.qsize()):
            try:
                async with asyncio.timeout_at(end):
                    batch.append(await self._jobs.get())
            except TimeoutError:
                break
        return batch


def encode_batch(encoder: Encoder, images: Sequence[Pixels]) -> Features:
    """Features (n, dim) of images (v, size, size, 3), some of which may have more views."""
    rows = np.empty((len(images), encoder.dim), dtype=np.float32)
    for views in {len(image) for image in images}:
        chosen = [row for row, image in enumerate(images) if len(image) == views]
        pixels = np.stack([images[row] for row in chosen])
        # The mean of one view is that view.
        rows[chosen] = encoder.encode_views(pixels, average=True)
    return rows


class LocalEncoding(PhotoEncoding):
    """Encodes photos in this server."""

    def __init__(self, encoder: Encoder, metrics: Metrics, *, views: int = 0) -> None:
        super().__init__(metrics)
        workers = min(usable_cores(), MAX_WORKERS)
        self._pipeline = Pipeline(encoder, views=views, workers=workers)

    async def encode(self, read: Reader, *, learn: bool = False) -> EncodedPhoto:
        return self._counted(*await self._pipeline.encode(read, learn=learn))

    async def close(self) -> None:
        await self._pipeline.close()
