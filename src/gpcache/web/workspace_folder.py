"""The folder of a workspace: one JSON document, one small file a photo, and a lock.

The document is replaced in one step after the photos that it names are on disk, so that what was
acknowledged survives a kill. Originals are not kept: a photo is its features and a thumbnail.
"""

from __future__ import annotations

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

from gpcache.encoders.lite import current_name
from gpcache.errors import DataError
from gpcache.images.records import Refused
from gpcache.support.files import make_folder, read_json, write_atomic
from gpcache.support.temporary import remove_stale
from gpcache.web.workspace_contents import ClassEntry, Contents, Photo, UndoStep, by_id

SCHEMA = 2
DOCUMENT, PHOTOS, BATCHES, BASE = "workspace.json", "photos", "batches", "base.gpc"
MAX_DOCUMENT = 500_000_000


class EncodedPhoto(NamedTuple):
    """A photo that was read: its content's hash, its features (dim,), and a small JPEG."""

    hash: str
    features: NDArray[np.float32]
    thumbnail: bytes = b""
    name: str = ""


class _StoredContents(NamedTuple):
    """Contents as the document has them."""

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
    """Everything that the workspace knows, at one revision.

    `curve` holds the number of photos and the leave-one-out accuracy after each change that moved
    them. `templates` is None where class names do not count.
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
    curve: tuple[tuple[int, float], ...] = ()
    schema: int = SCHEMA


_DOCUMENT_JSON = TypeAdapter(Document)


class WorkspaceFolder:
    """A folder that one server at a time holds; for its owner alone, since it shows photos."""

    def __init__(self, path: str | Path) -> None:
        self.path = make_folder(path, private=True)
        # Whichever thread opens the workspace, another may close it.
        self._lock = FileLock(self.path / ".lock", mode=0o600, thread_local=False)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise DataError(
                f"Another gpcache serve holds the workspace {str(self.path)!r}: stop it, or "
                "give this one another folder with --workspace."
            ) from None
        for folder in (self.path, self.path / PHOTOS, self.batches):
            remove_stale(make_folder(folder, private=True))

    def close(self) -> None:
        """Let another server have it."""
        self._lock.release()

    @property
    def base(self) -> Path:
        """The model that the workspace began with, if it began with one."""
        return self.path / BASE

    @property
    def batches(self) -> Path:
        return self.path / BATCHES

    def read(self) -> Document | None:
        """The document; None in a fresh folder."""
        file = self.path / DOCUMENT
        if not file.exists():
            return None
        content = read_json(file, "workspace", limit=MAX_DOCUMENT)
        if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
            raise DataError(f"{str(file)!r} is of another gpcache: use the one that wrote it.")
        # The defaults are for new workspaces: in a file, what is missing was lost.
        missing = [one.name for one in fields(Document) if one.name not in content]
        try:
            if missing:
                raise ValueError(f"{missing[0]} is missing")
            document = _DOCUMENT_JSON.validate_python(content)
        except ValueError as error:
            raise DataError(
                f"{str(file)!r} is damaged ({first_problem(error)}): bring it back from a copy, "
                "or give --workspace another folder."
            ) from None
        return replace(document, encoder=current_name(document.encoder, document.fingerprint))

    def write(self, document: Document) -> None:
        """Replace the document, in one step."""
        write_atomic(self.path / DOCUMENT, _DOCUMENT_JSON.dump_json(document), private=True)

    def put(self, photo: EncodedPhoto) -> None:
        """Keep a photo under the hash of its content."""
        file = self._file(photo.hash)
        if not file.exists():
            thumbnail = np.frombuffer(photo.thumbnail, dtype=np.uint8)
            data = save({"features": photo.features, "picture": thumbnail})
            # Looking for stale files among very many photos is left to the opening.
            write_atomic(file, data, private=True, sweep=False)

    def get(self, key: str) -> EncodedPhoto:
        """What is kept of a photo."""
        try:
            arrays = load(self._file(key).read_bytes())
            return EncodedPhoto(key, arrays["features"], arrays["picture"].tobytes())
        except (OSError, SafetensorError, KeyError):
            raise DataError(
                f"{str(self._file(key))!r} is missing or damaged: bring it back from a copy, or "
                "give --workspace another folder."
            ) from None

    def sweep(self, document: Document) -> None:
        """Delete the photos that nothing names any more, not even an undo."""
        known = {photo.hash for photo in document.contents.photos.values()}
        for step in document.steps:
            known |= {photo.hash for photo in step.photos.values() if photo is not None}
        for file in (self.path / PHOTOS).glob("*.safetensors"):
            if file.stem not in known:
                file.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.path / PHOTOS / f"{key}.safetensors"


def first_problem(error: ValueError) -> str:
    """The first thing that is wrong in a file, and where."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
