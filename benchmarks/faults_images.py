"""Crafted images of every format: drawn pictures, and every kind of damage done to their files."""

from __future__ import annotations

import random
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
from PIL import Image

from gpcache.errors import DataError, GPCacheError
from gpcache.images import decode
from gpcache.images.drawn import draw_picture
from gpcache.images.integrity import check_file, check_items, stream_of

FLIPS = 200
BLOCK = 512

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
    changed = bytearray(content)
    changed[places.randrange(len(changed))] ^= 1 << places.randrange(8)
    return bytes(changed)


def damaged(content: bytes, kind: str) -> Iterator[tuple[str, bytes]]:
    """The same file with one kind of damage each, by its name."""
    size, places = len(content), random.Random(0)
    for _ in range(FLIPS):
        yield "a flipped bit", flipped(content, places)
    for share in (2, 4, 10, 20):
        tail = size // share
        yield "a zeroed tail", content[:-tail] + bytes(tail)
        yield "a cut", content[:-tail]
        if kind in END_MARKS:
            yield "a cut, then an end mark", content[:-tail] + END_MARKS[kind]
    for number in range(20):
        at, other = (places.randrange(100, size - BLOCK) for _ in range(2))
        length = places.randrange(BLOCK // 4, BLOCK)
        before, after = content[:at], content[at + length :]
        yield "a zeroed block", before + bytes(length) + after
        yield "a lost block", before + after
        yield "a block of another place", before + content[other : other + length] + after
        if kind == "PNG":  # other pixels, so that only the checksum tells
            changed = file_of(kind, {}, 1 + number)
            yield "a wrong checksum", changed[:-16] + content[-16:-12] + changed[-12:]


def damaged_images(_: Path) -> Iterator[tuple[str, str]]:
    """Every file damaged in every way: what was tried, and the outcome."""
    for name, (kind, options) in FILES.items():
        content = file_of(kind, options)
        whole = decode(content)
        assert not whole.notes, (name, whole.notes)

        def use(changed: bytes, expected: Image.Image = whole.image) -> bytes:
            found = decode(changed)
            same = found.image.size == expected.size and np.array_equal(found.image, expected)
            if not same and any("damage" in note for note in found.notes):
                raise DataError("It is noted.")
            return expected.tobytes() if same else b""

        for damage, changed in damaged(content, kind):
            if changed != content:
                yield f"{name}: {damage}", outcome(partial(use, changed), whole.image.tobytes())


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
