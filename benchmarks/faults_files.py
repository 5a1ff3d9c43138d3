"""Forged and damaged files: models, stores and workspaces, each field, array and bit in turn."""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from faults_images import drawn_picture, flipped
from numpy.typing import NDArray
from safetensors.numpy import save

from gpcache import FeatureStore, ImageClassifier
from gpcache.encoders import Encoder
from gpcache.errors import DataError, GPCacheError
from gpcache.features.extract import extract
from gpcache.images import Preprocess
from gpcache.images.sources import from_iterable
from gpcache.support.array_folders import CONFIG, TENSORS, load_folder
from gpcache.support.files import sha256
from gpcache.web.workspace_contents import ClassEntry, Contents, Photo
from gpcache.web.workspace_folder import Document, EncodedPhoto, WorkspaceFolder

FLIPS = 100
METHODS = ("gpcache", "tip-adapter-f", "gda", "task-res", "zero-shot")
DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]
VALUES: dict[str, Any] = {
    "null": None,
    "text": "x",
    "zero": 0,
    "negative": -1,
    "huge": 1e308,
    "a huge whole number": 10**400,
    "NaN": float("nan"),
    "true": True,
    "an empty list": [],
    "an empty object": {},
    "nested": DEEP,
}
ARRAYS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "no rows": lambda array: array[:0],
    "a row less": lambda array: array[1:],
    "a dimension more": lambda array: array[None],
    "one dimension": np.ravel,
    "half precision": lambda array: array.astype(np.float16),
    "whole numbers": lambda array: array.astype(np.int64),
    "bytes": lambda array: array.astype(np.uint8),
    "NaN": lambda array: np.full(array.shape, np.nan),
    "huge": lambda array: np.full(array.shape, 1e300),
    "negative": lambda array: -np.ones_like(array) if array.dtype.kind != "b" else ~array,
}

Exercise = Callable[[], Any]


class ColourEncoder(Encoder):
    """Colours of 8 × 8 pixels, turned by a random matrix: small files, of which many are tried."""

    name = "colours"
    dim = 16
    logit_scale = 10.0
    preprocess = Preprocess(size=8)

    def __init__(self) -> None:
        super().__init__("cpu")
        self._matrix = torch.randn(192, 16, generator=torch.Generator().manual_seed(0))

    def _embed_images(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.flatten(1) @ self._matrix

    def _embed_texts(self, texts: list[str]) -> torch.Tensor:
        letters = torch.tensor([[ord(text[-1]) % 7, len(text)] for text in texts])
        return letters.float() @ self._matrix[:2]

    def _identity(self) -> Iterator[bytes]:
        yield self._matrix.numpy().tobytes()


def outcome(use: Exercise, expected: Any) -> str:
    """What becomes of using a file: refused in a sentence, used as before, or otherwise."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = use()
    except GPCacheError as error:
        return "traceback" if "\n" in str(error) else "refused"
    except Exception:
        return "traceback"
    return "unchanged" if _same(found, expected) else "changed"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.shape == other.shape and np.array_equal(one, other, equal_nan=True))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def photos(count: int) -> list[tuple[Any, str]]:
    """Drawn pictures of three classes."""
    return [(drawn_picture(number, (64, 48)), "abc"[number % 3]) for number in range(count)]


def use_of(folder: Path, features: NDArray[Any]) -> Exercise:
    """Read a model and ask it everything that needs no image."""

    def use() -> Any:
        model = ImageClassifier.load(folder, device="cpu")
        found = model.model.answer(features, top=2)
        assert np.isfinite(found.probabilities).all()
        held_out = model.held_out()
        facts = (model.classes, model.examples, held_out and held_out.summary())
        return found.probabilities, found.novelty, json.dumps(str(facts))

    return use


def forge(folder: Path, config: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Write a model with right checksums, whatever it holds."""
    tensors = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    content = {"sha256": "", "schema": 1, **config, "tensors_sha256": sha256(tensors)}
    text = json.dumps(content).encode("utf-8", "surrogatepass")
    seal = f'"{sha256(text)}"'.encode()
    (folder / CONFIG).write_bytes(text.replace(b'""', seal, 1))
    (folder / TENSORS).write_bytes(tensors)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every field; of a list the first entry stands for all."""
    children: list[Any] = list(value) if isinstance(value, dict) else []
    if isinstance(value, list) and value:
        children = [0]
    for key in children:
        yield (*path, key)
        yield from paths_of(value[key], (*path, key))


def changed_at(config: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy with another value in one place; `...` removes it."""
    found = copy.deepcopy(config)
    place = found
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return found


def forged_models(place: Path) -> Iterator[tuple[str, str]]:
    """Models with right checksums and one field or array changed."""
    for method in METHODS:
        folder = place / method
        model = ImageClassifier(
            ColourEncoder(), method=method, prompt="a photo of {}", device="cpu"
        ).fit(photos(9))
        model.save(folder)
        features = model.encoder_.encode_images([image for image, _ in photos(4)])
        config, arrays = load_folder(folder)
        for key in ("schema", "tensors_sha256"):
            del config[key]
        use = use_of(folder, features)
        expected = use()
        for path in paths_of(config):
            for value in (..., *VALUES.values()):
                forge(folder, changed_at(config, path, value), arrays)
                yield "forged models, one field changed", outcome(use, expected)
        for name in arrays:
            without = {key: array for key, array in arrays.items() if key != name}
            for change in (None, *ARRAYS.values()):
                with np.errstate(all="ignore"):
                    new = {} if change is None else {name: change(arrays[name])}
                forge(folder, config, without | new)
                yield "forged models, one array changed", outcome(use, expected)


def flipped_bits(files: list[Path], use: Exercise) -> Iterator[str]:
    """Flip bits of files, one at a time; each file is whole again afterwards."""
    places, expected = random.Random(0), use()
    for file in files:
        content = file.read_bytes()
        for _ in range(FLIPS):
            file.write_bytes(flipped(content, places))
            yield outcome(use, expected)
        file.write_bytes(content)


def flipped_files(place: Path) -> Iterator[tuple[str, str]]:
    """Bits flipped in the files of a model, a store and a workspace."""
    folder = place / "model"
    model = ImageClassifier(ColourEncoder(), device="cpu").fit(photos(9))
    model.save(folder)
    features = model.encoder_.encode_images([image for image, _ in photos(4)])
    files = [folder / CONFIG, folder / TENSORS]
    for found in flipped_bits(files, use_of(folder, features)):
        yield "flipped bits in a model", found
    store = place / "store"
    extract(from_iterable(photos(6)), store, ColourEncoder(), workers=1)

    def use_store() -> Any:
        opened = FeatureStore.open(store)
        rows = opened.read()
        return rows.features, str(rows.items), str(opened.refused())

    files = [path for path in sorted(store.rglob("*")) if path.is_file() and path.name != "lock"]
    for found in flipped_bits(files, use_store):
        yield "flipped bits in a store", found
    yield from _flipped_workspace(place / "workspace", features)


def _flipped_workspace(place: Path, features: NDArray[Any]) -> Iterator[tuple[str, str]]:
    keys = [sha256(bytes([number])) for number in range(len(features))]
    folder = WorkspaceFolder(place)
    for key, row in zip(keys, features, strict=True):
        folder.put(EncodedPhoto(key, row.astype(np.float32), b"\xff\xd8 a picture \xff\xd9"))
    known = {f"p{n}": Photo(f"p{n}", f"{n}.jpg", "cat", key) for n, key in enumerate(keys, 1)}
    contents = Contents((ClassEntry("cat"), ClassEntry("dog", "a {}.")), known)
    folder.write(Document("lite", "0", templates=("a {}.",), next_id=9, contents=contents))

    written = str(folder.read()[0])

    def use() -> Any:
        document, notices = folder.read()
        if notices and str(document) == written:
            raise DataError(notices[0])  # repaired and noted
        photos = [folder.get(key) for key in keys]
        return (str(document), *((one.features, one.thumbnail) for one in photos))

    files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.name != ".lock"]
    for found in flipped_bits(files, use):
        yield "flipped bits in a workspace", found
    folder.close()
