"""Opens stored features as a task: an .npz file or a feature store."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from gpcache.benchmark.datasets.dataset import hash_of_parts
from gpcache.benchmark.task import Labelled, Pool, Task
from gpcache.encoders.prompts import Prompts
from gpcache.encoders.vectors import Features
from gpcache.errors import DataError
from gpcache.features.manifest import NAME as STORE_MANIFEST
from gpcache.features.store import FeatureStore
from gpcache.methods import TextPrior
from gpcache.support.files import sha256_of_file

READY_MADE = re.compile(r"train[1-9][0-9]*")
DRAW = re.compile(r"draw([1-9][0-9]*)_([0-9]+)")
A_FEW = re.compile(r"([1-9][0-9]*)-classes-([0-9]+)")


def open_features(path: str | Path) -> Task:
    """The features in an .npz file, or in a feature store whose images have splits.

    An .npz holds `classnames`, and with the suffixes _x (features), _y (class numbers) and _path
    (names; optional) the parts `test`, `val`, `train` (rows to draw from) and `train1`, `train2`, …
    (ready-made draws); and `text`, a vector for each class. Without test rows, the validation rows
    are the test rows. Without training rows or ready-made draws of several shots, shots are drawn
    from the validation rows. `notes` say so. In a store the splits are train, val and test, and the
    text is that of the prompts "a photo of a …" if it is cached.

    Further arrays of an .npz, if there are any: `draw4_0` holds the rows of `train` that are the
    shots of seed 0 at 4 shots; `outside_x` features of none of the classes; `logit_scale` that of
    the text; `sub_labels` and `sub_text` the text of some classes. FILE.npz:text is the data set of
    these classes, FILE.npz:half that of a random half of all, FILE.npz:other-half that of the rest,
    and FILE.npz:3-classes-7 that of three random classes, drawn with the seed 7: the test rows of
    the other classes are its rows of none of the classes.
    """
    name, _, part = str(path).partition(".npz:")
    if part:
        return _from_npz(Path(f"{name}.npz"), part)
    place = Path(path)
    if (place / STORE_MANIFEST).is_file():
        return _from_store(place)
    if place.suffix == ".npz":
        return _from_npz(place)
    raise DataError(f"{str(path)!r} is neither an .npz file of features nor a feature store.")


def _task(
    place: Path,
    fingerprint: str,
    class_names: Sequence[str],
    prior: TextPrior | None,
    parts: Mapping[str, Labelled],
    draws: Mapping[tuple[int, int], NDArray[np.int64]] | None = None,
) -> Task:
    """The task of the parts "test", "validation", "pool" and "train1", "train2", …"""
    number_of = {name: number for number, name in enumerate(class_names)}
    hashed = {}
    for part, (_, labels, names) in parts.items():
        numbers = np.array([number_of[label] for label in labels.tolist()], np.int64)
        hashed[part] = ([] if names is None else names.tolist(), numbers)
    pool = None
    if "pool" in parts:
        features, labels, _ = parts["pool"]
        take = features.__getitem__
        pool = Pool(labels, hashed["pool"][0], take, take, rows_of=draws or {})
    return Task(
        name=place.stem,
        encoder_name="stored features",
        fingerprint=fingerprint,
        split_hash=hash_of_parts(class_names, hashed),
        class_names=class_names,
        prior=prior,
        test=parts["test"],
        validation=parts.get("validation"),
        pool=pool,
        given={shots: parts[f"train{shots}"] for shots in _ready_made(parts)},
    )


def _ready_made(parts: Mapping[str, Labelled]) -> list[int]:
    """The numbers of shots of the ready-made draws."""
    return sorted(int(part[5:]) for part in parts if READY_MADE.fullmatch(part))


def _from_npz(file: Path, part: str = "") -> Task:
    arrays = _Arrays(file)
    if part:
        arrays.keep_part(part)
    names = arrays.get("classnames", 1).astype(str)
    if len(set(names)) != len(names):
        raise DataError(f"{file} has a class name more than once in 'classnames'.")
    found, prior = arrays.parts(names), arrays.text(names)
    widths = {part: rows.features.shape[1] for part, rows in found.items()}
    widths |= {} if prior is None else {"text": prior.vectors.shape[1]}
    if len(set(widths.values())) > 1:
        listing = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise DataError(f"The vectors in {file} have different widths: {listing}. Use one encoder.")
    known = {"train": "pool", "val": "validation", "test": "test"}
    known |= {f"train{shots}": f"train{shots}" for shots in _ready_made(found)}
    parts = {known[part]: rows for part, rows in found.items() if part in known}
    note = ""
    if "test" not in parts:
        if "validation" not in parts:
            raise DataError(f"{file} has no rows to test on: it needs 'test_x' and 'test_y'.")
        parts["test"] = parts.pop("validation")
        note = f"{file.name} has no test rows: its validation rows are the test rows."
    elif "validation" in parts and "pool" not in parts and max(_ready_made(parts), default=0) <= 1:
        # Hyper-parameters must not be chosen on rows that are drawn as shots, and a single shot
        # from elsewhere would not compare with the others.
        parts = {"pool": parts["validation"], "test": parts["test"]}
        note = f"{file.name} has too few training rows: shots are drawn from its validation."
    task = _task(file, sha256_of_file(file), names.tolist(), prior, parts, arrays.draws())
    name = f"{file.stem}:{part}" if part else file.stem
    return replace(task, name=name, notes=(note,) if note else (), outside=arrays.outside())


class _Arrays:
    """The arrays of an .npz file, each checked when it is read; nothing is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            opened = np.load(file, allow_pickle=False)
            if not isinstance(opened, NpzFile):
                raise ValueError("a single array")
            with opened:
                self._arrays: dict[str, NDArray[Any]] = {key: opened[key] for key in opened.files}
        except FileNotFoundError:
            raise DataError(f"There is no file {str(file)!r}.") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            raise DataError(
                f"{file} cannot be read: it is not an .npz file of plain arrays, or it is damaged."
            ) from None

    def get(self, key: str, axes: int) -> NDArray[Any]:
        """An array with this number of axes."""
        if key not in self._arrays:
            raise DataError(f"{self._file} lacks the array {key!r}.")
        shape = self._arrays[key].shape
        if len(shape) != axes:
            raise self._error(key, f"must have {axes} axes, got the shape {shape}")
        return self._arrays[key]

    def parts(self, names: NDArray[Any]) -> dict[str, Labelled]:
        """The rows of every part that has features."""
        parts = [key.removesuffix("_x") for key in self._arrays if key.endswith("_x")]
        return {part: self._rows(part, names) for part in parts if part != "outside"}

    def _rows(self, part: str, names: NDArray[Any]) -> Labelled:
        features, labels = self._unit_rows(f"{part}_x"), self.get(f"{part}_y", 1)
        if not np.issubdtype(labels.dtype, np.integer):
            raise self._error(f"{part}_y", f"must hold class numbers, got {labels.dtype}")
        if len(features) != len(labels) or not len(labels):
            raise DataError(
                f"'{part}_x' and '{part}_y' of {self._file} must have as many rows, at least one: "
                f"got {len(features)} and {len(labels)}."
            )
        if labels.min() < 0 or labels.max() >= len(names):
            raise self._error(f"{part}_y", f"must lie between 0 and {len(names) - 1}")
        given = self._arrays.get(f"{part}_path")
        if given is None:
            # Draws depend on the order of the names: numbers of one width sort as they count.
            given = np.array([f"{row:08d}" for row in range(len(labels))])
        if len(given) != len(labels):
            raise self._error(f"{part}_path", f"must name {len(labels)} rows")
        return Labelled(features, names[labels], given.astype(str))

    def draws(self) -> dict[tuple[int, int], NDArray[np.int64]]:
        """The rows of the ready-made draws by (shots, seed)."""
        found = filter(None, map(DRAW.fullmatch, self._arrays))
        return {(int(one[1]), int(one[2])): self.get(one[0], 1).astype(np.int64) for one in found}

    def outside(self) -> Features | None:
        """The rows of none of the classes."""
        return self._unit_rows("outside_x") if "outside_x" in self._arrays else None

    def keep_part(self, part: str) -> None:
        """Keep the classes that have text, half of the classes, or a few."""
        names, few = self.get("classnames", 1), A_FEW.fullmatch(part)
        if part == "text" and "sub_labels" in self._arrays:
            kept = self.get("sub_labels", 1)
            self._arrays["text"] = self.get("sub_text", 2)
        elif few or part in ("half", "other-half"):
            drawn = np.random.default_rng(int(few[2]) if few else 0).permutation(len(names))
            count = int(few[1]) if few else len(names) // 2
            if count > len(names):
                raise DataError(f"{self._file} has {len(names)} classes, fewer than {count}.")
            kept = np.sort(drawn[count:] if part == "other-half" else drawn[:count])
            test = "test" if "test_x" in self._arrays else "val"
            outside = ~np.isin(self.get(f"{test}_y", 1), kept)
            self._arrays["outside_x"] = self.get(f"{test}_x", 2)[outside]
            if "text" in self._arrays:
                self._arrays["text"] = self.get("text", 2)[kept]
        else:
            raise DataError(f"{self._file} has no part {part!r}: give only the name of the file.")
        self._arrays["classnames"] = names[kept]
        number_of = {label: number for number, label in enumerate(kept.tolist())}
        for key in [key.removesuffix("_y") for key in self._arrays if key.endswith("_y")]:
            rows = np.isin(self._arrays[f"{key}_y"], kept)
            for name in {f"{key}_x", f"{key}_y", f"{key}_path"} & set(self._arrays):
                self._arrays[name] = self._arrays[name][rows]
            labels = self._arrays[f"{key}_y"].tolist()
            self._arrays[f"{key}_y"] = np.array([number_of[label] for label in labels], np.int64)
        # The rows of draws are those of the whole file.
        for key in filter(DRAW.fullmatch, list(self._arrays)):
            del self._arrays[key]

    def text(self, names: NDArray[Any]) -> TextPrior | None:
        """The text of the classes."""
        if "text" not in self._arrays:
            return None
        vectors = self._unit_rows("text")
        if len(vectors) != len(names):
            raise self._error("text", f"must have {len(names)} rows, got {len(vectors)}")
        scale = float(self._arrays.get("logit_scale", np.float64(100.0)))
        return TextPrior(names.tolist(), vectors, scale)

    def _unit_rows(self, key: str) -> Features:
        """The rows (n, d) at length one: half precision leaves them only near it."""
        vectors = self.get(key, 2)
        if not np.issubdtype(vectors.dtype, np.floating) or not np.isfinite(vectors).all():
            raise self._error(key, "must hold finite floating-point numbers")
        exact = vectors.astype(np.float64)
        lengths = np.linalg.norm(exact, axis=1, keepdims=True)
        if not lengths.all():
            raise DataError(f"Row {int(lengths.argmin())} of {key!r} in {self._file} is all zeros.")
        unit: Features = (exact / lengths).astype(np.float32)
        return unit

    def _error(self, key: str, problem: str) -> DataError:
        return DataError(f"{key!r} of {self._file} {problem}.")


def _from_store(folder: Path) -> Task:
    store = FeatureStore.open(folder)
    names = sorted({item.label for item in store.items() if item.label is not None})
    parts = {}
    for split, part in (("train", "pool"), ("val", "validation"), ("test", "test")):
        read = store.read(split=split)
        if read.items and read.features.ndim != 2:
            raise DataError(
                f"The store {folder} holds each view of an image: extract their mean instead."
            )
        if read.items:
            parts[part] = Labelled(read.features, read.labels, np.array(read.paths))
    if not {"pool", "test"} <= set(parts):
        raise DataError(
            f"The store {folder} needs images of the splits train and test: extract each with "
            "--split."
        )
    manifest, vectors = store.manifest, store.text(Prompts.from_templates(names).digest)
    prior = None if vectors is None else TextPrior(names, vectors, manifest.logit_scale)
    return _task(folder, manifest.fingerprint, names, prior, parts)
