"""The folder of a workspace: a JSON document and its copy, files of photos, a model, and a lock.

The document is replaced in one step after its photos are on disk, so acknowledged changes survive a
kill. Every file holds a checksum, or is named by it: damaged files are never used. A file that
cannot be read is not damaged: it is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gpcache.encoders.lite_recipes import current_name
from gpcache.errors import DataError
from gpcache.images.records import Refused
from gpcache.support.files import make_folder, sha256, write_atomic
from gpcache.support.seals import UNSEALED, is_sealed, seal
from gpcache.support.temporary import remove_stale
from gpcache.web.curve import Curve
from gpcache.web.stored_files import MISSING, check_folder, read_if_stored, read_stored
from gpcache.web.workspace_contents import ClassEntry, Contents, Photo, UndoStep, by_id

SCHEMA = 3
# Without checksums and originals; such a workspace is brought up to date when it is opened.
OLD_SCHEMA = 2
DOCUMENT, COPY = "workspace.json", "workspace-copy.json"
PHOTOS, ORIGINALS, BATCHES, BASE, MODEL = "photos", "originals", "batches", "base.gpc", "model.gpc"


class EncodedPhoto(NamedTuple):
    """A photo that was read: the hash of its content, its features (dim,), and a small JPEG."""

    hash: str
    features: NDArray[np.float32]
    thumbnail: bytes = b""
    name: str = ""


class _StoredContents(NamedTuple):
    """The contents as stored in the document; a missing field is an error."""

    classes: tuple[ClassEntry, ...]
    photos: tuple[Photo, ...]


_CONTENTS_JSON = TypeAdapter(_StoredContents)


def _read_contents(value: Any) -> Contents:
    stored = _CONTENTS_JSON.validate_python(value)
    return Contents(stored.classes, by_id(stored.photos))


def _write_contents(contents: Contents) -> dict[str, Any]:
    return {"classes": contents.classes, "photos": list(contents.photos.values())}


@dataclass(frozen=True)
class Document:
    """The complete state of the workspace at one revision.

    `curve` holds the held-out accuracy after each change of it. `templates` is None if class names
    do not count. If the workspace started with a model, `source` is the folder of its photos and
    `began_with` the SHA-256 of its config.
    """

    encoder: str
    fingerprint: str
    name: str = "workspace"
    templates: tuple[str, ...] | None = None
    views: int = 0
    revision: int = 0
    next_id: int = 1
    contents: Annotated[
        Contents, PlainValidator(_read_contents), PlainSerializer(_write_contents)
    ] = field(default_factory=Contents)
    steps: tuple[UndoStep, ...] = ()
    refused: tuple[Refused, ...] = ()
    curve: Curve = ()
    source: str = ""
    began_with: str = ""
    schema: int = SCHEMA

    def photos(self) -> dict[str, Photo]:
        """The photos that are in use, or would be after an undo, by their hash."""
        undone = [photo for step in self.steps for photo in step.photos.values()]
        photos = [*undone, *self.contents.photos.values()]
        return {photo.hash: photo for photo in photos if photo is not None}


_DOCUMENT_JSON = TypeAdapter(Document)


class WorkspaceFolder:
    """A folder that one server at a time locks; only its owner can read it.

    `base` is the model that the workspace started with, if any, and `model` the present one.
    """

    def __init__(self, path: str | Path) -> None:
        if os.path.isfile(path):
            raise DataError(
                f"{str(path)!r} is a file: give --workspace a folder, or a name that does not "
                "exist yet."
            )
        self.path = make_folder(path, private=True)
        self.base, self.model = self.path / BASE, self.path / MODEL
        self.batches = self.path / BATCHES
        # Another thread than the one that opens the workspace may close it.
        lock = self.path / ".lock"
        self._lock = FileLock(lock, mode=0o600, thread_local=False)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise DataError(
                f"Another gpcache serve holds the workspace {str(self.path)!r}: stop it, or "
                "give this one another folder with --workspace."
            ) from None
        except OSError as error:
            raise DataError(
                f"{str(lock)!r} cannot be locked ({error.strerror}): make the workspace readable "
                "and writable for this user, or give another folder with --workspace."
            ) from None
        for folder in (self.path, self.path / PHOTOS, self.path / ORIGINALS, self.batches):
            remove_stale(make_folder(folder, private=True))

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def read(self) -> tuple[Document | None, list[str]]:
        """The document (None in a new folder), and notices about repairs.

        The document of a damaged file is that of its copy; the caller writes it again.
        """
        for folder in (PHOTOS, ORIGINALS, BATCHES):
            check_folder(self.path / folder)
        file, copy = self.path / DOCUMENT, self.path / COPY
        data, copied = read_if_stored(file), read_if_stored(copy)
        if data is None and copied is None:
            if self.model.exists():
                raise DataError(
                    f"{str(file)!r} and its {COPY} are missing, but other files exist: restore one "
                    "of them from a backup."
                )
            return None, []
        try:
            return _read_document(file, data), []
        except _DamagedError as error:
            damage = str(error)
        try:
            document = _read_document(copy, copied)
        except _DamagedError as error:
            raise DataError(
                f"{str(file)!r} is damaged ({damage}), and so is its {COPY} ({error}): restore "
                "one of them from a backup."
            ) from None
        return document, [f"{DOCUMENT} was damaged ({damage}) and is repaired from its copy."]

    def write(self, document: Document) -> None:
        """Replace the document and then its copy, each in one step."""
        data = _sealed(document)
        for name in (DOCUMENT, COPY):
            write_atomic(self.path / name, data, private=True)

    def holds(self, document: Document) -> bool:
        """Whether both files hold exactly this document, so that `write` would change nothing."""
        data = _sealed(document)
        return all(read_if_stored(self.path / name) == data for name in (DOCUMENT, COPY))

    def put(self, photo: EncodedPhoto, *, again: bool = False) -> None:
        """Store a photo under the hash of its content; `again` replaces an existing file."""
        file = self._file(photo.hash)
        if again or not file.exists():
            thumbnail = np.frombuffer(photo.thumbnail, dtype=np.uint8)
            arrays: dict[str, NDArray[Any]] = {"features": photo.features, "picture": thumbnail}
            # Stale files among many photos are removed when the workspace is opened.
            data = seal(save(arrays, {"sha256": UNSEALED}))
            write_atomic(file, data, private=True, sweep=False)

    def get(self, key: str, *, sealed: bool = True) -> EncodedPhoto:
        """A stored photo; those of an old workspace are not `sealed`."""
        try:
            data = read_stored(self._file(key))
            if sealed and not is_sealed(data):
                raise KeyError
            arrays = load(data)
            return EncodedPhoto(key, arrays["features"], arrays["picture"].tobytes())
        except (*MISSING, SafetensorError, KeyError):
            raise DataError(
                f"{str(self._file(key))!r} is missing or damaged: start gpcache serve again, which "
                "repairs it from the original photo."
            ) from None

    def put_original(self, content: bytes, key: str) -> None:
        """Store the original file of a photo under its hash."""
        file = self.path / ORIGINALS / key
        if not file.exists():
            write_atomic(file, content, private=True, sweep=False)

    def original(self, key: str) -> bytes | None:
        """The original file of a photo; None if it was not stored or has changed."""
        content = read_if_stored(self.path / ORIGINALS / key)
        return None if content is None or sha256(content) != key else content

    def sweep(self, document: Document) -> None:
        """Delete the photos that neither the document nor an undo step uses."""
        known = document.photos()
        for folder in (PHOTOS, ORIGINALS):
            for file in (self.path / folder).iterdir():
                if file.stem not in known:
                    file.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.path / PHOTOS / f"{key}.safetensors"


class _DamagedError(ValueError):
    """A document cannot be used."""


def _sealed(document: Document) -> bytes:
    """The document as a file."""
    text = _DOCUMENT_JSON.dump_json(replace(document, schema=SCHEMA))
    return seal(b'{"sha256":"%s",%s' % (UNSEALED.encode(), text[1:]))


def _read_document(file: Path, data: bytes | None) -> Document:
    """The document in the bytes of a file, which are None if it does not exist."""
    if data is None:
        raise _DamagedError("it is missing")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise _DamagedError("it is not JSON") from None
    schema = content.get("schema") if isinstance(content, Mapping) else None
    unsealed = schema == OLD_SCHEMA and "sha256" not in content
    if not unsealed and not is_sealed(data):
        raise _DamagedError("its SHA-256 differs")
    if schema not in (OLD_SCHEMA, SCHEMA):
        raise DataError(f"{str(file)!r} is of another gpcache: use the one that wrote it.")
    # The defaults are for new workspaces: in a file, a missing field was lost.
    later = {"source", "began_with"} if unsealed else set()
    missing = [f.name for f in fields(Document) if f.name not in content and f.name not in later]
    try:
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        if unsealed:
            content["curve"] = ()  # it did not distinguish classes
        document = _DOCUMENT_JSON.validate_python(content)
    except ValueError as error:
        raise _DamagedError(first_problem(error)) from None
    return replace(document, encoder=current_name(document.encoder, document.fingerprint))


def first_problem(error: ValueError) -> str:
    """The first error in a file, and its place."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
