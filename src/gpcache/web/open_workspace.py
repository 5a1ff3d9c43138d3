"""Opens a workspace: a new one, one that begins with a saved model, or one that was left."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image

from gpcache.encoders import Encoder, load_encoder
from gpcache.encoders.base import Features
from gpcache.encoders.prompts import DEFAULT_TEMPLATES
from gpcache.errors import DataError, EncoderError
from gpcache.images.records import readable
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.model import files as model_files
from gpcache.model.training_images import picture_of
from gpcache.support.array_folders import CARD, CONFIG, TENSORS
from gpcache.support.files import make_folder, write_atomic
from gpcache.web.learner import Learner, Texts
from gpcache.web.workspace import Workspace
from gpcache.web.workspace_contents import ClassEntry, Contents, Photo
from gpcache.web.workspace_folder import Document, EncodedPhoto, WorkspaceFolder


def open_workspace(
    path: str | Path,
    *,
    model: str | Path | None = None,
    encoder: str | Encoder = "lite",
    device: Any = "auto",
) -> Workspace:
    """Hold the folder, read what is in it, and bring its model up to date.

    `model` begins a new workspace; `encoder` counts only where there is no model and no
    workspace yet, or stands in for the one that is named there.
    """
    folder = WorkspaceFolder(path)
    try:
        document = _document(folder, None if model is None else Path(model))
        network = _encoder(document, encoder, device)
        if document is None:
            name = encoder if isinstance(encoder, str) else encoder.name
            document = Document(name, network.fingerprint, templates=DEFAULT_TEMPLATES)
            folder.write(document)
        elif document.fingerprint != network.fingerprint:
            raise EncoderError(
                f"The workspace {str(folder.path)!r} holds features of the encoder "
                f"{document.encoder!r} with the fingerprint {document.fingerprint[:12]}, this one "
                f"has {network.fingerprint[:12]}: use that encoder, or another --workspace."
            )
        folder.sweep(document)
        return _with_model(folder, document, network, device)
    except BaseException:
        folder.close()
        raise


def _document(folder: WorkspaceFolder, model: Path | None) -> Document | None:
    """What the folder holds, or a beginning with the model; None for a beginning with nothing."""
    document = folder.read()
    if model is None or (document is not None and _began_with(folder, model)):
        return document
    if document is not None and document.revision:
        raise DataError(
            f"The workspace {str(folder.path)!r} holds changes to another model than "
            f"{str(model)!r} is now: give --workspace another folder to begin with this one."
        )
    return _import(folder, model)


def _began_with(folder: WorkspaceFolder, model: Path) -> bool:
    """Whether the workspace began with this model; its config holds the checksums of it all."""
    try:
        return (folder.base / CONFIG).read_bytes() == (model / CONFIG).read_bytes()
    except OSError:
        return False


def _encoder(document: Document | None, encoder: str | Encoder, device: Any) -> Encoder:
    if isinstance(encoder, Encoder):
        return encoder
    if document is None:
        return load_encoder(encoder, device=device)
    # The name comes from a model or a workspace: nobody asked for a download.
    return load_encoder(document.encoder, device=device, download=False)


def _with_model(
    folder: WorkspaceFolder, document: Document, encoder: Encoder, device: Any
) -> Workspace:
    known: dict[str, Features] = {}

    def features(key: str) -> Features:
        if key not in known:
            known[key] = folder.get(key).features
        return known[key]

    texts, template = Texts(encoder), None
    learner = Learner(texts, document.templates, features, device=device)
    if folder.base.exists():
        base = model_files.read(folder.base, device=device)
        assert isinstance(base.model, CacheClassifier)  # others are not let in
        template = base.model
        learner = Learner(texts, document.templates, features, template, device=device)
        learner.begin(template, _photos(base))
    learner.follow(document.contents)
    return Workspace(folder, document, encoder, texts, learner, features, template, device)


def _import(folder: WorkspaceFolder, path: Path) -> Document:
    """Let a new workspace begin with the photos of a model."""
    content = model_files.read(path, device="cpu")
    model = content.model
    if not isinstance(model, CacheClassifier):
        raise DataError(
            f"The method of {str(path)!r} keeps no photos to show or to change: fit it with "
            "--method gpcache and at least one photo."
        )
    rows = model.fitted_.shots.features.float().cpu().numpy()
    for example, features in zip(content.examples, rows, strict=True):
        thumbnail = content.thumbnails.get(example.hash)
        thumbnail = thumbnail or picture_of(example, content.training.source) or _grey_picture()
        folder.put(EncodedPhoto(example.hash, features, thumbnail))
    shutil.rmtree(folder.base, ignore_errors=True)
    make_folder(folder.base, private=True)
    for name in (TENSORS, CARD, CONFIG):
        if (path / name).exists():
            write_atomic(folder.base / name, (path / name).read_bytes(), private=True)
    prompts = content.prompts
    pairs = () if prompts is None else zip(prompts.class_names, prompts.sentences, strict=True)
    sentences = {name: "\n".join(lines) for name, lines in pairs}
    classes = tuple(ClassEntry(str(name), sentences.get(name)) for name in model.classes_)
    photos = _photos(content)
    document = Document(
        encoder=content.encoder.name,
        fingerprint=content.encoder.fingerprint,
        name=readable(path.resolve().name).removesuffix(".gpc") or "workspace",
        templates=None if prompts is None else tuple(content.templates or DEFAULT_TEMPLATES),
        views=content.views,
        next_id=len(photos) + 1,
        contents=Contents(classes, {photo.id: photo for photo in photos}),
    )
    folder.write(document)
    return document


def _photos(content: model_files.Content) -> list[Photo]:
    """The photos of a model, in its order."""
    return [
        Photo(f"p{number}", one.name, one.label, one.hash, one.group)
        for number, one in enumerate(content.examples, start=1)
    ]


def _grey_picture() -> bytes:
    """For a photo that is no longer where it was."""
    stream = io.BytesIO()
    Image.new("RGB", (32, 32), "#888888").save(stream, "JPEG")
    return stream.getvalue()
