"""Opens a workspace: a new one, one that starts with a saved model, or an existing one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gpcache.encoders import Encoder, load_encoder
from gpcache.encoders.prompts import DEFAULT_TEMPLATES
from gpcache.errors import DataError, EncoderError
from gpcache.images.records import readable
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.model import files as model_files
from gpcache.model.audit.fingerprints import fingerprint_of
from gpcache.support.array_folders import CONFIG, load_folder, save_folder
from gpcache.support.files import sha256
from gpcache.support.locks import locked_folder
from gpcache.support.temporary import remove
from gpcache.web.learner import Learner, Texts
from gpcache.web.repair import find_repairs, grey_picture, read_models
from gpcache.web.stored_files import read_if_stored
from gpcache.web.stored_model import StoredModel
from gpcache.web.workspace import Workspace
from gpcache.web.workspace_contents import ClassEntry, Contents, Photo
from gpcache.web.workspace_folder import SCHEMA, Document, EncodedPhoto, WorkspaceFolder


def open_workspace(
    path: str | Path,
    *,
    model: str | Path | None = None,
    encoder: str | Encoder = "lite",
    device: Any = "auto",
) -> Workspace:
    """Lock the folder, read its content, and update its model.

    `model` starts a new workspace; `encoder` is used only if there is no model and no workspace
    yet, or if it is the loaded encoder of the workspace.
    """
    folder = WorkspaceFolder(path)
    try:
        document, notices = _document(folder, None if model is None else Path(model))
        network = _encoder(document, encoder, device)
        if document is None:
            name = encoder if isinstance(encoder, str) else encoder.name
            document = Document(name, network.fingerprint, templates=DEFAULT_TEMPLATES)
        elif document.fingerprint != network.fingerprint:
            raise EncoderError(
                f"The workspace {str(folder.path)!r} holds features of the encoder "
                f"{document.encoder!r} with the fingerprint {document.fingerprint[:12]}, this one "
                f"has {network.fingerprint[:12]}: use that encoder, or another --workspace."
            )
        return _with_model(folder, document, network, device, notices)
    except BaseException:
        folder.close()
        raise


def _document(folder: WorkspaceFolder, model: Path | None) -> tuple[Document | None, list[str]]:
    """The document of the folder, or a new one with the model; None for an empty workspace."""
    document, notices = folder.read()
    began_with = "" if document is None else document.began_with or _config_hash(folder.base)
    if model is None or (began_with and began_with == _config_hash(model)):
        return document, notices
    if document is not None and document.revision:
        raise DataError(
            f"The workspace {str(folder.path)!r} holds changes to another model than "
            f"{str(model)!r}: give --workspace another folder to start with this one."
        )
    return _import(folder, model), notices


def _config_hash(model: Path) -> str:
    """The SHA-256 of a model's config; empty if there is none."""
    data = read_if_stored(model / CONFIG)
    return "" if data is None else sha256(data)


def _encoder(document: Document | None, encoder: str | Encoder, device: Any) -> Encoder:
    if isinstance(encoder, Encoder):
        return encoder
    if document is None:
        return load_encoder(encoder, device=device)
    # The name comes from a model or a workspace: do not download anything.
    return load_encoder(document.encoder, device=device, download=False)


def _with_model(
    folder: WorkspaceFolder, document: Document, encoder: Encoder, device: Any, notices: list[str]
) -> Workspace:
    features = cache(lambda key: folder.get(key).features)
    picture = cache(lambda key: fingerprint_of(folder.get(key).thumbnail))
    stored, base, damage = read_models(folder, device=device)
    on_disk = None if stored is None else stored.model.fitted_
    if base is not None and document.schema != SCHEMA:
        source, began_with = base.training.source, _config_hash(folder.base)
        document = replace(document, source=source, began_with=began_with)
    document, photos, repairs = find_repairs(folder, document, stored, encoder)
    unchanged = folder.holds(document)
    # From here on files are changed: all of them were read before.
    if stored is None:
        remove(folder.model)
    for photo in photos:
        folder.put(photo, again=True)
    if not unchanged:  # a workspace can be opened on a full disk
        folder.write(document)
    folder.sweep(document)
    if stored is None and base is not None:
        assert isinstance(base.model, CacheClassifier)  # others are refused
        stored = StoredModel.of(base.model, _photos(base))
    template = None if stored is None or not folder.base.exists() else stored.model
    given = Texts(encoder), document.templates, features, template
    learner = Learner(*given, picture=picture, device=device, stored=stored)
    learner.follow(document.contents)
    notices = [*notices, *damage, *repairs]
    workspace = Workspace(folder, document, encoder, learner, notices, on_disk)
    workspace.keep_model()
    return workspace


def _import(folder: WorkspaceFolder, path: Path) -> Document:
    """Start a new workspace with the photos of a model."""
    with locked_folder(path):  # so that all of these are of one revision
        content = model_files.read(path, device="cpu")
        config, arrays = load_folder(path)
        began_with = _config_hash(path)
    model = content.model
    if not isinstance(model, CacheClassifier):
        raise DataError(
            f"The method of {str(path)!r} keeps no photos to show or to change: fit it with "
            "--method gpcache and at least one photo."
        )
    rows = model.fitted_.shots.features.float().cpu().numpy()
    for example, features in zip(content.examples, rows, strict=True):
        thumbnail = content.picture(example) or grey_picture()
        folder.put(EncodedPhoto(example.hash, features, thumbnail))
    remove(folder.model)
    remove(folder.base)
    save_folder(folder.base, config, arrays, card="")
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
        source=content.training.source,
        began_with=began_with,
    )
    folder.write(document)
    return document


def _photos(content: model_files.Content) -> list[Photo]:
    """The photos of a model, in its order."""
    return [
        Photo(f"p{number}", one.name, one.label, one.hash, one.group)
        for number, one in enumerate(content.examples, start=1)
    ]
