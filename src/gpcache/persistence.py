"""The model folder: config.json, model.safetensors and README.md, whole or not there.

config.json holds the SHA-256 of the tensors and of itself. A folder is written beside its place
and then takes it in one step, so that a crash leaves the old model or the new one.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gpcache.errors import DataError, ModelFileError
from gpcache.files import explained_writes, sha256, write_atomic

SCHEMA = 1
CONFIG, TENSORS, CARD = "config.json", "model.safetensors", "README.md"

_EXCHANGE = 2  # RENAME_EXCHANGE of Linux's renameat2
_HERE = -100  # AT_FDCWD


def save_folder(
    folder: str | Path, config: dict[str, Any], arrays: dict[str, NDArray[Any]], card: str
) -> None:
    """Write a model folder; an existing model in its place is replaced, anything else is not."""
    target = Path(folder)
    if target.exists() and not (target / CONFIG).is_file() and _holds_something(target):
        raise DataError(
            f"{str(target)!r} exists and is no model: choose another name, it was left as it is."
        )
    tensors = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    content = {"schema": SCHEMA, **config, "tensors_sha256": sha256(tensors)}
    sealed = content | {"sha256": sha256(_canonical(content))}
    with explained_writes(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{target.name[:80]}.", dir=target.parent))
        try:
            place.chmod(0o755)
            write_atomic(place / TENSORS, tensors)
            write_atomic(place / CARD, card.encode())
            text = json.dumps(sealed, indent=1, ensure_ascii=False, allow_nan=False)
            write_atomic(place / CONFIG, text.encode())
            _put(place, target)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def load_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read a model folder; nothing of a damaged or newer one is used."""
    place = Path(folder)
    try:
        content = json.loads((place / CONFIG).read_bytes())
        seal, schema = content.pop("sha256"), content["schema"]
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileError(f"{str(place)!r} is no gpcache model: it has no {CONFIG}.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(place / CONFIG) from None
    if isinstance(schema, int) and schema > SCHEMA:
        raise ModelFileError(f"{str(place)!r} was saved by a newer gpcache: upgrade gpcache.")
    if schema != SCHEMA or sha256(_canonical(content)) != seal:
        raise _damaged(place / CONFIG)
    try:
        data = (place / TENSORS).read_bytes()
    except OSError:
        raise ModelFileError(
            f"{str(place / TENSORS)!r} is missing: save the model again."
        ) from None
    if sha256(data) != content["tensors_sha256"]:
        raise _damaged(place / TENSORS)
    try:
        return content, load(data)
    except SafetensorError:
        raise _damaged(place / TENSORS) from None


def _damaged(path: Path) -> ModelFileError:
    return ModelFileError(
        f"{str(path)!r} is damaged (its SHA-256 differs): copy or fit the model again."
    )


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _holds_something(path: Path) -> bool:
    return not path.is_dir() or any(path.iterdir())


def _put(place: Path, target: Path) -> None:
    """Let `place` take the name `target`; what had it is left under the name `place`."""
    if not target.exists():
        os.rename(place, target)
        return
    if not _exchanged(place, target):
        # Two steps where the system has no exchange: between them the old model is set aside.
        aside = place.with_name(f"{place.name}.old")
        os.rename(target, aside)
        os.rename(place, target)
        os.rename(aside, place)


def _exchanged(one: Path, other: Path) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    done: bool = rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0
    return done
