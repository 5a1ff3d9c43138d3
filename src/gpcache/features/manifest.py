"""The manifest of a feature store: which encoder made it, and every file with its checksum."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpcache.encoders.lite_recipes import current_name
from gpcache.errors import StoreError
from gpcache.images.augment import Views
from gpcache.support.files import sha256, write_atomic

NAME = "store.json"
SCHEMA = 1
_FILE = re.compile(r"((shards|texts)/)?[\w-]+\.(safetensors|jsonl?)")


@dataclass(frozen=True)
class StoredFile:
    """A file of the store, by its name in the store's folder."""

    name: str
    sha256: str
    rows: int


@dataclass(frozen=True)
class Manifest:
    """The content of a store; `views` is None for one centre view of each image."""

    encoder: str
    fingerprint: str
    logit_scale: float
    dim: int
    views: dict[str, Any] | None = None
    shards: tuple[StoredFile, ...] = ()
    items: StoredFile | None = None
    refused: StoredFile | None = None
    texts: dict[str, StoredFile] = field(default_factory=dict)

    @property
    def files(self) -> list[StoredFile]:
        """Every file of the store except the manifest."""
        single = [file for file in (self.items, self.refused) if file is not None]
        return [*self.shards, *single, *self.texts.values()]

    def write(self, folder: Path) -> None:
        """Write the manifest, sealed with its own checksum, in one step."""
        content = {"schema": SCHEMA, **asdict(self)}
        sealed = content | {"sha256": sha256(_canonical(content))}
        write_atomic(folder / NAME, json.dumps(sealed, indent=1, ensure_ascii=False).encode())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the store in `folder`; a missing, damaged or newer one is a StoreError."""
    # Estimators import this module and must work without pydantic.
    from pydantic import TypeAdapter

    path = folder / NAME
    try:
        content = json.loads(path.read_bytes())
        seal, schema = content.pop("sha256"), content["schema"]
        if isinstance(schema, int) and schema > SCHEMA:
            raise StoreError(f"{str(path)!r} was written by a newer gpcache: upgrade gpcache.")
        intact = schema == SCHEMA and sha256(_canonical(content)) == seal
        manifest = TypeAdapter(Manifest).validate_python(content) if intact else None
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{str(folder)!r} is not a feature store: it has no {NAME}.") from None
    except OSError as error:
        raise StoreError(
            f"{str(path)!r} cannot be read ({error.strerror}): check that you may read it."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        manifest = None
    if manifest is None or not _is_sound(manifest):
        raise StoreError(
            f"{str(path)!r} is damaged, so the store cannot be read: delete the folder "
            f"{str(folder)!r}, then extract the images again."
        )
    return replace(manifest, encoder=current_name(manifest.encoder, manifest.fingerprint))


def _is_sound(manifest: Manifest) -> bool:
    """Whether sizes, file names and views are plausible."""
    files = manifest.files
    names = all(_FILE.fullmatch(file.name) and file.rows >= 0 for file in files)
    if not names or manifest.dim < 1 or not 0 < manifest.logit_scale < math.inf:
        return False
    if manifest.views is None:
        return True
    try:
        arguments = {field.name: manifest.views[field.name] for field in fields(Views)}
        return described(Views(**arguments)) == manifest.views
    except (KeyError, TypeError, ValueError):
        return False


def described(views: Views | None) -> dict[str, Any] | None:
    """The views as a manifest holds them."""
    written: dict[str, Any] | None = json.loads(json.dumps(views and views.describe()))
    return written


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()
