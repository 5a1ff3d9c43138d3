"""Forged and damaged files: models, stores and workspaces, each field, array and bit in turn."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from faults_images import flipped, outcome
from numpy.typing import NDArray

from gpcache import FeatureStore, ImageClassifier
from gpcache.errors import DataError
from gpcache.features.extract import extract
from gpcache.images.drawn import DRAWN_CLASSES, draw_picture
from gpcache.images.sources import from_iterable
from gpcache.support.array_folders import load_folder
from gpcache.support.files import sha256
from gpcache.web.workspace_contents import ClassEntry, Contents, Photo
from gpcache.web.workspace_folder import Document, EncodedPhoto, WorkspaceFolder

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "model"))
from test_forged import changed, forge, paths_of, tiny

FLIPS = 100
METHODS = ("gpcache", "tip-adapter-f", "gda", "task-res", "zero-shot")
DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]
# `...` removes a field.
VALUES = (..., None, "x", 0, -1, 1e308, 10**400, float("nan"), True, [], {}, DEEP)
ARRAYS: tuple[Callable[[NDArray[Any]], NDArray[Any]], ...] = (
    lambda array: array[:0],
    lambda array: array[1:],
    lambda array: array[None],
    np.ravel,
    lambda array: array.astype(np.float16),
    lambda array: array.astype(np.int64),
    lambda array: array.astype(np.uint8),
    lambda array: np.full(array.shape, np.nan),
    lambda array: np.full(array.shape, 1e300),
    lambda array: -np.ones_like(array) if array.dtype.kind != "b" else ~array,
)
Use = Callable[[], str]


def shown(*values: Any) -> str:
    """Arrays and facts, in every digit."""
    arrays = (one.tolist() if isinstance(one, np.ndarray) else str(one) for one in values)
    return repr(list(arrays))


def photos(count: int) -> list[tuple[Any, str]]:
    """Drawn pictures of three classes."""
    kinds = (DRAWN_CLASSES[number % 3] for number in range(count))
    return [(draw_picture(kind, number), kind) for number, kind in enumerate(kinds)]


def saved_model(folder: Path, **options: Any) -> tuple[Use, NDArray[Any]]:
    """Save a model; how to read it and ask it everything that needs no image; and some rows."""
    encoder = tiny.ColourEncoder()
    ImageClassifier(encoder, device="cpu", **options).fit(photos(9)).save(folder)
    features = encoder.encode_images([image for image, _ in photos(4)])

    def use() -> str:
        model = ImageClassifier.load(folder, device="cpu")
        found, held_out = model.model.answer(features, top=2), model.held_out()
        assert np.isfinite(found.probabilities).all()
        facts = (model.classes, model.examples, held_out and held_out.summary())
        return shown(found.probabilities, found.novelty, facts)

    return use, features


def forged_models(place: Path) -> Iterator[tuple[str, str]]:
    """Models with right checksums and one field or array changed."""
    for method in METHODS:
        use, _ = saved_model(place / method, method=method, prompt="a photo of {}")
        expected, (config, arrays) = use(), load_folder(place / method)
        del config["schema"], config["tensors_sha256"]
        for path in paths_of(config):
            for value in VALUES:
                forge(place / method, changed(config, path, value), arrays)
                yield "forged models, one field changed", outcome(use, expected)
        for name in arrays:
            without = {key: array for key, array in arrays.items() if key != name}
            for change in (None, *ARRAYS):
                with np.errstate(all="ignore"):
                    new = {} if change is None else {name: change(arrays[name])}
                forge(place / method, config, without | new)
                yield "forged models, one array changed", outcome(use, expected)


def flipped_files(place: Path) -> Iterator[tuple[str, str]]:
    """Bits flipped, one at a time, in the files of a model, a store and a workspace."""
    uses = {}
    uses["model"], features = saved_model(place / "model")
    extract(from_iterable(photos(6)), place / "store", tiny.ColourEncoder(), workers=1)

    def use_store() -> str:
        opened = FeatureStore.open(place / "store")
        rows = opened.read()
        return shown(rows.features, rows.items, opened.refused())

    uses["store"], uses["workspace"] = use_store, saved_workspace(place / "workspace", features)
    for kind, use in uses.items():
        places, expected = random.Random(0), use()
        for file in sorted((place / kind).rglob("*.[js]*")):  # not the lock, nor the card
            content = file.read_bytes()
            for _ in range(FLIPS):
                file.write_bytes(flipped(content, places))
                yield f"flipped bits in a {kind}", outcome(use, expected)
            file.write_bytes(content)


def saved_workspace(place: Path, features: NDArray[Any]) -> Use:
    """Write a workspace; how to read all of it."""
    keys, folder = [sha256(bytes([n])) for n in range(len(features))], WorkspaceFolder(place)
    for key, row in zip(keys, features, strict=True):
        folder.put(EncodedPhoto(key, row.astype(np.float32), b"\xff\xd8 a picture \xff\xd9"))
    known = {f"p{n}": Photo(f"p{n}", f"{n}.jpg", "cat", key) for n, key in enumerate(keys, 1)}
    contents = Contents((ClassEntry("cat"), ClassEntry("dog", "a {}.")), known)
    folder.write(Document("lite", "0", templates=("a {}.",), next_id=9, contents=contents))
    written = str(folder.read()[0])

    def use() -> str:
        document, notices = folder.read()
        if notices and str(document) == written:
            raise DataError(notices[0])  # repaired and noted
        read = [folder.get(key) for key in keys]
        return shown(document, *(one.features for one in read), [one.thumbnail for one in read])

    return use
