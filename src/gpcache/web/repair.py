"""Checks the files of a workspace when it is opened, and repairs damaged ones from intact ones."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from PIL import Image

from gpcache.encoders import Encoder
from gpcache.errors import DataError, ModelFileError
from gpcache.features.extract import gather
from gpcache.images.augment import Views
from gpcache.images.records import Record, Source, plural
from gpcache.images.workers import small_picture
from gpcache.model import files as model_files
from gpcache.model.training_images import original_of
from gpcache.support.temporary import remove
from gpcache.web.stored_model import StoredModel, read_model
from gpcache.web.workspace_contents import Photo
from gpcache.web.workspace_folder import SCHEMA, Document, EncodedPhoto, WorkspaceFolder


def read_models(
    folder: WorkspaceFolder, *, device: Any
) -> tuple[StoredModel | None, model_files.Content | None, list[str]]:
    """The model of a workspace, the one that it started with, and notices about damage.

    A model that does not exist or is damaged is None. A damaged one is removed, so that it is
    fitted again.
    """
    stored = base = None
    notices = []
    try:
        stored = read_model(folder.model, device=device)
    except ModelFileError:
        notices.append(
            f"{folder.model.name} was damaged: the model is fitted again from the photos, and its "
            "figures and answers may differ a little from those before."
        )
    try:
        base = model_files.read(folder.base, device=device) if folder.base.exists() else None
    except ModelFileError:
        if stored is None:
            raise DataError(
                f"{str(folder.base)!r} is damaged, and there is no other copy of its settings: "
                "replace it by the model folder that the workspace started with."
            ) from None
        notices.append(
            f"{folder.base.name} is damaged: replace it by the model folder that the workspace "
            "started with."
        )
    if stored is None:
        remove(folder.model)
    return stored, base, notices


def repaired_photos(
    folder: WorkspaceFolder, document: Document, stored: StoredModel | None, encoder: Encoder
) -> tuple[Document, list[str]]:
    """Read every photo, and encode damaged ones again; the document without lost photos.

    Returns
    -------
    document : Document
        Without lost photos, and without the undo steps that need them.
    notices : list of str
        What was repaired and what is lost.
    """
    old = document.schema != SCHEMA
    damaged = []
    photos = document.photos()
    for key in sorted(photos):
        try:
            photo = folder.get(key, sealed=not old)
        except DataError:
            damaged.append(key)
        else:
            if old:
                folder.put(photo, again=True)
    if not damaged:
        return document, []
    rows = {} if stored is None else stored.features()
    pictureless, lost = [], []
    for key in damaged:
        repaired = _encoded_again(folder, document, photos[key], encoder)
        if repaired is None and key in rows:
            repaired = EncodedPhoto(key, rows[key], grey_picture())
            pictureless.append(photos[key].name)
        if repaired is None:
            lost.append(photos[key])
        else:
            folder.put(repaired, again=True)
    return _without(document, lost), _notices(len(damaged), pictureless, lost)


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
        return None
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
