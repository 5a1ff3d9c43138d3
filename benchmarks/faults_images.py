"""Crafted images of every format: drawn pictures, and every kind of damage done to their files."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from measuring import least
from PIL import Image, ImageDraw

from gpcache.errors import ImageRefusedError
from gpcache.images import decode
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


def drawn_picture(seed: int = 0, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """A picture with gradients, shapes and the noise of a camera."""
    generator, (width, height) = np.random.default_rng(seed), size
    y, x = np.mgrid[:height, :width]
    sky = np.stack([120 + y / 3, 160 + x / 6, 230 - y / 4], -1)
    picture = Image.fromarray(sky.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for _ in range(12):
        left, top = generator.integers(0, width - 40), generator.integers(0, height - 40)
        colour = tuple(int(part) for part in generator.integers(0, 256, 3))
        box = (int(left), int(top), int(left) + 60, int(top) + 45)
        (draw.ellipse if generator.random() < 0.5 else draw.rectangle)(box, fill=colour)
    noisy = np.asarray(picture) + generator.normal(0, 4, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def file_of(picture: Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    """The bytes of an image file."""
    stream = BytesIO()
    if kind == "HEIF":
        import pillow_heif

        pillow_heif.from_pillow(picture).save(stream, **options)
    else:
        picture.save(stream, kind, **options)
    return stream.getvalue()


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
    for _ in range(20):
        at, length = places.randrange(100, size - BLOCK), places.randrange(BLOCK // 4, BLOCK)
        yield "a zeroed block", content[:at] + bytes(length) + content[at + length :]
        yield "a lost block", content[:at] + content[at + length :]
        other = places.randrange(100, size - BLOCK)
        block = content[other : other + length]
        yield "a block of another place", content[:at] + block + content[at + length :]
    if kind == "PNG":
        yield from wrong_checksums(content, places)


def flipped(content: bytes, places: random.Random) -> bytes:
    """The bytes with one bit flipped."""
    changed = bytearray(content)
    changed[places.randrange(len(changed))] ^= 1 << places.randrange(8)
    return bytes(changed)


def wrong_checksums(content: bytes, places: random.Random) -> Iterator[tuple[str, bytes]]:
    """A PNG whose packed pixels changed and unpack all the same, so that only its CRC tells."""
    start = content.index(b"IDAT") + 4
    length = int.from_bytes(content[start - 8 : start - 4], "big")
    pixels = zlib.decompressobj().decompress(content[start : start + length])
    for _ in range(20):
        changed = bytearray(pixels)
        at = places.randrange(len(changed) // 2)
        changed[at : at + 99] = bytes(99)
        packed = zlib.compress(bytes(changed))
        head, crc = len(packed).to_bytes(4, "big"), content[start + length : start + length + 4]
        rest = content[start + length + 4 :]
        whole = content[: start - 8] + head + b"IDAT" + packed + crc
        yield "a wrong checksum", whole + (rest if rest[4:8] == b"IEND" else rest[-12:])


def outcome(content: bytes, picture: Image.Image) -> str:
    """What becomes of a damaged file whose picture was this one."""
    try:
        found = decode(content)
    except ImageRefusedError as error:
        return "traceback" if "\n" in str(error) else "refused"
    except Exception:
        return "traceback"
    if found.image.size == picture.size and np.array_equal(found.image, picture):
        return "unchanged"
    return "refused" if any("damage" in note for note in found.notes) else "changed"


def damaged_images(_: Path) -> Iterator[tuple[str, str]]:
    """Every file damaged in every way: what was tried, and the outcome."""
    picture = drawn_picture()
    for name, (kind, options) in FILES.items():
        content = file_of(picture, kind, options)
        whole = decode(content)
        assert not whole.notes, (name, whole.notes)
        for damage, changed in damaged(content, kind):
            if changed != content:
                yield f"{name}: {damage}", outcome(changed, whole.image)


def check_costs() -> Iterator[list[object]]:
    """For each file its size, the time of its decoding, and that of the checks alone."""
    picture = drawn_picture(size=(1600, 1200))
    for name, (kind, options) in FILES.items():
        content = file_of(picture, kind, options)
        calls = [partial(check_items, content)]
        if kind != "HEIF":
            image = Image.open(BytesIO(content))
            calls = [partial(stream_of, content), partial(check_file, content, image)]
        whole = least(partial(decode, content), 9, process_time)
        checks = sum(least(call, 9, process_time) for call in calls)
        figures = f"{1e3 * whole:.1f}", f"{1e3 * checks:.2f}", f"{checks / whole:.1%}"
        yield [name, f"{len(content) / 1e6:.2f}", *figures]
