"""Opens a workspace: a fresh one, one that begins with a saved model, or one that was left."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpcache.encoders import Encoder, load_encoder
from gpcache.encoders.prompts import DEFAULT_TEMPLATES
from gpcache.errors import DataError, EncoderError
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.model import files as model_files
from gpcache.model.training_images import picture_of
from gpcache.support.array_folders import CARD, CONFIG, TENSORS
from gpcache.support.files import make_folder, write_atomic
from gpcache.web.contents import ClassEntry, Contents, Photo
from gpcache.web.learner import Learner, Texts
from gpcache.web.workspace import Document, Stored, Workspace

Rows = NDArray[np.float32]


@dataclass
class Opened:
    """A workspace that is held by this process, with its encoder and its model."""

    workspace: Workspace
    document: Document
    encoder: Encoder
    texts: Texts
    learner: Learner
    template: CacheClassifier | None
    features: Callable[[str], Rows]
    device: Any

    def fresh_learner(self) -> Learner:
        """A model to be fitted beside the one in use."""
        templates = self.document.templates
        return Learner(self.texts, templates, self.features, self.template, device=self.device)


def open_workspace(
    folder: str | Path,
    *,
    model: str | Path | None = None,
    encoder: str | Encoder = "lite",
    device: Any = "auto",
) -> Opened:
    """Hold the folder, read what is in it, and bring its model up to date.

    `model` begins a fresh workspace; `encoder` counts only where there is no model and no
    workspace yet, or stands in for the one that is named there.
    """
    workspace = Workspace(folder)
    try:
        return _open(workspace, model, encoder, device)
    except BaseException:
        workspace.close()
        raise


def _open(
    workspace: Workspace, model: str | Path | None, encoder: str | Encoder, device: Any
) -> Opened:
    document = workspace.read()
    if model is not None and document is not None and not _same_model(workspace, Path(model)):
        if document.revision:
            raise DataError(
                f"The workspace {str(workspace.folder)!r} holds changes to another model than "
                f"{str(model)!r} is now: give --workspace another folder to begin with this one."
            )
        document = None
    if document is None and model is not None:
        document = _import(workspace, Path(model))
    given = encoder if isinstance(encoder, Encoder) else None
    name = encoder if isinstance(encoder, str) else encoder.name
    if given is not None:
        network = given
    elif document is None:
        network = load_encoder(name, device=device)
    else:
        # The name comes from a model or a workspace: nobody asked for a download.
        network = load_encoder(document.encoder, device=device, download=False)
    if document is None:
        document = Document(name, network.fingerprint, templates=DEFAULT_TEMPLATES)
        workspace.write(document)
    elif document.fingerprint != network.fingerprint:
        raise EncoderError(
            f"The workspace {str(workspace.folder)!r} holds features of the encoder "
            f"{document.encoder!r} with the fingerprint {document.fingerprint[:12]}, this one has "
            f"{network.fingerprint[:12]}: use that encoder, or another --workspace."
        )
    workspace.sweep(document)
    return _ready(workspace, document, network, device)


def _ready(workspace: Workspace, document: Document, encoder: Encoder, device: Any) -> Opened:
    known: dict[str, Rows] = {}

    def features(key: str) -> Rows:
        if key not in known:
            known[key] = workspace.get(key).features
        return known[key]

    base = None
    if workspace.base.exists():
        base = model_files.read(workspace.base, device=device)
        assert isinstance(base.model, CacheClassifier)  # others are not let in
    template = None if base is None else base.model
    texts = Texts(encoder)
    learner = Learner(texts, document.templates, features, template, device=device)
    if base is not None and isinstance(base.model, CacheClassifier):
        learner.begin(base.model, _photos(base))
    learner.follow(document.contents)
    return Opened(workspace, document, encoder, texts, learner, template, features, device)


def _same_model(workspace: Workspace, model: Path) -> bool:
    """Whether the workspace began with this model; its config holds the checksums of it all."""
    try:
        return (workspace.base / CONFIG).read_bytes() == (model / CONFIG).read_bytes()
    except OSError:
        return False


def _import(workspace: Workspace, folder: Path) -> Document:
    """Let a fresh workspace begin with the photos of a model."""
    content = model_files.read(folder, device="cpu")
    model = content.model
    if not isinstance(model, CacheClassifier):
        raise DataError(
            f"The method of {str(folder)!r} keeps no photos to show or to change: fit it with "
            "--method gpcache and at least one photo."
        )
    rows = model._shots.features.float().cpu().numpy()
    for example, features in zip(content.examples, rows, strict=True):
        picture = content.thumbnails.get(example.hash)
        picture = picture or picture_of(example, content.training.source) or _blank()
        workspace.put(example.hash, Stored(features, picture))
    shutil.rmtree(workspace.base, ignore_errors=True)
    make_folder(workspace.base, private=True)
    for name in (TENSORS, CARD, CONFIG):
        if (folder / name).exists():
            write_atomic(workspace.base / name, (folder / name).read_bytes(), private=True)
    prompts = content.prompts
    told = {} if prompts is None else dict(zip(*_columns(prompts), strict=True))
    classes = tuple(
        ClassEntry(str(name), "\n".join(told[name]) if name in told else None)
        for name in model.classes_
    )
    photos = _photos(content)
    document = Document(
        encoder=content.encoder.name,
        fingerprint=content.encoder.fingerprint,
        name=folder.resolve().name.removesuffix(".gpc") or "workspace",
        templates=None if prompts is None else tuple(content.templates or DEFAULT_TEMPLATES),
        views=content.views,
        next_id=len(photos) + 1,
        contents=Contents(classes, {photo.id: photo for photo in photos}),
    )
    workspace.write(document)
    return document


def _columns(prompts: Any) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    return prompts.class_names, prompts.sentences


def _photos(content: model_files.Content) -> list[Photo]:
    """The photos of a model, in its order."""
    return [
        Photo(f"p{number}", one.name, one.label, one.hash, one.group)
        for number, one in enumerate(content.examples, start=1)
    ]


def _blank() -> bytes:
    """A grey picture, for a photo that is no longer where it was."""
    stream = io.BytesIO()
    Image.new("RGB", (32, 32), "#888888").save(stream, "JPEG")
    return stream.getvalue()
