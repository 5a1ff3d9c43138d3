"""/v1/batch: predict many photos into one table, in several requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from gpcache.images.records import Refused
from gpcache.model.answer_tables import COLUMNS
from gpcache.support.files import sha256
from gpcache.web import schemas
from gpcache.web.batch_files import BatchFiles, BatchLine, latest_rows
from gpcache.web.learner import Answer
from gpcache.web.service import CurrentService, Service
from gpcache.web.uploads import Upload, received

MEDIA = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


routes = APIRouter(prefix="/v1/batch", tags=["batch"], responses=schemas.PROBLEMS)


@routes.post("", response_model=schemas.BatchState)
async def begin(service: CurrentService, body: schemas.NewBatch) -> Any:
    """Start a table."""
    return await _progress(service, await service.run(_files(service).begin, body.format))


@routes.post("/{batch}/files", response_model=schemas.BatchState, openapi_extra=schemas.FILES)
async def feed(service: CurrentService, batch: str, request: Request) -> Any:
    """Predict photos; those with an answer of the same model are not predicted again."""
    _, lines = await service.run(_files(service).read, batch)
    async with received(request) as form, service.encoding.admitted():
        fresh = await _new_lines(service, form.files, lines)
    await service.run(_files(service).append, batch, fresh)
    return await _progress(service, batch)


@routes.get("/{batch}", response_model=schemas.BatchState)
async def look(service: CurrentService, batch: str) -> Any:
    """The progress of a batch."""
    return await _progress(service, batch)


@routes.get("/{batch}/result", response_class=Response)
async def result(service: CurrentService, batch: str) -> Response:
    """The table."""
    table, content = await service.run(_files(service).result, batch)
    headers = {"content-disposition": f'attachment; filename="answers.{table}"'}
    return Response(content, media_type=MEDIA[table], headers=headers)


def _files(service: Service) -> BatchFiles:
    return BatchFiles(service.workspace.folder.batches)


async def _progress(service: Service, key: str) -> dict[str, Any]:
    table, lines = await service.run(_files(service).read, key)
    rows = latest_rows(lines)
    refused = sum("error" in row for row in rows)
    return {"id": key, "format": table, "done": len(rows), "refused": refused}


async def _new_lines(
    service: Service, uploads: Sequence[Upload], lines: Sequence[BatchLine]
) -> list[BatchLine]:
    """Lines for the uploads that have none at this revision yet."""
    revision = service.workspace.document.revision
    known = {line.key for line in lines if line.revision == revision}
    fresh: dict[tuple[str, str], Upload] = {}
    for upload in uploads:
        # A file that is too large is not worth hashing.
        content = str(upload.size) if upload.refused else sha256(await upload.read())
        if (upload.path, content) not in known:
            fresh[upload.path, content] = upload
    answers = await service.answer(list(fresh.values()))
    return [
        BatchLine(hash=content, revision=revision, row=_cells(answer) | {"image": path})
        for (path, content), answer in zip(fresh, answers, strict=True)
    ]


def _cells(answer: Answer | Refused) -> dict[str, Any]:
    if isinstance(answer, Refused):
        return {"error": answer.reason}
    cells = answer.prediction.as_dict()
    return {name: cells[name] for name in COLUMNS}
