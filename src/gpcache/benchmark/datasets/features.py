"""Features made elsewhere: an .npz file or a feature store as shots, validation and test rows."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from gpcache.benchmark.datasets.dataset import hash_of_parts
from gpcache.encoders.prompts import Prompts
from gpcache.errors import DataError
from gpcache.features.manifest import NAME as STORE_MANIFEST
from gpcache.features.store import FeatureStore
from gpcache.support.files import sha256_of_file

READY_MADE = re.compile(r"train([1-9][0-9]*)")


class FeatureRows(NamedTuple):
    """Features (n, d), labels (n,) as class numbers, and the names (n) of the images."""

    X: NDArray[np.float32]
    y: NDArray[np.int64]
    ids: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features of a data set, ready to measure on.

    `text` (t, d) has unit rows, one for each of the `text_classes`. `shots` are draws that came
    ready-made, by shots a class; `pool` are rows to draw from. `fingerprint` is the encoder's, or
    the SHA-256 of an .npz file. `notes` belong under every table of the data.
    """

    name: str
    class_names: tuple[str, ...]
    text: NDArray[np.float32] | None
    text_classes: tuple[str, ...]
    shots: Mapping[int, FeatureRows]
    pool: FeatureRows | None
    validation: FeatureRows | None
    test: FeatureRows
    fingerprint: str
    notes: tuple[str, ...] = ()

    @cached_property
    def split_hash(self) -> str:
        """SHA-256 of class names, and of names and labels of all rows."""
        parts = {"pool": self.pool, "validation": self.validation, "test": self.test}
        parts |= {f"train{count}": rows for count, rows in sorted(self.shots.items())}
        return hash_of_parts(
            self.class_names,
            {name: (rows.ids, rows.y) for name, rows in parts.items() if rows is not None},
        )


def open_features(path: str | Path, prompts: Prompts | None = None) -> FeatureSet:
    """The features in an .npz file, or in a feature store whose images have splits.

    An .npz holds `classnames`, and with the suffixes _x (features), _y (class numbers) and _path
    (names; not needed) the parts `test`, `val`, `train` (rows to draw from) and `train1`,
    `train2`, … (ready-made draws); `text`, or `sub_text` for the classes `sub_labels`. What is
    missing is noted: without test rows the validation rows are for testing, without training rows
    or ready-made draws of several shots they are to draw from. In a store the splits are train,
    val and test, and the text is that of `prompts`, where it is cached: by default "a photo of a
    …".
    """
    place = Path(path)
    if (place / STORE_MANIFEST).is_file():
        return _from_store(place, prompts)
    if place.suffix == ".npz":
        return _from_npz(place)
    raise DataError(f"{str(path)!r} is neither an .npz file of features nor a feature store.")


def _from_npz(file: Path) -> FeatureSet:
    arrays = _read_npz(file)
    names = tuple(str(name) for name in _array(file, arrays, "classnames", 1))
    if len(set(names)) != len(names):
        raise DataError(f"{file} has a class name more than once in 'classnames'.")
    parts = {
        part: _rows(file, arrays, part, len(names))
        for part in (key.removesuffix("_x") for key in arrays if key.endswith("_x"))
    }
    shots = {int(found[1]): parts[part] for part in parts if (found := READY_MADE.fullmatch(part))}
    pool, validation, test = (parts.get(part) for part in ("train", "val", "test"))
    notes: tuple[str, ...] = ()
    if test is None:
        if validation is None:
            raise DataError(f"{file} has no rows to test on: it needs 'test_x' and 'test_y'.")
        test, validation = validation, None
        notes = (f"{file.name} has no test rows: its validation rows are the test rows.",)
    elif pool is None and validation is not None and max(shots, default=0) <= 1:
        # Rows to draw from and to choose on at once would be chosen on their own labels; and one
        # shot from elsewhere would not compare with the others.
        pool, validation, shots = validation, None, {}
        notes = (f"{file.name} has too few training rows: shots are drawn from its validation.",)
    text, text_classes = _npz_text(file, arrays, names)
    _check_widths(file, {**parts, "text": text})
    return FeatureSet(
        file.stem,
        names,
        text,
        text_classes,
        dict(sorted(shots.items())),
        pool,
        validation,
        test,
        sha256_of_file(file),
        notes,
    )


def _read_npz(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the file; nothing in it is unpickled."""
    try:
        opened = np.load(file, allow_pickle=False)
        if not isinstance(opened, NpzFile):
            raise ValueError("a single array")
        with opened:
            return {key: opened[key] for key in opened.files}
    except FileNotFoundError:
        raise DataError(f"There is no file {str(file)!r}.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        raise DataError(
            f"{file} cannot be read: it is no .npz file of plain arrays, or it is damaged."
        ) from None


def _rows(file: Path, arrays: Mapping[str, NDArray[Any]], part: str, classes: int) -> FeatureRows:
    """One part, its features finite and its labels those of classes."""
    features = _array(file, arrays, f"{part}_x", 2)
    labels = _array(file, arrays, f"{part}_y", 1)
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"'{part}_y' of {file} must hold class numbers, got {labels.dtype}.")
    if len(features) != len(labels) or not len(labels):
        raise DataError(
            f"'{part}_x' and '{part}_y' of {file} must have as many rows, at least one: got "
            f"{len(features)} and {len(labels)}."
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(f"'{part}_y' of {file} must lie between 0 and {classes - 1}.")
    given = arrays.get(f"{part}_path")
    # Numbers of one width sort as they count, and draws depend on the names' order.
    ids = (f"{row:08d}" for row in range(len(labels))) if given is None else map(str, given)
    rows = FeatureRows(_unit(file, f"{part}_x", features), labels.astype(np.int64), tuple(ids))
    if len(rows.ids) != len(labels):
        raise DataError(f"'{part}_path' of {file} must name {len(labels)} rows.")
    return rows


def _npz_text(
    file: Path, arrays: Mapping[str, NDArray[Any]], names: tuple[str, ...]
) -> tuple[NDArray[np.float32] | None, tuple[str, ...]]:
    """Text vectors, and the classes that they are of."""
    if "text" in arrays:
        key, classes = "text", names
    elif "sub_text" in arrays:
        labels = _array(file, arrays, "sub_labels", 1).tolist()
        if not set(labels) <= set(range(len(names))) or len(set(labels)) != len(labels):
            raise DataError(f"'sub_labels' of {file} must be different class numbers.")
        key, classes = "sub_text", tuple(names[label] for label in labels)
    else:
        return None, ()
    text = _array(file, arrays, key, 2)
    if len(text) != len(classes):
        raise DataError(f"{key!r} of {file} must have {len(classes)} rows, got {len(text)}.")
    return _unit(file, key, text), classes


def _from_store(folder: Path, prompts: Prompts | None) -> FeatureSet:
    store = FeatureStore.open(folder)
    known = [item.label for item in store.items() if item.label is not None]
    names = prompts.class_names if prompts else tuple(sorted(set(known)))
    number_of = {name: number for number, name in enumerate(names)}

    def rows(split: str) -> FeatureRows | None:
        read = store.read(split=split)
        if not read.items:
            return None
        labels = read.labels.tolist()
        if unknown := sorted(set(labels) - set(names)):
            raise DataError(f"The store {folder} has the class {unknown[0]!r}, the prompts do not.")
        if read.features.ndim != 2:
            raise DataError(
                f"The store {folder} keeps the views of an image apart: extract their mean instead."
            )
        numbers = np.array([number_of[label] for label in labels], np.int64)
        return FeatureRows(read.features, numbers, tuple(read.paths))

    pool, validation, test = (rows(split) for split in ("train", "val", "test"))
    if pool is None or test is None:
        raise DataError(
            f"The store {folder} needs images of the splits train and test: extract each with "
            "--split."
        )
    text = store.text((prompts or Prompts.from_templates(names)).digest)
    return FeatureSet(
        folder.stem,
        names,
        text,
        () if text is None else names,
        {},
        pool,
        validation,
        test,
        store.manifest.fingerprint,
    )


def _array(file: Path, arrays: Mapping[str, NDArray[Any]], key: str, axes: int) -> NDArray[Any]:
    if key not in arrays:
        raise DataError(f"{file} lacks the array {key!r}.")
    if arrays[key].ndim != axes:
        raise DataError(
            f"{key!r} of {file} must have {axes} axes, got the shape {arrays[key].shape}."
        )
    return arrays[key]


def _unit(file: Path, key: str, vectors: NDArray[Any]) -> NDArray[np.float32]:
    """The rows (n, d), finite and not zero, at length one: half precision leaves them near it."""
    if not np.issubdtype(vectors.dtype, np.floating) or not np.isfinite(vectors).all():
        raise DataError(f"{key!r} of {file} must hold finite numbers with a fraction.")
    exact = vectors.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    if not lengths.all():
        raise DataError(f"Row {int(lengths.argmin())} of {key!r} in {file} is all zeros.")
    unit: NDArray[np.float32] = (exact / lengths).astype(np.float32)
    return unit


def _check_widths(
    file: Path, parts: Mapping[str, FeatureRows | NDArray[np.float32] | None]
) -> None:
    """All features and text vectors must be of one encoder's width."""
    widths = {
        name: (part.X if isinstance(part, FeatureRows) else part).shape[1]
        for name, part in parts.items()
        if part is not None
    }
    if len(set(widths.values())) > 1:
        shown = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise DataError(f"The vectors in {file} differ in width, so not one encoder's: {shown}.")
