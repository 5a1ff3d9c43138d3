"""/v1: export of the model as a model folder or ONNX, its card, and code to copy."""

from __future__ import annotations

import io
import shlex
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from gpcache.encoders.lite import LiteEncoder
from gpcache.model import files as model_files
from gpcache.model.onnx import export_image_onnx, export_onnx
from gpcache.model.training_images import TrainingFacts
from gpcache.support.array_folders import CARD
from gpcache.support.files import explained_writes
from gpcache.support.temporary import temporary_sibling
from gpcache.web import schemas
from gpcache.web.service import CurrentService
from gpcache.web.workspace import Workspace

routes = APIRouter(prefix="/v1", tags=["export"], responses=schemas.PROBLEMS)


@routes.get("/export/model", response_class=Response)
async def model(service: CurrentService) -> Response:
    """The model folder as a zip; unpack it for `gpcache predict`."""
    content = await service.run(_zip, service.workspace)
    return as_file(content, "application/zip", f"{service.workspace.document.name}.gpc.zip")


@routes.get("/export/onnx", response_class=Response)
async def onnx(service: CurrentService) -> Response:
    """The model as ONNX."""
    content = await service.run(_onnx, service.workspace)
    return as_file(content, "application/octet-stream", f"{service.workspace.document.name}.onnx")


@routes.get("/card", response_class=Response)
async def card(service: CurrentService) -> Response:
    """The model card."""
    text = await service.run(_card, service.workspace)
    return Response(text, media_type="text/markdown; charset=utf-8")


@routes.get("/snippets", response_model=schemas.Snippets)
async def snippets(service: CurrentService, request: Request) -> Any:
    """Code to copy."""
    address = f"{request.url.scheme}://{request.headers['host']}"
    model = f"{service.workspace.document.name}.gpc"
    argument = shlex.quote(f"./{model}" if model.startswith("-") else model)
    return {
        "cli": f"gpcache predict {argument} photo.jpg --top 3 --why",
        "python": "from gpcache import ImageClassifier\n\n"
        f"model = ImageClassifier.load({model!r})\n"
        'for answer in model.predict(["photo.jpg"]):\n'
        "    print(answer.label, answer.probability, answer.rejected)",
        "curl": f"curl -H 'Authorization: Bearer {request.app.state.token}' "
        f"-H 'Content-Type: image/jpeg' --data-binary @photo.jpg {address}/v1/predict",
    }


def as_file(content: bytes, media: str, name: str) -> Response:
    """A download with this file name."""
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return Response(content, media_type=media, headers=headers)


def _zip(workspace: Workspace) -> bytes:
    stream = io.BytesIO()
    name = f"{workspace.document.name}.gpc"
    with (
        written_model(workspace) as folder,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{name}/{file.name}")
    return stream.getvalue()


def _card(workspace: Workspace) -> str:
    with written_model(workspace) as folder:
        return (folder / CARD).read_text(encoding="utf-8")


def _onnx(workspace: Workspace) -> bytes:
    """ONNX from pixels to probabilities with the encoder lite; from features with others."""
    model, encoder = workspace.learner.ready(), workspace.encoder
    if isinstance(encoder, LiteEncoder):
        return export_image_onnx(model, encoder)
    return export_onnx(model, encoder_fingerprint=encoder.fingerprint)


@contextmanager
def written_model(workspace: Workspace) -> Iterator[Path]:
    """The model folder of the workspace, in a temporary place."""
    document, learner, encoder = workspace.document, workspace.learner, workspace.encoder
    stored = [workspace.folder.get(photo.hash) for photo in learner.photos]
    content = model_files.Content(
        model=learner.ready(),
        encoder=model_files.EncoderFacts(
            document.encoder, encoder.fingerprint, encoder.dim, encoder.logit_scale
        ),
        templates=None if document.templates is None else list(document.templates),
        prompts=document.contents.prompts(document.templates),
        views=document.views,
        examples=[photo.example for photo in learner.photos],
        training=TrainingFacts(
            source=f"the workspace {document.name}", refused=list(document.refused)
        ),
        thumbnails={photo.hash: photo.thumbnail for photo in stored},
    )
    held_out = learner.held_out()
    figures = None if held_out is None else held_out.evaluation()
    place = workspace.folder.path / "export"
    with explained_writes(place), temporary_sibling(place, 0o700, folder=True) as temporary:
        model_files.write(content, temporary / "model", figures)
        yield temporary / "model"
