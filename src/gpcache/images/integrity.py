"""Detects damaged image files by their checksums, markers and lengths.

Decoders ignore much of this damage. `docs/reference/images.md` lists damage that no check detects.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Literal

from PIL import Image

from gpcache.errors import ImageRefusedError

# JPEG: picture data end at a marker that is neither a stuffed zero nor a restart marker.
_END_OF_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_SEQUENTIAL, _FRAMES = (0xC0, 0xC1), (b"\xc0", b"\xc1", b"\xc2")
# The decoder reads this many bytes ahead; a picture that ends earlier is damaged.
_AHEAD, _SPARE = 8, 16

# Arithmetic coders never write 64 zero bytes in a row; flat pictures have at most four.
_ZEROS = bytes(64)
_DEFLATE = (8, 32946)
_COMPRESSION, _OFFSETS, _LENGTHS = 259, (273, 324), (279, 325)
_BLOCK = 2**20
_MOST_BYTES = 16  # of a pixel: four channels of 32 bits


# Boxes of AVIF and HEIC: the kinds of coded pictures, and boxes that must not be cut off.
_CODED = (b"av01", b"hvc1")
_WHOLE_FILE = (b"ftyp", b"meta", b"mdat", b"moov")

_PNG, _GIF = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a")
_TIFF: dict[bytes, Literal["little", "big"]] = {b"II*\0": "little", b"MM\0*": "big"}

# Header, start and end of a scan.
_Scan = tuple[bytes, int, int]


class JpegStream(BytesIO):
    """A JPEG up to the end of its picture data; its last bytes are returned by a separate read.

    Without the end marker the decoder asks for more data if the picture is incomplete, and Pillow
    raises an error. If it never asks for the last bytes, the picture was complete too early.
    """

    def __init__(self, content: bytes, start: int, end: int) -> None:
        super().__init__(content[:end] + bytes(_AHEAD))
        self._edge = max(start, end - _SPARE)
        self.is_used_up = False

    def read(self, size: int | None = -1, /) -> bytes:
        place = self.tell()
        self.is_used_up |= place >= self._edge
        whole = size is None or size < 0 or place + size > self._edge
        return super().read(self._edge - place if place < self._edge and whole else size)


def stream_of(content: bytes) -> BytesIO:
    """The bytes for Pillow to read; a JPEG that lacks a part of its picture is refused."""
    if not content.startswith(b"\xff\xd8"):
        return BytesIO(content)
    frame, scans, restarts = _jpeg_parts(content)
    if not frame or not scans:
        return BytesIO(content)
    header, start, end = scans[0]
    if restarts:
        marks = [mark[1] & 7 for mark in _RESTART.findall(content, start, end)]
        if marks != [number % 8 for number in range(len(marks))]:
            raise _damaged("its restart marks are not in order")
    if frame[0] in _SEQUENTIAL and header[:1] == frame[6:7]:
        return JpegStream(content, start, end)
    if not _is_complete(frame, scans):
        raise _truncated()
    return BytesIO(content)


def _jpeg_parts(content: bytes) -> tuple[bytes, list[_Scan], bool]:
    """Marker and header of the frame, the scans of the picture, and whether it restarts."""
    frame, scans, restarts, at = b"", list[_Scan](), False, 2
    while content[at : at + 1] == b"\xff" and (mark := content[at + 1 : at + 2]) != b"\xd9":
        if mark == b"\xff":  # padding
            at += 1
            continue
        start = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        header = content[at + 4 : start]
        if mark == b"\xda":
            end = _END_OF_SCAN.search(content, start)
            if end is None:
                raise _truncated()
            scans.append((header, start, end.start()))
            start = end.start()
        elif mark in _FRAMES:
            frame = mark + header
        restarts |= mark == b"\xdd"
        at = start
    return frame, scans, restarts


def _is_complete(frame: bytes, scans: list[_Scan]) -> bool:
    """Whether the scans of a JPEG contain all bits of every coefficient."""
    bits = {(one, at): 1 for one in frame[7::3] for at in range(64)}
    for header, _, _ in scans:
        first, last, low = header[-3:]
        bits |= {(one, at): low & 15 for one in header[1:-3:2] for at in range(first, last + 1)}
    return not any(bits.values())


def check_file(content: bytes, image: Image.Image) -> None:
    """Refuse a file with wrong checksums or lengths, before it is decoded."""
    if image.format == "PNG":
        _check_png(content)
    elif image.format == "TIFF":
        _check_tiff(content, getattr(image, "tag_v2", {}), _MOST_BYTES * image.width * image.height)
    elif image.format == "AVIF":
        check_items(content)


def check_length(content: bytes) -> None:
    """Refuse a file that was cut off, where no decoder can open it."""
    if content.startswith(_PNG):
        is_cut = b"IEND" not in content
    elif content.startswith(b"\xff\xd8\xff"):
        is_cut = b"\xff\xda" not in content  # the start of the picture data
    elif content[4:8] == b"ftyp":
        is_cut = b"mdat" not in dict(_boxes(content, 0, len(content)))
    elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        is_cut = len(content) < 8 + int.from_bytes(content[4:8], "little")
    elif content[:4] in _TIFF:
        order = _TIFF[content[:4]]
        at = int.from_bytes(content[4:8], order)  # the tags, each of twelve bytes
        is_cut = len(content) < at + 2 + 12 * int.from_bytes(content[at : at + 2], order)
    elif content[:2] == b"BM" and content[6:10] == bytes(4):
        is_cut = len(content) < int.from_bytes(content[2:6], "little")
    else:
        is_cut = content.startswith(_GIF) and not content.endswith(b";")
    if is_cut:
        raise _truncated()


def notes_of(stream: BytesIO) -> list[str]:
    """Notes for the user about a file that was decoded from this stream."""
    if isinstance(stream, JpegStream) and not stream.is_used_up:
        return ["it may be damaged: its picture data continue after the picture"]
    return []


def _check_png(content: bytes) -> None:
    view, at = memoryview(content), 8
    while at + 12 <= len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        end = at + 8 + length
        if zlib.crc32(view[at + 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
            raise _damaged("a checksum differs") if end + 4 <= len(content) else _truncated()
        if content[at + 4 : at + 8] == b"IEND":
            return
        at = end + 4
    raise _truncated()


def _check_tiff(content: bytes, tags: Any, most: int) -> None:
    """Unpack deflated data of `most` bytes, because the decoder does not compare checksums."""
    if tags.get(_COMPRESSION) not in _DEFLATE:
        return
    parts = [
        next((tags[tag] for tag in names if tag in tags), ()) for names in (_OFFSETS, _LENGTHS)
    ]
    for start, length in zip(*parts, strict=False):
        unpack, rest = zlib.decompressobj(), content[start : start + length]
        try:
            while rest and not unpack.eof:
                most -= len(unpack.decompress(rest, _BLOCK))
                rest = unpack.unconsumed_tail
                if most < -_BLOCK:
                    raise _damaged("it unpacks to more than its picture")
        except zlib.error:
            raise _damaged("a checksum differs") from None


def check_items(content: bytes) -> None:
    """Refuse an AVIF or HEIC file whose coded pictures hold bytes that no coder writes."""
    for kind, payload in _item_payloads(content):
        is_av1 = kind == b"av01"
        zeros, units = (_ZEROS, [payload]) if is_av1 else (_ZEROS[:3], _network_units(payload))
        if any(zeros in unit for unit in units):
            raise _damaged("a part of it is zero")


def _network_units(payload: bytes) -> Iterator[bytes]:
    """The units of HEVC, each after its length; three zeros in a row are not allowed in any."""
    at = 0
    while at < len(payload):
        (length,) = struct.unpack_from(">I", payload.ljust(at + 4, b"\0"), at)
        if at + 4 + length > len(payload):
            raise _damaged("the lengths of its parts do not add up")
        yield payload[at + 4 : at + 4 + length]
        at += 4 + length


# The boxes of AVIF and HEIC files, which locate the coded pictures.


def _item_payloads(content: bytes) -> Iterator[tuple[bytes, bytes]]:
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
        if size == 1 and start + 8 <= end:
            (size,) = struct.unpack_from(">Q", content, start)
            start += 8
        size = size or end - at
        if at + size > end and kind in _WHOLE_FILE:
            raise _truncated()
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


def _damaged(how: str) -> ImageRefusedError:
    return ImageRefusedError(f"it is damaged: {how}")


def _truncated() -> ImageRefusedError:
    return ImageRefusedError("it is truncated")
