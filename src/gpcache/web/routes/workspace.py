"""/v1: the workspace itself, its classes, photos, pool and figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response

from gpcache.errors import DataError
from gpcache.images.records import plural
from gpcache.web import schemas
from gpcache.web.curve import comparable
from gpcache.web.schemas import DropId, IfMatch
from gpcache.web.service import CurrentService, Service
from gpcache.web.uploads import received
from gpcache.web.workspace import Edit
from gpcache.web.workspace_contents import Contents, Photo

routes = APIRouter(prefix="/v1", tags=["workspace"], responses=schemas.PROBLEMS)

MakeChange = Callable[[schemas.Body, str, Edit], Awaitable[dict[str, Any]]]


async def _make_change(service: CurrentService, if_match: IfMatch = None) -> MakeChange:
    """The function that edits the contents, at the revision that the request is based on."""
    return lambda body, what, edit: service.change(edit, what, _revision(if_match, body))


Change = Annotated[MakeChange, Depends(_make_change)]


@routes.post("/classes", response_model=schemas.WorkspaceState)
async def add_class(
    service: CurrentService, body: schemas.NewClass, if_match: IfMatch = None, drop: DropId = ""
) -> Any:
    """Add a class, which is known by its name and prompt until it has photos."""
    return await service.change(
        lambda contents: contents.with_class(body.name, body.prompt),
        f"adding the class {body.name[:80]}",
        _revision(if_match, body),
        drop,
    )


@routes.patch("/classes", response_model=schemas.WorkspaceState)
async def change_class(change: Change, body: schemas.ChangedClass) -> Any:
    """Rename a class, or give it another prompt."""
    what = f"changing the class {body.name[:80]}"
    given = body.name, body.new_name, body.prompt
    return await change(body, what, lambda contents: contents.with_changed_class(*given))


@routes.delete("/classes", response_model=schemas.WorkspaceState)
async def remove_class(change: Change, body: schemas.NamedClass) -> Any:
    """Remove a class and its photos."""
    what = f"removing the class {body.name[:80]}"
    return await change(body, what, lambda contents: contents.without_class(body.name))


@routes.post("/examples", response_model=schemas.Added, openapi_extra=schemas.LABELLED_FILES)
async def add_examples(
    service: CurrentService, request: Request, if_match: IfMatch = None, drop: DropId = ""
) -> Any:
    """Add photos to one class."""
    revision = _revision(if_match)
    async with received(request) as form, service.encoding.admitted():
        label = form.fields.get("label", "")
        if not label.strip():
            raise DataError("Send the class of the photos in the field 'label'.")
        return await service.add(form.files, label, revision, drop)


@routes.patch("/examples", response_model=schemas.WorkspaceState)
async def change_photos(
    service: CurrentService, change: Change, body: schemas.ChangedPhotos
) -> Any:
    """Give photos another label, or confirm their label."""
    label, keep, photos = body.label, body.keep, plural(len(body.ids), "photo")
    if label is None and keep is None:
        raise DataError("Send 'label', 'keep', or both.")
    what = f"{'keeping' if keep else 'questioning'} {photos}"
    if label is not None:
        what = f"labelling {photos} as {label[:80]}"

    def edit(contents: Contents) -> Contents:
        if label is not None:
            proposals = service.workspace.proposals(body.ids, label)
            contents = contents.with_labels(body.ids, label, proposals)
        return contents if keep is None else contents.with_kept(body.ids, keep)

    return await change(body, what, edit)


@routes.delete("/examples", response_model=schemas.WorkspaceState)
async def remove(change: Change, body: schemas.PhotoIds) -> Any:
    """Remove photos."""
    what = f"removing {plural(len(body.ids), 'photo')}"
    return await change(body, what, lambda contents: contents.without_photos(body.ids))


PICTURE: dict[int | str, Any] = {200: {"content": {"image/jpeg": {}}}}


@routes.get("/photos/{photo}", response_class=Response, responses=PICTURE)
async def picture(service: CurrentService, photo: str) -> Response:
    """A small picture, encoded as a new JPEG."""
    known = _photo(service, photo)
    stored = await service.run(service.workspace.folder.get, known.hash)
    return _jpeg(stored.thumbnail)


@routes.get("/photos/{photo}/original", response_class=Response, responses=PICTURE)
async def original_picture(service: CurrentService, photo: str) -> Response:
    """The full photo, up to 4,096 pixels a side, encoded as a new JPEG without its metadata."""
    return _jpeg(await service.large_picture(_photo(service, photo)))


def _photo(service: Service, key: str) -> Photo:
    known = service.workspace.document.contents.photos.get(key)
    if known is None:
        raise HTTPException(404, "There is no such photo")
    return known


def _jpeg(content: bytes) -> Response:
    # The picture of an id never changes, and the cache is private.
    headers = {"cache-control": "private, max-age=86400, immutable"}
    return Response(content, media_type="image/jpeg", headers=headers)


@routes.post("/pool", response_model=schemas.PoolSize, openapi_extra=schemas.FILES)
async def fill_pool(service: CurrentService, request: Request) -> Any:
    """Add photos without a label."""
    async with received(request) as form, service.encoding.admitted():
        read = await service.read(form.files, keep=True)
        return await service.run(service.workspace.fill_pool, read)


@routes.post("/label", response_model=schemas.WorkspaceState)
async def label(change: Change, body: schemas.LabelledPhoto) -> Any:
    """Move a photo of the pool into a class."""
    what = f"labelling a photo as {body.label[:80]}"
    return await change(body, what, lambda contents: contents.with_labels([body.id], body.label))


@routes.get("/state", response_model=schemas.WorkspaceState)
async def state(service: CurrentService) -> Any:
    """The state of the workspace."""
    return await service.run(service.workspace.state)


@routes.post("/undo", response_model=schemas.WorkspaceState)
async def undo(service: CurrentService, if_match: IfMatch = None) -> Any:
    """Undo the last change."""
    return await service.run(service.workspace.undo, _revision(if_match))


@routes.delete("/refused", response_model=schemas.WorkspaceState)
async def clear_refused(service: CurrentService) -> Any:
    """Clear the list of refused files."""
    return await service.run(service.workspace.clear_refused)


@routes.get("/loo")
async def loo(service: CurrentService) -> dict[str, Any]:
    """The held-out figures, or the reason why there are none."""
    return await service.run(service.workspace.loo)


@routes.get("/curve", response_model=list[schemas.Point])
async def curve(service: CurrentService) -> Any:
    """The held-out accuracy after each change of the same classes, the latest last."""
    points = comparable(service.workspace.document.curve)
    return [{"n": point.photos, "accuracy": point.accuracy} for point in points]


@routes.get("/suggest", response_model=schemas.Suggested)
async def suggest(service: CurrentService, count: int = Query(10, ge=1, le=100)) -> Any:
    """The photos of the pool to label next."""
    return {"photos": await service.run(service.workspace.suggestions, count)}


def _revision(if_match: str | None, body: schemas.Body | None = None) -> int | None:
    """The revision that a change is based on, from the header or the body; None is any."""
    text = "*" if if_match is None else if_match.strip().strip('"')
    if text == "*":
        return None if body is None else body.revision
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise DataError("If-Match must hold the revision, a whole number.")
    return int(text)
