"""/v1: the workspace itself, its classes, photos, pool and figures."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Query, Request, Response

from gpcache.errors import DataError
from gpcache.images.records import plural
from gpcache.web import schemas
from gpcache.web.service import Service
from gpcache.web.uploads import received
from gpcache.web.workspace import Edit
from gpcache.web.workspace_contents import Contents


def workspace_routes(service: Service) -> APIRouter:
    """The routes that show and change the workspace."""
    routes = APIRouter(prefix="/v1", tags=["workspace"], responses=schemas.PROBLEMS)
    _add_class_routes(routes, service)
    _add_photo_routes(routes, service)
    workspace = service.workspace

    @routes.get("/state", response_model=schemas.State)
    async def state() -> Any:
        """The workspace as it is."""
        return await service.run(workspace.state)

    @routes.post("/undo", response_model=schemas.State)
    async def undo(if_match: schemas.IfMatch = None) -> Any:
        """Take the last change back."""
        return await service.run(workspace.undo, _revision(if_match))

    @routes.delete("/refused", response_model=schemas.State)
    async def clear_refused() -> Any:
        """Forget the files that were refused."""
        return await service.run(workspace.clear_refused)

    @routes.get("/loo")
    async def loo() -> dict[str, Any]:
        """The figures of every photo held out, or why there are none."""
        return await service.run(workspace.loo)

    @routes.get("/curve", response_model=list[schemas.Point])
    async def curve() -> Any:
        """The leave-one-out accuracy after each change, the latest last."""
        return [{"n": n, "accuracy": accuracy} for n, accuracy in workspace.document.curve]

    @routes.get("/suggest", response_model=schemas.Suggested)
    async def suggest(count: int = Query(10, ge=1, le=100)) -> Any:
        """Which photos of the pool to label next."""
        return {"photos": await service.run(workspace.suggestions, count)}

    return routes


def _add_class_routes(routes: APIRouter, service: Service) -> None:
    @routes.post("/classes", response_model=schemas.State)
    async def add_class(body: schemas.NewClass, if_match: schemas.IfMatch = None) -> Any:
        """Add a class, known by its name and prompt alone at first."""

        def edit(contents: Contents) -> Contents:
            return contents.with_class(body.name, body.prompt)

        return await _change(service, edit, f"adding the class {body.name[:80]}", body, if_match)

    @routes.patch("/classes", response_model=schemas.State)
    async def change_class(body: schemas.ChangedClass, if_match: schemas.IfMatch = None) -> Any:
        """Rename a class, or give it another prompt."""

        def edit(contents: Contents) -> Contents:
            return contents.with_changed_class(body.name, body.new_name, body.prompt)

        return await _change(service, edit, f"changing the class {body.name[:80]}", body, if_match)

    @routes.delete("/classes", response_model=schemas.State)
    async def remove_class(body: schemas.NamedClass, if_match: schemas.IfMatch = None) -> Any:
        """Remove a class and its photos."""

        def edit(contents: Contents) -> Contents:
            return contents.without_class(body.name)

        return await _change(service, edit, f"removing the class {body.name[:80]}", body, if_match)


def _add_photo_routes(routes: APIRouter, service: Service) -> None:
    @routes.post(
        "/examples",
        response_model=schemas.Added,
        openapi_extra=schemas.files_body(label=True, image=False),
    )
    async def add_examples(request: Request, if_match: schemas.IfMatch = None) -> Any:
        """Learn photos of one class."""
        revision = _revision(if_match)
        async with received(request) as form, service.encoding.admitted():
            label = form.fields.get("label", "")
            if not label.strip():
                raise DataError("Say which class the photos are of, in the field 'label'.")
            return await service.add(form.files, label, revision)

    @routes.patch("/examples", response_model=schemas.State)
    async def change_photos(body: schemas.ChangedPhotos, if_match: schemas.IfMatch = None) -> Any:
        """Give photos another label, or say that they belong where they are."""
        label, keep, photos = body.label, body.keep, plural(len(body.ids), "photo")
        if label is None and keep is None:
            raise DataError("Say what to change of the photos: 'label', 'keep', or both.")
        what = f"{'keeping' if keep else 'questioning'} {photos}"
        if label is not None:
            what = f"labelling {photos} as {label[:80]}"

        def edit(contents: Contents) -> Contents:
            if label is not None:
                contents = contents.with_labels(body.ids, label)
            return contents if keep is None else contents.with_kept(body.ids, keep)

        return await _change(service, edit, what, body, if_match)

    @routes.delete("/examples", response_model=schemas.State)
    async def remove(body: schemas.Chosen, if_match: schemas.IfMatch = None) -> Any:
        """Forget photos."""

        def edit(contents: Contents) -> Contents:
            return contents.without_photos(body.ids)

        what = f"removing {plural(len(body.ids), 'photo')}"
        return await _change(service, edit, what, body, if_match)

    @routes.get(
        "/photos/{photo}",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}}},
    )
    async def picture(photo: str) -> Response:
        """A small picture, encoded anew."""
        known = service.workspace.document.contents.photos.get(photo)
        if known is None:
            raise HTTPException(404, "There is no such photo")
        stored = await service.run(service.workspace.folder.get, known.hash)
        # The picture of an id never changes, and nobody else can read this cache.
        headers = {"cache-control": "private, max-age=86400, immutable"}
        return Response(stored.thumbnail, media_type="image/jpeg", headers=headers)

    @routes.post(
        "/pool", response_model=schemas.Pool, openapi_extra=schemas.files_body(image=False)
    )
    async def fill_pool(request: Request) -> Any:
        """Add photos without a label."""
        async with received(request) as form, service.encoding.admitted():
            return await service.fill_pool(form.files)

    @routes.post("/label", response_model=schemas.State)
    async def label(body: schemas.Labelled, if_match: schemas.IfMatch = None) -> Any:
        """Move a photo of the pool into a class."""

        def edit(contents: Contents) -> Contents:
            return contents.with_labels([body.id], body.label)

        return await _change(
            service, edit, f"labelling a photo as {body.label[:80]}", body, if_match
        )


async def _change(
    service: Service, edit: Edit, what: str, body: schemas.Body, if_match: str | None
) -> dict[str, Any]:
    return await service.change(edit, what, _revision(if_match, body.revision))


def _revision(if_match: str | None, in_body: int | None = None) -> int | None:
    """The revision that a change was decided on, from the header or the body; None is any."""
    text = "*" if if_match is None else if_match.strip().strip('"')
    if text == "*":
        return in_body
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise DataError("If-Match must hold the revision, a whole number.")
    return int(text)
