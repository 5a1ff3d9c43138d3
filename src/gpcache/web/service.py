"""What requests ask for: photos are encoded side by side, changes made one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import GPCacheError, ImageRefusedError
from gpcache.images.records import Refused
from gpcache.web.encoding import LocalEncoding, MakeEncoding, PhotoEncoding
from gpcache.web.learner import Answer
from gpcache.web.metrics import Metrics
from gpcache.web.open_workspace import OpenWorkspace
from gpcache.web.uploads import Upload
from gpcache.web.workspace_editor import Edit, Editor, ReadPhoto
from gpcache.web.workspace_folder import StoredPhoto

Rows = NDArray[np.float32]
Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class AnsweredPhoto(NamedTuple):
    """A photo, its answer, the model's classes, and the model's photos by row number."""

    photo: ReadPhoto
    answer: Answer
    classes: list[str]
    learned: list[tuple[str, str, str]]


class Service:
    """The workspace behind the API; made inside the event loop that uses it."""

    def __init__(self, opened: OpenWorkspace, make_encoding: MakeEncoding | None = None) -> None:
        self.opened = opened
        self.editor = Editor(opened)
        self.metrics = Metrics()
        self.encoding: PhotoEncoding
        if make_encoding is None:
            views = opened.document.views
            self.encoding = LocalEncoding(opened.encoder, self.metrics, views=views)
        else:
            self.encoding = make_encoding(self.metrics)
        # One thread, so that two tabs cannot change the model at the same time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._refit: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        if opened.document.templates is not None:
            # Loading a text encoder takes seconds, which the first class need not wait for.
            self._warming = asyncio.create_task(asyncio.to_thread(opened.texts.warm))

    @property
    def ready(self) -> bool:
        """Whether there is a model to ask, and somebody to encode what it is asked about."""
        return self.editor.learner.model is not None and self.encoding.ready

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do something with the workspace or its model, after what was asked before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def close(self) -> None:
        """Finish what is being changed and let the workspace go."""
        for task in (self._refit, self._warming):
            if task is not None:
                task.cancel()
        await self.encoding.close()
        await asyncio.to_thread(self._thread.shutdown)
        self.opened.folder.close()

    async def change(self, edit: Edit, what: str, revision: int | None) -> dict[str, Any]:
        """Edit the contents; the state afterwards."""
        state = await self.run(self.editor.change, edit, what, revision)
        self._refit_if_outgrown()
        return state

    async def add(
        self, uploads: Sequence[Upload], label: str, revision: int | None
    ) -> dict[str, Any]:
        """Learn photos of a class; what was added, what was refused, and the state."""
        good, refused = _parted(await self.read(uploads, keep=True))
        added = await self.run(self.editor.add, good, refused, label, revision)
        self._refit_if_outgrown()
        return added

    async def fill_pool(self, uploads: Sequence[Upload]) -> dict[str, Any]:
        """Keep photos without a label; how many there are, and what was refused."""
        good, refused = _parted(await self.read(uploads, keep=True))
        pool = await self.run(self.editor.fill_pool, good)
        return {"pool": pool, "refused": [asdict(one) for one in refused]}

    async def read(
        self, uploads: Sequence[Upload], *, keep: bool = False
    ) -> list[ReadPhoto | Refused]:
        """Decode and encode uploads, in their order; `keep` stores them."""
        return list(await asyncio.gather(*(self._read(one, keep) for one in uploads)))

    async def answer(
        self, uploads: Sequence[Upload], *, why: int = 0, error: float = 0.0
    ) -> list[AnsweredPhoto | Refused]:
        """The model's answer for each upload that can be read.

        `why` is the number of photos that explain it, `error` that of the plausible sets; 0 leaves
        them out.
        """
        read = await self.read(uploads)
        good, _ = _parted(read)
        if not good:
            return list(_parted(read)[1])

        def work() -> list[AnsweredPhoto]:
            learner = self.editor.learner
            classes = [str(name) for name in learner.ready().classes_]
            rows = np.stack([photo.features for photo in good])
            answers = learner.answer(rows, why=why, error=error)
            learned = [(photo.id, photo.name, str(photo.label)) for photo in learner.photos]
            pairs = zip(good, answers, strict=True)
            return [AnsweredPhoto(photo, answer, classes, learned) for photo, answer in pairs]

        answered = iter(await self.run(work))
        return [one if isinstance(one, Refused) else next(answered) for one in read]

    async def by_text(self, row: Rows) -> tuple[list[str], NDArray[np.float64]]:
        """Classes, and the probabilities (c,) that their text alone gives a row."""

        def work() -> tuple[list[str], NDArray[np.float64]]:
            contents = self.editor.document.contents
            classes, found = self.editor.learner.by_text(row[None], contents)
            return classes, found[0]

        return await self.run(work)

    async def _read(self, upload: Upload, keep: bool) -> ReadPhoto | Refused:
        if upload.refused is not None:
            return Refused(upload.name, upload.refused)
        try:
            key, features, thumbnail = await self.encoding.encode(upload.read, learn=keep)
        except ImageRefusedError as error:
            return Refused(upload.name, error.reason)
        if keep:
            stored = StoredPhoto(features, thumbnail)
            await asyncio.to_thread(self.opened.folder.put, key, stored)
        return ReadPhoto(upload.name, key, features)

    def _refit_if_outgrown(self) -> None:
        """Choose hyper-parameters again beside the model in use, if it has changed a lot."""
        idle = self._refit is None or self._refit.done()
        if idle and self.editor.learner.outgrown:
            self._refit = asyncio.create_task(self._refit_now())

    async def _refit_now(self) -> None:
        # Again where photos that came meanwhile have outgrown the new choice, too.
        while self.editor.learner.outgrown:
            refitted = self.opened.new_learner()
            try:
                await asyncio.to_thread(refitted.fit, self.editor.document.contents)
                await self.run(self.editor.replace_learner, refitted)
            except GPCacheError as error:
                logger.warning("The hyper-parameters were not chosen again: %s", error)
                return


def _parted(read: Sequence[ReadPhoto | Refused]) -> tuple[list[ReadPhoto], list[Refused]]:
    return (
        [one for one in read if isinstance(one, ReadPhoto)],
        [one for one in read if isinstance(one, Refused)],
    )
