"""/v1/test-set: labelled photos to test the model on, their figures and their report."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from gpcache.model.classifier import ImageClassifier
from gpcache.support.extras import require
from gpcache.web import schemas
from gpcache.web.routes.export import as_file, written_model
from gpcache.web.service import CurrentService, Service
from gpcache.web.test_set import TestSet
from gpcache.web.uploads import received

routes = APIRouter(prefix="/v1/test-set", tags=["test set"], responses=schemas.PROBLEMS)


@routes.post("", response_model=schemas.TestState, openapi_extra=schemas.FILES)
async def add(service: CurrentService, request: Request) -> Any:
    """Add photos to test on; the folder of a photo is its class."""
    async with received(request) as form, service.encoding.admitted():
        read = await service.read(form.files, picture=True)
        service.test_set.add([upload.path for upload in form.files], read)
    return await look(service)


@routes.get("", response_model=schemas.TestState)
async def look(service: CurrentService) -> Any:
    """The figures of the model in use on the test set."""
    return await service.run(service.test_set.state, service.workspace)


@routes.delete("", response_model=schemas.TestState)
async def clear(service: CurrentService) -> Any:
    """Remove the test set."""
    service.test_set = TestSet()
    return await look(service)


@routes.get("/report", response_class=Response)
async def report(service: CurrentService) -> Response:
    """The report of the model in use on the test set, one HTML file."""
    require("matplotlib", "report", purpose="A report")
    content = await service.run(_report, service)
    name = f"{service.workspace.document.name}-report.html"
    return as_file(content, "text/html; charset=utf-8", name)


def _report(service: Service) -> bytes:
    from gpcache.model.report.page import render

    workspace = service.workspace
    with written_model(workspace) as folder:
        classifier = ImageClassifier.load(folder, encoder=workspace.encoder)
    return render(service.test_set.report(workspace, classifier)).encode()
