"""The folder of a workspace: one JSON document, one small file a photo, and a lock.

The document is replaced in one step after the photos that it names are on disk, so that what was
acknowledged survives a kill. Originals are not kept: a photo is its features and a small picture.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gpcache.errors import DataError
from gpcache.images.records import Refused
from gpcache.support.files import make_folder, read_json, write_atomic
from gpcache.support.temporary import remove_stale
from gpcache.web.contents import ClassEntry, Contents, Photo, Step, order

SCHEMA = 2
DOCUMENT, PHOTOS, BATCHES, BASE = "workspace.json", "photos", "batches", "base.gpc"
MAX_DOCUMENT = 500_000_000
MOST_STEPS = 50
MOST_REFUSED = 100
MOST_POINTS = 1_000

Vector = NDArray[np.float32]


class Stored(NamedTuple):
    """What is kept of a photo: its features (dim,) and a small JPEG."""

    features: Vector
    picture: bytes


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
    contents: Contents = field(default_factory=Contents)
    steps: tuple[Step, ...] = ()
    refused: tuple[Refused, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()


class Workspace:
    """A folder that one server at a time holds; for its owner alone, since it shows photos."""

    def __init__(self, place: str | Path) -> None:
        self.folder = make_folder(place, private=True)
        # Whichever thread opens the workspace, another may close it.
        self._lock = FileLock(self.folder / ".lock", mode=0o600, thread_local=False)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise DataError(
                f"Another gpcache serve holds the workspace {str(self.folder)!r}: stop it, or "
                "give this one another folder with --workspace."
            ) from None
        for folder in (self.folder, self.folder / PHOTOS, self.folder / BATCHES):
            remove_stale(make_folder(folder, private=True))

    def close(self) -> None:
        """Let another server have it."""
        self._lock.release()

    @property
    def base(self) -> Path:
        """The model that the workspace began with, if it began with one."""
        return self.folder / BASE

    @property
    def batches(self) -> Path:
        return self.folder / BATCHES

    def read(self) -> Document | None:
        """The document; None in a fresh folder."""
        file = self.folder / DOCUMENT
        if not file.exists():
            return None
        content = read_json(file, "workspace", limit=MAX_DOCUMENT)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise DataError(f"{str(file)!r} is of another gpcache: use the one that wrote it.")
        try:
            return _document(content)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(
                f"{str(file)!r} is damaged: move the folder away to begin anew."
            ) from None

    def write(self, document: Document) -> None:
        """Replace the document, in one step."""
        inside = document.contents
        # Not asdict, which copies deeply: this runs at every change.
        content = vars(document) | {
            "schema": SCHEMA,
            "contents": {"classes": inside.classes, "photos": list(inside.photos.values())},
        }
        write_atomic(
            self.folder / DOCUMENT,
            json.dumps(content, ensure_ascii=False, default=vars).encode(),
            private=True,
        )

    def put(self, key: str, stored: Stored) -> None:
        """Keep a photo under the hash of its content."""
        file = self._file(key)
        if not file.exists():
            picture = np.frombuffer(stored.picture, dtype=np.uint8)
            data = save({"features": stored.features, "picture": picture})
            # Looking for stale files among very many photos is left to the opening.
            write_atomic(file, data, private=True, sweep=False)

    def get(self, key: str) -> Stored:
        """What is kept of a photo."""
        try:
            arrays = load(self._file(key).read_bytes())
            return Stored(arrays["features"], arrays["picture"].tobytes())
        except (OSError, SafetensorError, KeyError):
            raise DataError(
                f"{str(self._file(key))!r} is missing or damaged: move the workspace away, or "
                "bring that file back."
            ) from None

    def sweep(self, document: Document) -> None:
        """Delete the photos that nothing names any more, not even an undo."""
        known = {photo.hash for photo in document.contents.photos.values()}
        for step in document.steps:
            known |= {photo.hash for photo in step.photos.values() if photo is not None}
        for file in (self.folder / PHOTOS).glob("*.safetensors"):
            if file.stem not in known:
                file.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.folder / PHOTOS / f"{key}.safetensors"


def _document(content: dict[str, Any]) -> Document:
    templates = content["templates"]
    inside = content["contents"]
    photos = [Photo(**one) for one in inside["photos"]]
    return Document(
        encoder=str(content["encoder"]),
        fingerprint=str(content["fingerprint"]),
        name=str(content["name"]),
        templates=None if templates is None else tuple(templates),
        views=int(content["views"]),
        revision=int(content["revision"]),
        next_id=int(content["next_id"]),
        contents=Contents(
            _classes(inside["classes"]),
            {one.id: one for one in sorted(photos, key=lambda one: order(one.id))},
        ),
        steps=tuple(_step(one) for one in content["steps"]),
        refused=tuple(Refused(**one) for one in content["refused"]),
        curve=tuple((int(n), float(accuracy)) for n, accuracy in content["curve"]),
    )


def _classes(entries: Sequence[dict[str, Any]]) -> tuple[ClassEntry, ...]:
    return tuple(ClassEntry(**entry) for entry in entries)


def _step(content: dict[str, Any]) -> Step:
    photos = {k: None if one is None else Photo(**one) for k, one in content["photos"].items()}
    return Step(str(content["what"]), _classes(content["classes"]), photos)
