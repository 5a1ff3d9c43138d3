"""The operations behind requests: photos are encoded in parallel, changes made one by one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, Request

from gpcache.errors import GPCacheError, ImageRefusedError
from gpcache.images.records import Refused
from gpcache.images.workers import small_picture
from gpcache.model.classifier import REJECT
from gpcache.web.encoding import LocalEncoding, MakeEncoding, PhotoEncoding
from gpcache.web.learner import Answer
from gpcache.web.metrics import Metrics
from gpcache.web.repair import original
from gpcache.web.test_set import TestSet
from gpcache.web.uploads import Upload
from gpcache.web.workspace import Edit, Workspace, split_refused
from gpcache.web.workspace_contents import Photo
from gpcache.web.workspace_folder import EncodedPhoto

Result = TypeVar("Result")

# Pixels: the photos of most cameras are shown in full.
LARGE_SIDE = 4_096

logger = logging.getLogger(__name__)


class MissingOriginalError(GPCacheError):
    """Only the small picture of a photo exists."""

    status = 404


class Service:
    """The workspace behind the API; made inside the event loop that uses it."""

    def __init__(self, workspace: Workspace, make_encoding: MakeEncoding | None = None) -> None:
        self.workspace = workspace
        self.test_set = TestSet()
        self.metrics = Metrics()
        local = partial(LocalEncoding, workspace.encoder, views=workspace.document.views)
        self.encoding: PhotoEncoding = (make_encoding or local)(self.metrics)
        # One thread, so that two tabs cannot change the model at the same time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        # Originals that are read and decoded at once, one by one in a process of their own.
        self._picture_room = asyncio.Semaphore(2)
        self._refit: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        if workspace.document.templates is not None:
            # Loading a text encoder takes seconds: start before the first class needs it.
            self._warming = asyncio.create_task(asyncio.to_thread(workspace.learner.texts.warm))
        self._refit_if_outgrown()  # a stop may have interrupted this

    @property
    def ready(self) -> bool:
        """Whether there is a model, and photos can be encoded."""
        return self.workspace.learner.model is not None and self.encoding.ready

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function on the workspace or its model, after earlier calls."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def close(self) -> None:
        """Finish the current change and release the workspace."""
        for task in (self._refit, self._warming):
            if task is not None:
                task.cancel()
        await self.encoding.close()
        await asyncio.to_thread(self._thread.shutdown)
        self.workspace.folder.close()

    async def change(
        self, edit: Edit, what: str, revision: int | None, drop: str = ""
    ) -> dict[str, Any]:
        """Edit the contents; returns the new state."""
        state = await self.run(self.workspace.change, edit, what, revision, drop)
        self._refit_if_outgrown()
        return state

    async def add(
        self, uploads: Sequence[Upload], label: str, revision: int | None, drop: str = ""
    ) -> dict[str, Any]:
        """Add photos to a class; returns what was added and refused, and the state."""
        read = await self.read(uploads, keep=True)
        added = await self.run(self.workspace.add, read, label, revision, drop)
        self._refit_if_outgrown()
        return added

    async def read(
        self, uploads: Sequence[Upload], *, keep: bool = False, picture: bool = False
    ) -> list[EncodedPhoto | Refused]:
        """Decode and encode uploads, in their order; `keep` stores them.

        `picture` also makes thumbnails, if training images and queries have the same single view.
        """
        learn = keep or (picture and not self.workspace.document.views)
        return list(await asyncio.gather(*(self._read(one, keep, learn) for one in uploads)))

    async def answer(
        self,
        uploads: Sequence[Upload],
        *,
        reject: float = REJECT,
        why: int = 0,
        error: float = 0.0,
    ) -> list[Answer | Refused]:
        """The model's answer for each upload that can be read, with options of the learner."""
        read = await self.read(uploads)
        good, refused = split_refused(read)
        if not good:
            return list(refused)

        def work() -> list[Answer]:
            rows = np.stack([photo.features for photo in good])
            names = [photo.name for photo in good]
            learner = self.workspace.learner
            return learner.answer(rows, names, reject=reject, why=why, error=error)

        answered = iter(await self.run(work))
        return [one if isinstance(one, Refused) else next(answered) for one in read]

    async def large_picture(self, photo: Photo) -> bytes:
        """The original of a photo as a JPEG without its metadata, decoded under limits."""
        folder, document = self.workspace.folder, self.workspace.document
        content = await asyncio.to_thread(original, folder, document, photo)
        if content is None:
            raise MissingOriginalError(
                f"The original of {photo.name!r} is missing or damaged: only its small "
                "picture is left."
            )
        async with self._picture_room:
            return await asyncio.to_thread(small_picture, content, LARGE_SIDE)

    async def _read(self, upload: Upload, keep: bool, learn: bool) -> EncodedPhoto | Refused:
        if upload.refused is not None:
            return Refused(upload.name, upload.refused)
        try:
            photo = await self.encoding.encode(upload.read, learn=learn)
        except ImageRefusedError as error:
            return Refused(upload.name, error.reason)
        if keep:
            folder = self.workspace.folder
            await asyncio.to_thread(folder.put_original, await upload.read(), photo.hash)
            await asyncio.to_thread(folder.put, photo)
        return photo._replace(name=upload.name)

    def _refit_if_outgrown(self) -> None:
        """Choose hyper-parameters again in the background, if the model has changed a lot."""
        idle = self._refit is None or self._refit.done()
        if idle and self.workspace.learner.outgrown:
            self._refit = asyncio.create_task(self._refit_now())

    async def _refit_now(self) -> None:
        workspace = self.workspace
        # Repeat if photos that were added meanwhile have outgrown the new choice, too.
        while workspace.learner.outgrown:
            refitted = workspace.learner.blank()
            try:
                await asyncio.to_thread(refitted.fit, workspace.document.contents)
                await self.run(workspace.replace_learner, refitted)
            except GPCacheError as error:
                logger.warning("The hyper-parameters were not chosen again: %s", error)
                return


async def _service_of(request: Request) -> Service:  # FastAPI calls others in a thread
    service: Service = request.app.state.service
    return service


# The dependency with which a route gets the service of its application.
CurrentService = Annotated[Service, Depends(_service_of)]
