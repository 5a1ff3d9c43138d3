"""/v2: the Open Inference Protocol, so that generic clients can ask the model."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from gpcache import __version__
from gpcache.errors import DataError
from gpcache.images.records import Refused
from gpcache.model.predictions import Prediction
from gpcache.web import schemas
from gpcache.web.routes.predict import refusal
from gpcache.web.service import CurrentService, Service
from gpcache.web.uploads import MAX_FILES, Form, Upload, stopped_on_disconnect

INPUT = "image"
# Each output's type, number of dimensions, and values for predictions.
OUTPUTS: dict[str, tuple[str, int, Callable[[Sequence[Prediction]], list[Any]]]] = {
    # A tensor of text has no null: the label of a rejected image is empty.
    "label": ("BYTES", 1, lambda found: [one.label or "" for one in found]),
    "probability": ("FP64", 1, lambda found: [one.probability for one in found]),
    "probabilities": (
        "FP64",
        2,
        lambda found: [p for one in found for p in one.distribution.tolist()],
    ),
    "uncertainty": ("FP64", 1, lambda found: [one.uncertainty for one in found]),
    "rejected": ("BOOL", 1, lambda found: [one.rejected for one in found]),
    "nearest": ("BYTES", 1, lambda found: [one.nearest for one in found]),
    "classes": ("BYTES", 1, lambda found: [str(name) for name in found[0].classes]),
}


class Tensor(BaseModel):
    """An input: images as base64, one string each."""

    name: Annotated[str, Field(max_length=200)]
    shape: Annotated[list[int], Field(min_length=1, max_length=2)]
    datatype: Literal["BYTES"]
    data: list[str | list[str]]
    parameters: dict[str, Any] | None = None

    def elements(self) -> list[str]:
        """The data as a flat list; the protocol also allows nested lists."""
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


routes = APIRouter(prefix="/v2", tags=["open inference"], responses=schemas.PROBLEMS)


@routes.get("")
@routes.get("/", include_in_schema=False)  # as the protocol's own document spells it
async def server() -> dict[str, Any]:
    """Name and version of the server."""
    return {"name": "gpcache", "version": __version__, "extensions": []}


@routes.get("/health/live")
async def live() -> dict[str, bool]:
    """The server runs."""
    return {"live": True}


@routes.get("/health/ready")
async def ready(service: CurrentService) -> JSONResponse:
    """Whether there is a model and an encoder."""
    return JSONResponse({"ready": service.ready}, 200 if service.ready else 400)


@routes.get("/models/{model}")
@routes.get("/models/{model}/versions/{version}")
async def metadata(service: CurrentService, model: str, version: str | None = None) -> JSONResponse:
    """The inputs and outputs of the model."""
    revision = _revision_of(service, model, version)
    described = {
        "name": model,
        "versions": [revision],
        "platform": "gpcache_gpc",
        "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": name, "datatype": datatype, "shape": [-1] * dimensions}
            for name, (datatype, dimensions, _) in OUTPUTS.items()
        ],
    }
    return JSONResponse(described)


@routes.get("/models/{model}/ready")
@routes.get("/models/{model}/versions/{version}/ready")
async def model_ready(
    service: CurrentService, model: str, version: str | None = None
) -> JSONResponse:
    """The model can answer."""
    _revision_of(service, model, version)
    return JSONResponse({"name": model, "ready": service.ready}, 200 if service.ready else 400)


@routes.post("/models/{model}/infer")
@routes.post("/models/{model}/versions/{version}/infer")
async def infer(
    service: CurrentService,
    request: Request,
    model: str,
    body: Inference,
    version: str | None = None,
) -> JSONResponse:
    """Answer for every image of the input."""
    _revision_of(service, model, version)
    wanted = list(OUTPUTS) if body.outputs is None else [one.name for one in body.outputs]
    for name in wanted:
        if name not in OUTPUTS:
            raise DataError(f"There is no output {name!r}: there are {', '.join(OUTPUTS)}.")
    with closing(Form()) as form:
        async with stopped_on_disconnect(request), service.encoding.admitted():
            await _read_images(body, form)
            answers = await service.answer(form.files)
    found = [one.prediction for one in answers if not isinstance(one, Refused)]
    if len(found) < len(answers):  # the protocol has no field for the error of one element
        raise refusal(answers)
    answer: dict[str, Any] = {
        "model_name": model,
        "model_version": str(service.workspace.document.revision),
        "outputs": [_output(name, found) for name in wanted],
    }
    return JSONResponse(answer if body.id is None else answer | {"id": body.id})


def _revision_of(service: Service, model: str, version: str | None) -> str:
    """The only version of the model, its revision; an error if the path names another."""
    name, latest = service.workspace.document.name, str(service.workspace.document.revision)
    if model != name:
        raise HTTPException(404, f"There is no model {model[:200]!r}: it is {name!r}")
    if version not in (None, latest):
        detail = f"There is no version {version[:200]!r} of {name!r}: it is at {latest!r}"
        raise HTTPException(404, detail)
    return latest


async def _read_images(body: Inference, form: Form) -> None:
    """Add the images of a request to a form, out of their base64."""
    if len(body.inputs) != 1 or body.inputs[0].name != INPUT:
        raise DataError(f"There must be one input, of the name {INPUT!r}.")
    shape, data = body.inputs[0].shape, body.inputs[0].elements()
    if shape not in ([len(data)], [len(data), 1]) or not data:
        raise DataError(f"The shape {shape} does not fit {len(data)} images.")
    if len(data) > MAX_FILES:
        raise DataError(f"A request may bring {MAX_FILES} images.")
    for number, text in enumerate(data):
        try:
            content = base64.b64decode(text, validate=True)
        except ValueError:
            raise DataError(f"Element {number} of {INPUT!r} is not base64.") from None
        form.files.append(Upload(f"image {number}"))
        await form.files[-1].write(content)


def _output(name: str, found: Sequence[Prediction]) -> dict[str, Any]:
    datatype, dimensions, values = OUTPUTS[name]
    data = values(found)
    shape = [len(data)] if dimensions == 1 else [len(found), len(data) // len(found)]
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}
