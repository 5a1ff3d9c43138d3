"""/v1: the model to take away."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from gpcache.web import exports, schemas
from gpcache.web.service import Service


def export_routes(service: Service, token: str) -> APIRouter:
    """The routes that give the model away."""
    routes = APIRouter(prefix="/v1", tags=["export"], responses=schemas.PROBLEMS)
    opened, editor = service.opened, service.editor

    @routes.get("/export/model", response_class=Response)
    async def model() -> Response:
        """The model folder as a zip."""
        content = await service.run(exports.model_zip, opened, editor)
        return _file(content, "application/zip", f"{editor.document.name}.gpc.zip")

    @routes.get("/export/onnx", response_class=Response)
    async def onnx() -> Response:
        """The model as ONNX."""
        content = await service.run(exports.onnx, opened, editor)
        return _file(content, "application/octet-stream", f"{editor.document.name}.onnx")

    @routes.get("/card", response_class=Response)
    async def card() -> Response:
        """The model card."""
        text = await service.run(exports.card, opened, editor)
        return Response(text, media_type="text/markdown; charset=utf-8")

    @routes.get("/snippets", response_model=schemas.Snippets)
    async def snippets(request: Request) -> Any:
        """Lines to copy."""
        address = f"http://{request.headers['host']}"
        return exports.snippets(editor.document.name, address, token)

    return routes


def _file(content: bytes, media: str, name: str) -> Response:
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return Response(content, media_type=media, headers=headers)
