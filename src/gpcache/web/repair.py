"""Checks the files of a workspace when it is opened, and repairs damaged ones from intact ones."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from PIL import Image

from gpcache.encoders import Encoder
from gpcache.errors import DataError, ImageRefusedError, ModelFileError
from gpcache.images.augment import Views
from gpcache.images.records import plural
from gpcache.images.worker import THUMBNAIL
from gpcache.images.workers import DecodePool
from gpcache.model.training_images import original_of
from gpcache.support.array_folders import load_folder
from gpcache.web.encoding import encode_batch
from gpcache.web.stored_model import StoredModel, read_model, remove_model
from gpcache.web.workspace_contents import Photo
from gpcache.web.workspace_folder import (
    BASE,
    MODEL,
    SCHEMA,
    Document,
    EncodedPhoto,
    WorkspaceFolder,
)


class WholeModels(NamedTuple):
    """The model of a workspace, whether its base model is intact, and notices about damage."""

    stored: StoredModel | None
    base_is_whole: bool
    notices: Sequence[str]


def whole_models(folder: WorkspaceFolder, *, device: Any) -> WholeModels:
    """Read the model; a damaged one is removed, so that it is fitted again."""
    stored, damaged = None, []
    try:
        stored = read_model(folder.model, device=device)
    except ModelFileError:
        damaged.append(MODEL)
    base_is_whole = False
    if folder.base.exists():
        try:
            load_folder(folder.base)
            base_is_whole = True
        except ModelFileError:
            damaged.append(BASE)
    if BASE in damaged and stored is None:
        raise DataError(
            f"{str(folder.base)!r} is damaged, and there is no other copy of its settings: replace "
            "it by the model folder that the workspace started with."
        )
    if MODEL in damaged:
        remove_model(folder.model)
        return WholeModels(stored, base_is_whole, [
            f"{MODEL} was damaged: the model is fitted again from the photos, and its figures "
            "and answers may differ a little from those before."
        ])  # fmt: skip
    notice = f"{BASE} is damaged: replace it by the model folder that the workspace started with."
    return WholeModels(stored, base_is_whole, [notice] if damaged else [])


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
    for key in sorted(document.hashes()):
        try:
            photo = folder.get(key, sealed=not old)
        except DataError:
            damaged.append(key)
        else:
            if old:
                folder.put(photo, again=True)
    if not damaged:
        return document, []
    photos = {photo.hash: photo for photo in _all_photos(document)}
    rows = {} if stored is None else stored.features()
    pictureless, lost = [], []
    for key in damaged:
        repaired = _encoded_again(folder, document, photos[key], encoder)
        if repaired is None and key in rows:
            repaired = EncodedPhoto(key, rows[key], grey_picture())
            pictureless.append(photos[key].name)
        if repaired is None:
            lost.append(key)
        else:
            folder.put(repaired, again=True)
    return _without(document, lost), _notices(damaged, pictureless, [photos[key] for key in lost])


def grey_picture() -> bytes:
    """A grey picture for a photo whose file is missing."""
    stream = io.BytesIO()
    Image.new("RGB", (32, 32), "#888888").save(stream, "JPEG")
    return stream.getvalue()


def original(folder: WorkspaceFolder, document: Document, photo: Photo) -> bytes | None:
    """The file of a photo, from the workspace or from its training folder; None without both."""
    return folder.original(photo.hash) or original_of(photo.name, photo.hash, document.source)


def _all_photos(document: Document) -> list[Photo]:
    steps = [one for step in document.steps for one in step.photos.values() if one is not None]
    return [*steps, *document.contents.photos.values()]


def _encoded_again(
    folder: WorkspaceFolder, document: Document, photo: Photo, encoder: Encoder
) -> EncodedPhoto | None:
    content = original(folder, document, photo)
    if content is None:
        return None
    views = Views(document.views) if document.views else None
    try:
        with DecodePool(encoder.preprocess, views, workers=1) as pool:
            image = pool.submit(content, photo.hash, thumbnail=THUMBNAIL).result()
    except ImageRefusedError:
        return None
    return EncodedPhoto(photo.hash, encode_batch(encoder, [image.pixels])[0], image.thumbnail)


def _without(document: Document, lost: Sequence[str]) -> Document:
    if not lost:
        return document
    gone = set(lost)
    contents = document.contents
    ids = [key for key, photo in contents.photos.items() if photo.hash in gone]
    needs = [
        place
        for place, step in enumerate(document.steps)
        if any(photo is not None and photo.hash in gone for photo in step.photos.values())
    ]
    return replace(
        document,
        contents=contents.without_photos(ids),
        steps=document.steps[needs[-1] + 1 :] if needs else document.steps,
        revision=document.revision + 1,
    )


def _notices(
    damaged: Sequence[str], pictureless: Sequence[str], lost: Sequence[Photo]
) -> list[str]:
    notices = []
    if whole := len(damaged) - len(pictureless) - len(lost):
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
