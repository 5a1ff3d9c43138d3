"""/v1/batch: many photos to one table, in requests of as many as a request may bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from gpcache.images.records import Refused
from gpcache.support.files import sha256
from gpcache.web import schemas
from gpcache.web.batches import Batches, Line, latest
from gpcache.web.editor import Read
from gpcache.web.predict_routes import REJECT, Answered, told
from gpcache.web.service import Service
from gpcache.web.uploads import Upload, received

MEDIA = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


def batch_routes(service: Service) -> APIRouter:
    """The routes that begin, feed and finish batches."""
    routes = APIRouter(prefix="/v1/batch", tags=["batch"], responses=schemas.PROBLEMS)
    batches = Batches(service.opened.workspace.batches)

    async def progress(key: str) -> dict[str, Any]:
        form, lines = await service.run(batches.read, key)
        rows = latest(lines)
        refused = sum("error" in row for row in rows)
        return {"id": key, "format": form, "done": len(rows), "refused": refused}

    @routes.post("", response_model=schemas.BatchState)
    async def begin(body: schemas.NewBatch) -> Any:
        """Begin a table."""
        return await progress(await service.run(batches.begin, body.format))

    @routes.post(
        "/{batch}/files",
        response_model=schemas.BatchState,
        openapi_extra=schemas.files_body(image=False),
    )
    async def feed(batch: str, request: Request) -> Any:
        """Answer for photos; what was answered before, by content and model, is not asked again."""
        _, lines = await service.run(batches.read, batch)
        async with received(request) as form, service.encoding.admitted():
            fresh = await _answered(service, form.files, lines)
        await service.run(batches.append, batch, fresh)
        return await progress(batch)

    @routes.get("/{batch}", response_model=schemas.BatchState)
    async def look(batch: str) -> Any:
        """How far a batch is."""
        return await progress(batch)

    @routes.get("/{batch}/result", response_class=Response)
    async def result(batch: str) -> Response:
        """The table."""
        form, content = await service.run(batches.result, batch)
        headers = {"content-disposition": f'attachment; filename="answers.{form}"'}
        return Response(content, media_type=MEDIA[form], headers=headers)

    return routes


async def _answered(
    service: Service, uploads: Sequence[Upload], lines: Sequence[Line]
) -> list[Line]:
    """Lines for the uploads that have none at this revision yet."""
    revision = service.editor.document.revision
    known = {line.key for line in lines if line.revision == revision}
    fresh: dict[tuple[str, str], Upload] = {}
    for upload in uploads:
        # A file that was too large is not here to be hashed.
        content = upload.size if upload.refused else sha256(await upload.read())
        key = (upload.path, str(content))
        if key not in known:
            fresh[key] = upload
    read = await service.read(list(fresh.values()))
    good = [one for one in read if isinstance(one, Read)]
    found: list[Answered] = []
    if good:
        answers = await service.answers([one.features for one in good])
        found = [Answered(one, answers, row) for row, one in enumerate(good)]
    waiting = iter(found)
    both = [one if isinstance(one, Refused) else next(waiting) for one in read]
    return [
        Line(content, revision, {"image": path} | _cells(one))
        for (path, content), one in zip(fresh, both, strict=True)
    ]


def _cells(found: Answered | Refused) -> dict[str, Any]:
    if isinstance(found, Refused):
        return {"error": found.reason}
    answer = told(found, top=1, reject=REJECT)
    columns = ("label", "probability", "uncertainty", "familiarity", "rejected")
    return {name: answer[name] for name in columns}
