"""/v2: the Open Inference Protocol, so that generic clients can ask the model."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from gpcache import __version__
from gpcache.errors import DataError, ImageRefusedError
from gpcache.images.records import Refused
from gpcache.web import schemas
from gpcache.web.predict_routes import REJECT, answer_all
from gpcache.web.service import Service
from gpcache.web.uploads import MAX_FILES, Form, Upload

INPUT = "image"
OUTPUTS = {
    "label": ("BYTES", [-1]),
    "probability": ("FP64", [-1]),
    "probabilities": ("FP64", [-1, -1]),
    "uncertainty": ("FP64", [-1]),
    "rejected": ("BOOL", [-1]),
    "classes": ("BYTES", [-1]),
}


class Tensor(BaseModel):
    """An input: images as base64, one string each."""

    name: Annotated[str, Field(max_length=200)]
    shape: Annotated[list[int], Field(min_length=1, max_length=2)]
    datatype: Literal["BYTES"]
    data: list[str | list[str]]
    parameters: dict[str, Any] | None = None

    def elements(self) -> list[str]:
        """The data in one row; the protocol lets it also be nested as the shape is."""
        rows = [[part] if isinstance(part, str) else part for part in self.data]
        return [element for row in rows for element in row]


class WantedOutput(BaseModel):
    """The name of an output to send."""

    name: Annotated[str, Field(max_length=200)]
    parameters: dict[str, Any] | None = None


class Inference(BaseModel):
    """A request of the protocol."""

    id: Annotated[str, Field(max_length=200)] | None = None
    inputs: Annotated[list[Tensor], Field(min_length=1, max_length=10)]
    outputs: list[WantedOutput] | None = None
    parameters: dict[str, Any] | None = None


def inference_routes(service: Service) -> APIRouter:
    """Health, metadata and inference.

    The model has one version, its revision; a path may name it.
    """
    routes = APIRouter(prefix="/v2", tags=["open inference"], responses=schemas.PROBLEMS)
    editor = service.editor

    @routes.get("")
    @routes.get("/", include_in_schema=False)  # as the protocol's own document spells it
    async def server() -> dict[str, Any]:
        """Who answers."""
        return {"name": "gpcache", "version": __version__, "extensions": []}

    @routes.get("/health/live")
    async def live() -> dict[str, bool]:
        """The server runs."""
        return {"live": True}

    @routes.get("/health/ready")
    async def ready() -> JSONResponse:
        """There is a model to ask, and an encoder for what it is asked about."""
        there = service.ready
        return JSONResponse({"ready": there}, 200 if there else 400)

    @routes.get("/models/{model}")
    @routes.get("/models/{model}/versions/{version}")
    async def metadata(model: str, version: str | None = None) -> JSONResponse:
        """What goes in and what comes out."""
        if (refusal := _unknown(model, version)) is not None:
            return refusal
        outputs = [
            {"name": name, "datatype": datatype, "shape": shape}
            for name, (datatype, shape) in OUTPUTS.items()
        ]
        told = {
            "name": model,
            "versions": [str(editor.document.revision)],
            "platform": "gpcache_gpc",
            "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
            "outputs": outputs,
        }
        return JSONResponse(told)

    @routes.get("/models/{model}/ready")
    @routes.get("/models/{model}/versions/{version}/ready")
    async def model_ready(model: str, version: str | None = None) -> JSONResponse:
        """The model can answer."""
        if (refusal := _unknown(model, version)) is not None:
            return refusal
        there = service.ready
        return JSONResponse({"name": model, "ready": there}, 200 if there else 400)

    @routes.post("/models/{model}/infer")
    @routes.post("/models/{model}/versions/{version}/infer")
    async def infer(model: str, body: Inference, version: str | None = None) -> JSONResponse:
        """Answer for every image of the input."""
        if (refusal := _unknown(model, version)) is not None:
            return refusal
        wanted = _wanted(body)
        async with service.encoding.admitted():
            form = Form(_uploads(body))
            try:
                outputs = await _outputs(service, form.files)
            finally:
                form.close()
        answer: dict[str, Any] = {
            "model_name": model,
            "model_version": str(editor.document.revision),
            "outputs": [outputs[name] for name in wanted],
        }
        return JSONResponse(answer if body.id is None else answer | {"id": body.id})

    def _unknown(model: str, version: str | None) -> JSONResponse | None:
        name, latest = editor.document.name, str(editor.document.revision)
        if model != name:
            told = f"There is no model {model[:200]!r}: it is {name!r}."
        elif version not in (None, latest):
            told = f"There is no version {version[:200]!r} of {name!r}: it is at {latest!r}."
        else:
            return None
        return JSONResponse({"error": told}, 404)

    return routes


def _wanted(body: Inference) -> list[str]:
    wanted = list(OUTPUTS) if body.outputs is None else [one.name for one in body.outputs]
    for name in wanted:
        if name not in OUTPUTS:
            raise DataError(f"There is no output {name!r}: there are {', '.join(OUTPUTS)}.")
    return wanted


def _uploads(body: Inference) -> list[Upload]:
    """The images of a request, out of their base64."""
    if len(body.inputs) != 1 or body.inputs[0].name != INPUT:
        raise DataError(f"There must be one input, of the name {INPUT!r}.")
    shape, data = body.inputs[0].shape, body.inputs[0].elements()
    if shape not in ([len(data)], [len(data), 1]) or not data:
        raise DataError(f"The shape {shape} does not fit {len(data)} images.")
    if len(data) > MAX_FILES:
        raise DataError(f"A request may bring {MAX_FILES} images.")
    uploads = []
    for number, text in enumerate(data):
        upload = Upload(f"image {number}")
        try:
            upload.write(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            raise DataError(f"Element {number} of {INPUT!r} is not base64.") from None
        uploads.append(upload)
    return uploads


async def _outputs(service: Service, uploads: list[Upload]) -> dict[str, Any]:
    found = await answer_all(service, uploads)
    good = []
    for one in found:
        # The protocol has no place for the error of one element.
        if isinstance(one, Refused):
            raise ImageRefusedError(one.reason, name=one.name)
        good.append(one)
    classes, n = good[0].classes, len(good)
    rows = [one.answer.probabilities for one in good]
    values: dict[str, list[Any]] = {
        "label": [classes[int(row.argmax())] for row in rows],
        "probability": [float(row.max()) for row in rows],
        "probabilities": [float(p) for row in rows for p in row],
        "uncertainty": [one.answer.uncertainty for one in good],
        "rejected": [bool(one.answer.familiarity <= REJECT) for one in good],
        "classes": classes,
    }
    shapes = {"probabilities": [n, len(classes)], "classes": [len(classes)]}
    return {
        name: {
            "name": name,
            "datatype": OUTPUTS[name][0],
            "shape": shapes.get(name, [n]),
            "data": data,
        }
        for name, data in values.items()
    }
