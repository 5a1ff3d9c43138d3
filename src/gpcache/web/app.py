"""The application: routes, the page, and every error as one sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gpcache import __version__
from gpcache.errors import DiskFullError, GPCacheError
from gpcache.web.encoding import RETRY_AFTER, MakeEncoding
from gpcache.web.middleware import AccessMiddleware
from gpcache.web.routes import batch, export, inference_v2, predict, test_set
from gpcache.web.routes import workspace as workspace_routes
from gpcache.web.service import Service
from gpcache.web.workspace import Workspace

STATIC = Path(__file__).parent / "static"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_app(
    workspace: Workspace,
    token: str,
    make_encoding: MakeEncoding | None = None,
    *,
    sharing: bool = False,
) -> FastAPI:
    """The server of one workspace, for clients with the token; `sharing` admits other machines."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    # FastAPI's documentation pages load files from another host: the OpenAPI file is enough.
    app = FastAPI(
        title="gpcache", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    service = app.state.service = Service(workspace, make_encoding)
    app.state.token = token
    for part in (workspace_routes, predict, batch, export, test_set, inference_v2):
        app.include_router(part.routes)
    _add_page(app)
    _add_metrics(app, service)
    _add_errors(app)
    app.add_middleware(AccessMiddleware, service=service, token=token, sharing=sharing)
    return app


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> FileResponse:
        return FileResponse(STATIC / "icon.svg")

    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False), name="static")


def _add_metrics(app: FastAPI, service: Service) -> None:
    workspace, encoding, add = service.workspace, service.encoding, service.metrics.add_gauge
    add("gpcache_requests_waiting", "Requests with photos in progress.", lambda: encoding.waiting)
    add("gpcache_revision", "Changes of the workspace.", lambda: workspace.document.revision)
    photos = "Labelled photos."
    add("gpcache_photos", photos, lambda: len(workspace.document.contents.labelled()))

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counters for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type=METRICS_TYPE)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(GPCacheError)
    async def ours(_: Request, error: Exception) -> JSONResponse:
        status = 507 if isinstance(error, DiskFullError) else getattr(error, "status", 400)
        headers = {"retry-after": str(RETRY_AFTER)} if status == 429 else None
        return JSONResponse({"error": str(error)}, status, headers)

    @app.exception_handler(RequestValidationError)
    async def shape(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        reason = str(first["msg"]).encode("utf-8", "replace").decode().rstrip(".")
        # The Open Inference Protocol uses 400 for a bad request.
        status = 400 if request.url.path.startswith("/v2") else 422
        return JSONResponse({"error": f"{place}: {reason}."}, status)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": f"{error.detail}."}, error.status_code, error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: Exception) -> JSONResponse:
        return JSONResponse({"error": "The client has disconnected."}, 400)
