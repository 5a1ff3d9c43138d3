"""Crafted images of every format; forged and damaged models, stores and workspaces."""

import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pillow_heif
from measuring import least
from numpy.typing import NDArray
from PIL import Image

from gpcache import FeatureStore, ImageClassifier
from gpcache.errors import DataError, GPCacheError
from gpcache.features.extract import extract
from gpcache.images import decode
from gpcache.images.drawn import DRAWN_CLASSES, draw_picture
from gpcache.images.integrity import check_file, check_items, stream_of
from gpcache.images.sources import from_iterable
from gpcache.support.array_folders import load_folder
from gpcache.support.files import sha256
from gpcache.web.workspace_contents import ClassEntry, Contents, Photo
from gpcache.web.workspace_folder import Document, EncodedPhoto, WorkspaceFolder

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "model"))
from test_forged import changed, forge, paths_of, tiny

IMAGE_FLIPS, FLIPS, BLOCK = 200, 100, 512

# The mark at the end of a file, which makes a cut file look whole.
END_MARKS = {"JPEG": b"\xff\xd9", "PNG": bytes(4) + b"IEND\xaeB`\x82", "GIF": b"\0;"}

# The files that are damaged: format of Pillow, and how it is saved.
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "PNG": ("PNG", {}),
    "JPEG": ("JPEG", {"quality": 90}),
    "JPEG, progressive": ("JPEG", {"quality": 90, "progressive": True}),
    "JPEG, restart marks": ("JPEG", {"quality": 90, "restart_marker_rows": 1}),
    "WebP": ("WEBP", {"quality": 85}),
    "WebP, lossless": ("WEBP", {"lossless": True}),
    "AVIF": ("AVIF", {"quality": 80}),
    "HEIC": ("HEIF", {"quality": 80}),
    "GIF": ("GIF", {}),
    "BMP": ("BMP", {}),
    "TIFF, not packed": ("TIFF", {}),
    "TIFF, LZW": ("TIFF", {"compression": "tiff_lzw"}),
    "TIFF, deflate": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    "TIFF, JPEG": ("TIFF", {"compression": "jpeg"}),
}


def outcome(use: Callable[[], object], expected: object) -> str:
    """What becomes of using a file: refused in a sentence, used as before, or otherwise."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = use()
    except Exception as error:
        sentence = isinstance(error, GPCacheError) and "\n" not in str(error)
        return "refused" if sentence else "traceback"
    return "unchanged" if found == expected else "changed"


def file_of(kind: str, options: dict[str, Any], number: int = 0, width: int = 320) -> bytes:
    """The bytes of the file of a drawn picture."""
    picture, stream = draw_picture("sea", number).resize((width, width * 3 // 4)), BytesIO()
    if kind == "HEIF":
        pillow_heif.from_pillow(picture).save(stream, **options)
    else:
        picture.save(stream, kind, **options)
    return stream.getvalue()


def flipped(content: bytes, places: random.Random) -> bytes:
    """The bytes with one bit flipped."""
    broken = bytearray(content)
    broken[places.randrange(len(broken))] ^= 1 << places.randrange(8)
    return bytes(broken)


def damaged(content: bytes, kind: str) -> Iterator[tuple[str, bytes]]:
    """The same file with one kind of damage each, by its name."""
    size, places = len(content), random.Random(0)
    for _ in range(IMAGE_FLIPS):
        yield "a flipped bit", flipped(content, places)
    for share in (2, 4, 10, 20):
        tail = size // share
        yield "a zeroed tail", content[:-tail] + bytes(tail)
        yield "a cut", content[:-tail]
        if kind in END_MARKS:
            yield "a cut, then an end mark", content[:-tail] + END_MARKS[kind]
    for number in range(20):
        at, place = (places.randrange(100, size - BLOCK) for _ in range(2))
        length = places.randrange(BLOCK // 4, BLOCK)
        before, after = content[:at], content[at + length :]
        yield "a zeroed block", before + bytes(length) + after
        yield "a lost block", before + after
        yield "a block of another place", before + content[place : place + length] + after
        if kind == "PNG":  # other pixels, so that only the checksum tells
            other = file_of(kind, {}, 1 + number)
            yield "a wrong checksum", other[:-16] + content[-16:-12] + other[-12:]


def damaged_images(_: Path) -> Iterator[tuple[str, str]]:
    """Every file damaged in every way: what was tried, and the outcome."""
    for name, (kind, options) in FILES.items():
        content = file_of(kind, options)
        whole = decode(content)
        assert not whole.notes, (name, whole.notes)

        def use(broken: bytes, expected: Image.Image = whole.image) -> bytes:
            found = decode(broken)
            same = found.image.size == expected.size and np.array_equal(found.image, expected)
            if not same and any("damage" in note for note in found.notes):
                raise DataError("It is noted.")
            return expected.tobytes() if same else b""

        for damage, broken in damaged(content, kind):
            if broken != content:
                yield f"{name}: {damage}", outcome(partial(use, broken), whole.image.tobytes())


def check_costs() -> Iterator[list[object]]:
    """For each file its size, the time of its decoding, and that of the checks alone."""
    for name, (kind, options) in FILES.items():
        content = file_of(kind, options, width=1600)
        calls = [partial(check_items, content)]
        if kind != "HEIF":
            image = Image.open(BytesIO(content))
            calls = [partial(stream_of, content), partial(check_file, content, image)]
        whole, *parts = (
            least(call, 9, process_time) for call in (partial(decode, content), *calls)
        )
        figures = f"{1e3 * whole:.1f}", f"{1e3 * sum(parts):.2f}", f"{sum(parts) / whole:.1%}"
        yield [name, f"{len(content) / 1e6:.2f}", *figures]


METHODS = ("gpcache", "tip-adapter-f", "gda", "task-res", "zero-shot")
DEEP = json.loads("[" * 301 + "]" * 301)
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
    return repr([one.tolist() if isinstance(one, np.ndarray) else str(one) for one in values])


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
