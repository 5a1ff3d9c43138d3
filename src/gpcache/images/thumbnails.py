"""Thumbnails for reports and pages, without any metadata of the original file."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from gpcache.images.decode import decode

SIDE = 160
QUALITY = 80


def thumbnail(source: Any, side: int = SIDE) -> bytes:
    """A JPEG of at most `side` pixels a side, without the metadata of the original."""
    return thumbnail_of(decode(source).image, side)


def thumbnail_of(image: Image.Image, side: int = SIDE) -> bytes:
    """The same for a decoded image, which is not changed."""
    image = image.copy()
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    image.info.clear()  # Pillow would write its comment
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()
