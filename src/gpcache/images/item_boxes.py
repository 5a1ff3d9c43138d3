"""The boxes of AVIF and HEIC files, which locate the coded pictures."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gpcache.errors import ImageRefusedError

_CODED = (b"av01", b"hvc1")
_WHOLE_FILE = (b"meta", b"mdat", b"moov")


def item_payloads(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The kind and the bytes of every coded picture; parts that cannot be parsed are skipped.

    The decoder refuses a file that it cannot parse.
    """
    try:
        top = dict(_boxes(content, 0, len(content)))
        start, end = top[b"meta"]
        meta = dict(_boxes(content, start + 4, end))
        kinds = dict(_kinds(content, *meta[b"iinf"]))
        places = list(_places(content, meta[b"iloc"][0]))
    except (KeyError, struct.error):
        return
    for number, extents in places:
        if kinds.get(number) in _CODED:
            yield kinds[number], b"".join(content[at : at + length] for at, length in extents)


def _boxes(content: bytes, at: int, end: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """The kind of each box, and where its content starts and ends; the first of a kind is last."""
    boxes: list[tuple[bytes, tuple[int, int]]] = []
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", content, at)
        start = at + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", content, start)
            start += 8
        size = size or end - at
        if at + size > end and kind in _WHOLE_FILE:
            raise ImageRefusedError("it is truncated")
        if at + size > end or size < 8:
            break
        boxes.append((kind, (start, at + size)))
        at += size
    return reversed(boxes)


def _kinds(content: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The number and the kind of each item."""
    wide = content[start] > 0
    for kind, (at, _) in _boxes(content, start + (8 if wide else 6), end):
        version = content[at]
        if kind == b"infe" and version in (2, 3):
            form = ">H2x4s" if version == 2 else ">I2x4s"
            yield struct.unpack_from(form, content, at + 4)


def _places(content: bytes, at: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The number of each item in the file, and its parts: start and length."""
    version, sizes, more = content[at], content[at + 4], content[at + 5]
    number_size = 4 if version == 2 else 2
    at += 6

    def whole(size: int) -> int:
        nonlocal at
        at += size
        if at > len(content):
            raise struct.error
        return int.from_bytes(content[at - size : at], "big")

    for _ in range(whole(number_size)):
        number = whole(number_size)
        elsewhere = version > 0 and whole(2) & 15
        whole(2)
        base = whole(more >> 4)
        extents = []
        for _ in range(whole(2)):
            if version > 0:
                whole(more & 15)
            start = base + whole(sizes >> 4)
            extents.append((start, whole(sizes & 15)))
        if not elsewhere:
            yield number, extents
