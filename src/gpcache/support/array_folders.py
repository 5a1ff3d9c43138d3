"""The model folder: config.json, model.safetensors and README.md, written in one step.

A classifier may keep its shots in shots.safetensors, which is not read with the rest.

config.json holds the SHA-256 of the tensors and, as its first entry, of its own bytes without that
entry's value. This holds for every schema. A folder is written under another name and then renamed,
so a crash leaves the old model or the new one.
"""

import ctypes
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gpcache.errors import DataError, ModelFileError
from gpcache.support.files import explained_writes, output_place, sha256, sync_folder, write_atomic
from gpcache.support.temporary import SUFFIX, copy_access, remove_stale, temporary_sibling

SCHEMA = 1
CONFIG, TENSORS, CARD = "config.json", "model.safetensors", "README.md"
SHOTS = "shots.safetensors"
# The `kind` of a folder that holds no classifier.
PROJECTION = "similarity projection"

_LITTER = (".DS_Store", "desktop.ini")  # what file managers leave behind
_ASIDE = ".gpcache-old"
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux's renameat2
_HERE = -100  # AT_FDCWD


def save_folder(
    folder: str | Path,
    config: dict[str, Any],
    arrays: dict[str, NDArray[Any]],
    card: str,
    *,
    write_shots: Callable[[Path], dict[str, Any]] | None = None,
    replace: bool = True,
) -> None:
    """Write a model folder; an existing model in its place is replaced, anything else is not.

    Only its owner can read a new model; one that replaces another keeps its owner and access.
    `write_shots` writes the file of the shots, and returns how config.json seals it. Without
    `replace` an existing model is an error, also if another process has just written it.
    """
    target = check_place(folder, replace=replace)
    tensors = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    with explained_writes(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(target.parent, target.name)
        with temporary_sibling(target, 0o700, folder=True) as place:
            if write_shots is not None:
                (place / SHOTS).touch(0o600)
                config = config | {"shots": write_shots(place / SHOTS)}
            sealed = _sealed(config | {"tensors_sha256": sha256(tensors)})
            files = {TENSORS: tensors, CARD: card.encode(), CONFIG: sealed}
            for name, data in files.items():
                write_atomic(place / name, data, private=True, sweep=False)
            for name in (*(entry.name for entry in place.iterdir()), "."):
                if (target / name).exists():
                    copy_access(target / name, place / name)
            _put(place, target, replace=replace)
            sync_folder(target.parent)
        remove_stale(target.parent, target.name, suffix=_ASIDE)


def _sealed(config: dict[str, Any]) -> bytes:
    """config.json, with the SHA-256 of its own bytes."""
    content = {"sha256": "", "schema": SCHEMA, **config}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    # File names may hold bytes that are not UTF-8, which Python encodes as surrogates.
    unsealed = text.encode("utf-8", "surrogatepass")
    return unsealed.replace(b'""', f'"{sha256(unsealed)}"'.encode(), 1)


def check_place(folder: str | Path, *, replace: bool = True) -> Path:
    """The path of a model, with links resolved; an error if something else is there.

    Without `replace` a model is something else, too.
    """
    target = output_place(folder)
    if target.exists() and not _replaceable(target):
        raise DataError(
            f"{str(target)!r} exists and is not a model, or holds other files as well, and was not "
            "changed: choose another name."
        )
    if not replace and target.is_dir() and any(target.iterdir()):
        raise _taken(folder)
    return target


def _taken(folder: str | Path) -> DataError:
    return DataError(
        f"There is a model in {str(folder)!r} already: choose another name, or add --force to "
        "replace it."
    )


def load_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read a model folder; a damaged or newer one is refused as a whole."""
    place = Path(folder)
    written = _read(place / CONFIG, f"{str(place)!r} is not a gpcache model: it has no {CONFIG}.")
    try:
        return _load(place, written)
    except ModelFileError:
        with suppress(OSError):
            if (place / CONFIG).read_bytes() != written:  # replaced between its two files
                return load_folder(folder)
        raise


def _load(place: Path, written: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read a model folder whose config.json holds these bytes."""
    try:
        content = json.loads(written)
        seal, schema = content.pop("sha256"), content["schema"]
        intact = sha256(written.replace(seal.encode(), b"", 1)) == seal
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _damaged(place / CONFIG) from None
    if intact and isinstance(schema, int) and schema > SCHEMA:
        raise ModelFileError(f"{str(place)!r} was saved by a newer gpcache: upgrade gpcache.")
    if not intact or schema != SCHEMA:
        raise _damaged(place / CONFIG)
    data = _read(place / TENSORS, f"{str(place / TENSORS)!r} is missing: save the model again.")
    if sha256(data) != content.get("tensors_sha256"):
        raise _damaged(place / TENSORS)
    # Every command removes what a killed update left beside the model.
    real = Path(os.path.realpath(place))
    remove_stale(real.parent, real.name)
    try:
        return content, load(data)
    except (SafetensorError, LookupError, TypeError, ValueError):  # numpy lacks some types
        raise _damaged(place / TENSORS) from None


def _read(path: Path, if_missing: str) -> bytes:
    """The bytes of a file of a model; `if_missing` is the error if it does not exist."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileError(if_missing) from None
    except OSError as error:
        raise ModelFileError(
            f"{str(path)!r} cannot be read ({error.strerror}): check that it is a file and that "
            "you may read it."
        ) from None


def _damaged(path: Path) -> ModelFileError:
    return ModelFileError(
        f"{str(path)!r} is damaged (its SHA-256 differs): copy or fit the model again."
    )


def _replaceable(path: Path) -> bool:
    """Whether a model may take this place: an empty folder, or another model and nothing else."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    # Other tools keep a config.json too.
    ours = "tensors_sha256" in unchecked_config(path)
    return not names or (ours and names <= {CONFIG, TENSORS, CARD, SHOTS, *_LITTER})


def unchecked_config(folder: Path) -> dict[str, Any]:
    """The content of config.json, damaged or not; empty if there is none."""
    try:
        content = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def is_projection(folder: Path) -> bool:
    """Whether the files of this folder say that it is a projection, damaged or not."""
    return unchecked_config(folder).get("kind") == PROJECTION


def _put(place: Path, target: Path, *, replace: bool) -> None:
    """Rename `place` to `target`; the former `target` may be left under the name `place`."""
    if not replace:
        try:
            os.rename(place, target)  # fails if the folder holds something by now
        except OSError as error:
            if target.is_dir() and any(target.iterdir()):
                raise _taken(target) from None
            raise error
        return
    if not target.exists():
        os.rename(place, target)
        return
    if not _exchanged(place, target):
        # Two steps if the system has no exchange: between them the old model has another name.
        # That is not the name of a temporary file, because it is then the only complete model.
        aside = place.with_name(f"{place.name.removesuffix(SUFFIX)}{_ASIDE}")
        os.rename(target, aside)
        os.rename(place, target)
        shutil.rmtree(aside, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step, which only Linux can."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, TypeError):  # TypeError on Windows
        return False
    done: bool = rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0
    return done
