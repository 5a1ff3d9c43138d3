"""Checks the files of a workspace when it is opened, and repairs damaged ones from intact ones.

Nothing is changed here: a file that cannot be read ends the start and leaves all files as they are.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from gpcache.encoders import Encoder
from gpcache.errors import DataError, ModelFileError
from gpcache.features.extract import gather
from gpcache.images.augment import Views
from gpcache.images.records import Record, Source, plural
from gpcache.images.workers import small_picture
from gpcache.model import files as model_files
from gpcache.model.training_images import original_of
from gpcache.web.stored_files import MISSING, UnreadableError
from gpcache.web.stored_model import StoredModel, read_model
from gpcache.web.workspace_contents import Photo
from gpcache.web.workspace_folder import (
    ORIGINALS,
    SCHEMA,
    Document,
    EncodedPhoto,
    WorkspaceFolder,
)


class Repairs(NamedTuple):
    """How to repair a workspace: its document without lost photos, and photos to write again.

    `notices` say what is repaired and what is lost.
    """

    document: Document
    photos: Sequence[EncodedPhoto] = ()
    notices: Sequence[str] = ()


def read_models(
    folder: WorkspaceFolder, *, device: Any
) -> tuple[StoredModel | None, model_files.Content | None, list[str]]:
    """The model of a workspace, the one that it started with, and notices about damage.

    A model that does not exist or is damaged is None, so that it is fitted again.
    """
    stored = base = None
    notices = []
    try:
        stored = read_model(folder.model, device=device)
    except ModelFileError as error:
        _refuse_unreadable(folder.model, error)
        notices.append(
            f"{folder.model.name} was damaged: the model is fitted again from the photos, and its "
            "figures and answers may differ a little from those before."
        )
    try:
        base = model_files.read(folder.base, device=device) if folder.base.exists() else None
    except ModelFileError as error:
        _refuse_unreadable(folder.base, error)
        if stored is None:
            raise DataError(
                f"{str(folder.base)!r} is damaged, and there is no other copy of its settings: "
                "replace it by the model folder that the workspace started with."
            ) from None
        notices.append(
            f"{folder.base.name} is damaged: replace it by the model folder that the workspace "
            "started with."
        )
    return stored, base, notices


def _refuse_unreadable(model: Path, error: ModelFileError) -> None:
    """Raise an error if a file of the model exists but could not be read."""
    cause = error.__context__  # the error of the system, if there was one
    if isinstance(cause, OSError) and not isinstance(cause, MISSING):
        raise UnreadableError(Path(cause.filename or model), cause) from None


def find_repairs(
    folder: WorkspaceFolder, document: Document, stored: StoredModel | None, encoder: Encoder
) -> Repairs:
    """Read every photo, and encode damaged ones again.

    The document is without lost photos, and without the undo steps that need them.
    """
    old = document.schema != SCHEMA
    damaged: list[str] = []
    repaired: list[EncodedPhoto] = []
    photos = document.photos()
    for key in sorted(photos):
        try:
            photo = folder.get(key, sealed=not old)
        except DataError:
            damaged.append(key)
        else:
            repaired += [photo] if old else []  # with a checksum
    rows = stored.features() if damaged and stored is not None else {}
    pictureless, lost = [], []
    for key in damaged:
        again = _encoded_again(folder, document, photos[key], encoder)
        if again is None and key in rows:
            again = EncodedPhoto(key, rows[key], grey_picture())
            pictureless.append(photos[key].name)
        if again is None:
            lost.append(photos[key])
        else:
            repaired.append(again)
    notices = _notices(len(damaged), pictureless, lost)
    return Repairs(_without(document, lost), repaired, notices)


def grey_picture() -> bytes:
    """A grey picture for a photo whose file is missing."""
    stream = io.BytesIO()
    Image.new("RGB", (32, 32), "#888888").save(stream, "JPEG")
    return stream.getvalue()


def original(folder: WorkspaceFolder, document: Document, photo: Photo) -> bytes | None:
    """The file of a photo, from the workspace or from its training folder; None without both."""
    return folder.original(photo.hash) or original_of(photo.name, photo.hash, document.source)


def _encoded_again(
    folder: WorkspaceFolder, document: Document, photo: Photo, encoder: Encoder
) -> EncodedPhoto | None:
    content = original(folder, document, photo)
    if content is None:
        return None
    views = Views(document.views) if document.views else None
    gathered = gather(Source(photo.name, [Record(photo.name, content)]), encoder, views=views)
    if gathered.refused:
        file = folder.path / ORIGINALS / photo.hash
        raise DataError(
            f"The photo {photo.name!r} is damaged, and its intact original cannot be decoded now "
            f"({gathered.refused[0].reason}): correct this, or move {str(file)!r} away to continue "
            "without it, then start again."
        )
    return EncodedPhoto(photo.hash, gathered.features[0], small_picture(content))


def _without(document: Document, lost: Sequence[Photo]) -> Document:
    if not lost:
        return document
    gone, steps = {photo.hash for photo in lost}, document.steps
    ids = [key for key, photo in document.contents.photos.items() if photo.hash in gone]
    for place, step in enumerate(document.steps, start=1):
        if any(photo is not None and photo.hash in gone for photo in step.photos.values()):
            steps = document.steps[place:]
    contents = document.contents.without_photos(ids)
    return replace(document, contents=contents, steps=steps, revision=document.revision + 1)


def _notices(damaged: int, pictureless: Sequence[str], lost: Sequence[Photo]) -> list[str]:
    notices = []
    if whole := damaged - len(pictureless) - len(lost):
        notices.append(f"{plural(whole, 'damaged photo')} repaired from the original.")
    if pictureless:
        notices.append(
            f"The pictures of {plural(len(pictureless), 'damaged photo')} are lost, such as "
            f"{pictureless[0]!r}; the model keeps what it learned from them."
        )
    notices += [
        f"The photo {photo.name!r} of the class {photo.label!r} is damaged and cannot be repaired: "
        "add it again."
        for photo in lost
    ]
    return notices
