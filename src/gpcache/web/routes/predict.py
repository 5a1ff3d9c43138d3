"""/v1: what the model, or class names alone, say of photos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request

from gpcache.errors import ImageRefusedError
from gpcache.images.records import Refused
from gpcache.web import schemas
from gpcache.web.service import AnsweredPhoto, Service
from gpcache.web.uploads import received

REJECT = 0.05
SETS = 0.1
EXPLAINED = 6


def predict_routes(service: Service) -> APIRouter:
    """The routes that answer."""
    routes = APIRouter(prefix="/v1", tags=["predict"], responses=schemas.PROBLEMS)

    @routes.post("/predict", response_model=schemas.Predictions, openapi_extra=schemas.files_body())
    async def predict(
        request: Request,
        top: schemas.Top = 100,
        why: schemas.Why = 0,
        reject: schemas.Reject = REJECT,
        sets: schemas.Sets = SETS,
    ) -> Any:
        """Name photos, or say that they are unlike all that was learned."""
        async with received(request) as form, service.encoding.admitted():
            answers = await service.answer(form.files, why=why, error=sets)
        if all(isinstance(one, Refused) for one in answers):
            raise refusal(answers)
        return {"predictions": [prediction(one, top=top, reject=reject) for one in answers]}

    @routes.post("/explain", response_model=schemas.Predictions, openapi_extra=schemas.files_body())
    async def explain(
        request: Request,
        top: schemas.Top = 100,
        why: schemas.Why = EXPLAINED,
        reject: schemas.Reject = REJECT,
        sets: schemas.Sets = SETS,
    ) -> Any:
        """The same, with the photos that drove each answer."""
        return await predict(request, top, why, reject, sets)

    @routes.post(
        "/zero-shot-preview", response_model=schemas.Preview, openapi_extra=schemas.files_body()
    )
    async def preview(request: Request) -> Any:
        """What the class names and prompts alone say of one photo."""
        async with received(request) as form, service.encoding.admitted():
            (found,) = await service.read(form.files[:1])
        if isinstance(found, Refused):
            raise refusal([found])
        classes, row = await service.by_text(found.features)
        return {"name": found.name, "probabilities": _bars(classes, row, len(classes))}

    return routes


def refusal(answers: Sequence[object]) -> ImageRefusedError:
    """Why the first photo that was refused has no answer."""
    first = next(one for one in answers if isinstance(one, Refused))
    return ImageRefusedError(first.reason, name=first.name)


def prediction(found: AnsweredPhoto | Refused, *, top: int, reject: float) -> dict[str, Any]:
    """An answer as JSON holds it."""
    if isinstance(found, Refused):
        return {"name": found.name, "error": f"It was refused: {found.reason}."}
    answer, best = found.answer, int(found.answer.probabilities.argmax())
    # NaN, where nothing could be held out, rejects nothing and is null in JSON.
    known = not np.isnan(answer.familiarity)
    return {
        "name": found.photo.name,
        "label": found.classes[best],
        "probability": float(answer.probabilities[best]),
        "rejected": bool(answer.familiarity <= reject),
        "familiarity": answer.familiarity if known else None,
        "uncertainty": answer.uncertainty,
        "plausible": answer.plausible,
        "note": answer.note,
        "probabilities": _bars(found.classes, answer.probabilities, top),
        "why": [
            dict(zip(("id", "name", "label"), found.learned[row], strict=True)) | {"weight": weight}
            for row, weight in answer.why
        ],
    }


def _bars(classes: Sequence[str], row: Any, top: int) -> list[dict[str, Any]]:
    order = np.argsort(-row, kind="stable")[:top]
    return [{"label": classes[place], "probability": float(row[place])} for place in order]
