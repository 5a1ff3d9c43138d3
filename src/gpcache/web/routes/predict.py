"""/v1: predictions of the model, or of class names only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from gpcache.errors import ImageRefusedError
from gpcache.images.records import Refused
from gpcache.web import schemas
from gpcache.web.learner import Answer
from gpcache.web.service import CurrentService
from gpcache.web.uploads import received

routes = APIRouter(prefix="/v1", tags=["predict"], responses=schemas.PROBLEMS)
PHOTOS = schemas.FILES_OR_IMAGE


@routes.post("/predict", response_model=schemas.Predictions, openapi_extra=PHOTOS)
async def predict(
    service: CurrentService,
    request: Request,
    options: Annotated[schemas.PredictOptions, Query()],
) -> Any:
    """Classify photos, or answer that they are unlike all training photos."""
    async with received(request) as form, service.encoding.admitted():
        answers = await service.answer(
            form.files, reject=options.reject, why=options.why, error=options.sets
        )
    if all(isinstance(one, Refused) for one in answers):
        raise refusal(answers)
    return {"predictions": [prediction(one, options.top) for one in answers]}


@routes.post("/explain", response_model=schemas.Predictions, openapi_extra=PHOTOS)
async def explain(
    service: CurrentService,
    request: Request,
    options: Annotated[schemas.ExplainOptions, Query()],
) -> Any:
    """The same, with the training photos behind each answer."""
    return await predict(service, request, options)


@routes.post("/zero-shot-preview", response_model=schemas.Preview, openapi_extra=PHOTOS)
async def preview(service: CurrentService, request: Request) -> Any:
    """Predict one photo from class names and prompts only."""
    async with received(request) as form, service.encoding.admitted():
        (photo,) = await service.read(form.files[:1])
    if isinstance(photo, Refused):
        raise refusal([photo])
    learner, contents = service.workspace.learner, service.workspace.document.contents
    classes = await service.run(learner.by_text, photo.features, contents)
    return {"name": photo.name, "probabilities": _bars(classes)}


def refusal(answers: Sequence[object]) -> ImageRefusedError:
    """The error of the first photo that was refused."""
    first = next(one for one in answers if isinstance(one, Refused))
    return ImageRefusedError(first.reason, name=first.name)


def prediction(answer: Answer | Refused, top: int) -> dict[str, Any]:
    """An answer as a dictionary for JSON."""
    if isinstance(answer, Refused):
        return {"name": answer.name, "error": f"It was refused: {answer.reason}."}
    found = answer.prediction
    shown = {"name": found.name, "plausible": None, "note": "", **found.as_dict()}
    del shown["image"]
    return shown | {
        "probabilities": _bars(found.top(top)),
        "why": [
            {"id": photo.id, "name": photo.name, "label": str(photo.label), "weight": weight}
            for photo, weight in answer.why
        ],
    }


def _bars(classes: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"label": name, "probability": probability} for name, probability in classes]
