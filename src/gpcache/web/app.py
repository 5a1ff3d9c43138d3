"""The application: routes, the page, and every error as one sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gpcache import __version__
from gpcache.errors import DiskFullError, GPCacheError
from gpcache.web.batch_routes import batch_routes
from gpcache.web.batches import MissingBatchError
from gpcache.web.batching import RETRY_AFTER, BusyError, Engine
from gpcache.web.editor import StaleError
from gpcache.web.export_routes import export_routes
from gpcache.web.guard import Guard
from gpcache.web.inference_v2 import inference_routes
from gpcache.web.opening import Opened
from gpcache.web.predict_routes import predict_routes
from gpcache.web.service import Service
from gpcache.web.uploads import TooMuchError
from gpcache.web.workspace_routes import workspace_routes

STATIC = Path(__file__).parent / "static"
STATUS = {
    StaleError: 409,
    TooMuchError: 413,
    BusyError: 429,
    MissingBatchError: 404,
    DiskFullError: 507,
}


def create_app(opened: Opened, token: str, engine: Engine | None = None) -> FastAPI:
    """The server of one workspace, for whoever has the token; photos go through `engine`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    # The documents that FastAPI draws come from another host: the OpenAPI file is enough.
    app = FastAPI(
        title="gpcache", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    service = Service(opened, engine)
    for routes in (
        workspace_routes(service),
        predict_routes(service),
        batch_routes(service),
        export_routes(service, token),
        inference_routes(service),
    ):
        app.include_router(routes)
    _add_page(app, service)
    _add_errors(app)
    app.add_middleware(Guard, token=token, metrics=service.metrics, busy=service.encoding.busy)
    return app


def _add_page(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> FileResponse:
        return FileResponse(STATIC / "icon.svg")

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counters for Prometheus."""
        document = service.editor.document
        gauges = {
            "gpcache_requests_waiting": (
                "Requests with photos that are at work.",
                float(service.encoding.waiting),
            ),
            "gpcache_photos": ("Labelled photos.", float(len(document.contents.labelled()))),
            "gpcache_revision": ("Changes of the workspace.", float(document.revision)),
        }
        media = "text/plain; version=0.0.4; charset=utf-8"
        return PlainTextResponse(service.metrics.text(gauges), media_type=media)

    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False), name="static")


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(GPCacheError)
    async def ours(_: Request, error: Exception) -> JSONResponse:
        status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 400)
        headers = {"retry-after": str(RETRY_AFTER)} if status == 429 else None
        return JSONResponse({"error": str(error)}, status, headers)

    @app.exception_handler(RequestValidationError)
    async def shape(request: Request, error: RequestValidationError) -> JSONResponse:
        # The Open Inference Protocol knows a bad request by 400.
        status = 400 if request.url.path.startswith("/v2") else 422
        return JSONResponse({"error": _sentence(error.errors())}, status)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": f"{error.detail}."}, error.status_code, error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: Exception) -> JSONResponse:
        return JSONResponse({"error": "The client has gone."}, 400)


def _sentence(errors: Any) -> str:
    """The first thing that is wrong with the shape of a request."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"])
    told = str(first["msg"]).encode("utf-8", "replace").decode()
    return f"{place}: {told.rstrip('.')}."
