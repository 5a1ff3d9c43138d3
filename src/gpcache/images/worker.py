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
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import ImageRefusedError
from gpcache.images.augment import Views
from gpcache.images.decode import decode
from gpcache.images.preprocess import Preprocess
from gpcache.images.thumbnails import thumbnail_of

# Address space beyond what the process starts with.
MEMORY_LIMIT = 2 * 2**30

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
    small = thumbnail_of(decoded.image, thumbnail) if thumbnail else b""
    if views is None:
        return Prepared(preprocess.pixels(decoded.image)[None], decoded.notes, small)
    return Prepared(views.pixels(decoded.image, preprocess, key), decoded.notes, small)


def write_message(stream: IO[bytes], header: dict[str, Any], content: bytes = b"") -> None:
    """Write one message."""
    text = json.dumps(header).encode()
    stream.write(_LENGTHS.pack(len(text), len(content)) + text)
    stream.write(content)
    stream.flush()


def read_message(stream: IO[bytes], limit: int) -> tuple[dict[str, Any], bytes] | None:
    """Read one message of at most `limit` bytes; None if the stream ends or is not a message."""
    start = stream.read(_LENGTHS.size)
    if len(start) < _LENGTHS.size:
        return None
    length, size = _LENGTHS.unpack(start)
    if length > _MAX_HEADER or size > limit:
        return None
    text, content = stream.read(length), stream.read(size)
    if len(content) < size:
        return None
    try:
        header: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return header, content


def limit_memory(extra: int = MEMORY_LIMIT) -> None:
    """Let this process grow by `extra` bytes at most, if the system supports such a limit."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + extra
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, OSError, ValueError):
        return  # no Linux, or a tighter limit is set already


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
    try:
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
    except BrokenPipeError:
        return  # the parent is gone


if __name__ == "__main__":
    main()
