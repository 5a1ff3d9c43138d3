"""A small process that decodes images: requests on stdin, pixels or refusals on stdout.

A message is two lengths, a header as JSON, and raw bytes. The first one
carries the settings; every other one an image, and is answered by one message.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpcache.errors import ImageRefusedError
from gpcache.images.augment import Views
from gpcache.images.decode import decode
from gpcache.images.preprocess import Preprocess

# Address space beyond what the process starts with.
MEMORY_LIMIT = 2 * 2**30
# The longest side of a thumbnail for reports and pages, in pixels.
THUMBNAIL = 160
THUMBNAIL_QUALITY = 80

_LENGTHS = struct.Struct("<IQ")
_MAX_HEADER = 1_000_000


@dataclass(frozen=True, eq=False)
class Prepared:
    """Pixels (v, size, size, 3) of an image's v views, and the notes of its decoding.

    `thumbnail` is a JPEG, empty unless requested.
    """

    pixels: NDArray[np.uint8]
    notes: tuple[str, ...] = ()
    thumbnail: bytes = b""


def prepare(
    source: Any,
    preprocess: Preprocess,
    views: Views | None,
    key: bytes | str,
    *,
    thumbnail: int = 0,
) -> Prepared:
    """Decode an image and cut it to size: the centre view, or seeded random views.

    `thumbnail` is the longest side of an additional JPEG; 0 makes none.
    """
    decoded = decode(source)
    small = _thumbnail(decoded.image, thumbnail) if thumbnail else b""
    if views is None:
        return Prepared(preprocess.pixels(decoded.image)[None], decoded.notes, small)
    return Prepared(views.pixels(decoded.image, preprocess, key), decoded.notes, small)


def _thumbnail(image: Image.Image, side: int) -> bytes:
    """A JPEG of at most `side` pixels a side, without the metadata of the original."""
    image = image.copy()
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    image.info.clear()  # Pillow would write its comment
    stream = BytesIO()
    image.save(stream, "JPEG", quality=THUMBNAIL_QUALITY)
    return stream.getvalue()


def write_message(stream: IO[bytes], header: dict[str, Any], content: bytes = b"") -> None:
    """Write one message."""
    text = json.dumps(header).encode()
    stream.write(_LENGTHS.pack(len(text), len(content)) + text)
    stream.write(content)
    stream.flush()


def read_message(stream: IO[bytes], limit: int) -> tuple[dict[str, Any], bytes] | None:
    """Read one message of at most `limit` bytes; None if the stream ends or is not a message."""
    try:
        length, size = _LENGTHS.unpack(stream.read(_LENGTHS.size))
        if length > _MAX_HEADER or size > limit:
            return None
        header: dict[str, Any] = json.loads(stream.read(length))
    except (struct.error, ValueError):
        return None
    content = stream.read(size)
    return None if len(content) < size else (header, content)


def limit_memory(extra: int = MEMORY_LIMIT) -> None:
    """Let this process grow by `extra` bytes at most, if the system supports such a limit."""
    with suppress(ImportError, OSError, ValueError):  # no Linux, or a tighter limit is set already
        import resource

        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + extra
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    """Answer requests until the other end closes the pipe."""
    # Ctrl-C in a terminal reaches this process too, but the parent decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = sys.stdin.buffer
    # A decoder that prints must not print into the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    first = read_message(requests, 0)
    if first is None:
        return
    settings = first[0]
    preprocess = Preprocess(**settings["preprocess"])
    views = None if settings["views"] is None else Views(**settings["views"])
    limit_memory()
    with suppress(BrokenPipeError):  # the parent is gone
        write_message(answers, {})
        while (request := read_message(requests, sys.maxsize)) is not None:
            header, content = request
            try:
                small = header["thumbnail"]
                prepared = prepare(content, preprocess, views, header["key"], thumbnail=small)
            except ImageRefusedError as error:
                write_message(answers, {"refused": error.reason})
            except MemoryError:
                write_message(answers, {"refused": "there is not enough memory to prepare it"})
            else:
                both = prepared.pixels.tobytes() + prepared.thumbnail
                write_message(answers, {"notes": prepared.notes}, both)


if __name__ == "__main__":
    main()
