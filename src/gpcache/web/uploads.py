"""Photos out of a request's body: streamed, each bounded, nothing buffered that is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any

from fastapi import Request
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header

from gpcache.errors import DataError, GPCacheError
from gpcache.images.decode import POLICY
from gpcache.support.files import explained_writes
from gpcache.web.contents import file_name, file_path

MAX_FILES = 100
MAX_FIELD = 10_000
MAX_FIELDS = 20
# What is larger waits on disk for its turn.
IN_MEMORY = 65_536


class TooMuchError(GPCacheError):
    """A body holds more than is taken; the client gets a 413."""


@dataclass
class Upload:
    """A file of a request by its path in what was sent; `refused` says why it was not kept."""

    path: str
    file: SpooledTemporaryFile[bytes] = field(
        default_factory=lambda: SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - Form closes it
    )
    size: int = 0
    refused: str | None = None

    @property
    def name(self) -> str:
        """The path without its folders."""
        return file_name(self.path)

    def write(self, data: bytes) -> None:
        """Keep a part; a file that is too large is dropped while it comes."""
        self.size += len(data)
        if self.refused is None and self.size > POLICY.max_bytes:
            self.refused = f"it is larger than {POLICY.max_bytes / 1e6:g} MB"
            self.file.truncate(0)
        if self.refused is None:
            with explained_writes(Path(gettempdir())):
                self.file.write(data)

    async def read(self) -> bytes:
        """The content, back from the disk if it went there."""
        self.file.seek(0)
        return await asyncio.to_thread(self.file.read)


@dataclass
class Form:
    """The files and the text fields of a request."""

    files: list[Upload] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """Let the files go."""
        for upload in self.files:
            upload.file.close()


@asynccontextmanager
async def received(request: Request) -> AsyncIterator[Form]:
    """The form of a multipart body, or one file from a body that is an image; gone afterwards."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    form = Form()
    try:
        if kind == b"multipart/form-data":
            boundary = options.get(b"boundary")
            if not boundary:
                raise DataError("The multipart body names no boundary in its Content-Type.")
            await _multipart(request, form, boundary)
        elif kind.startswith(b"image/") or kind == b"application/octet-stream":
            upload = Upload(file_path(request.headers.get("x-file-name", "photo")))
            form.files.append(upload)
            async for part in request.stream():
                upload.write(part)
        else:
            raise DataError(
                "The body must be multipart/form-data with files, or one image with a "
                "Content-Type such as image/jpeg."
            )
        if not form.files:
            raise DataError("There is no file in the request: send it in the field 'files'.")
        yield form
    finally:
        form.close()


async def _multipart(request: Request, form: Form, boundary: bytes) -> None:
    reader = _Reader(form)
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        async for part in request.stream():
            parser.write(part)
        parser.finalize()
    except MultipartParseError:
        raise DataError("The multipart body is broken: it does not follow its boundary.") from None
    if not reader.ended:
        raise DataError("The multipart body is cut off: its closing boundary is missing.")


class _Reader:
    """Follows the parser: which part is coming, and where its bytes go."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._name = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._upload: Upload | None = None
        self._field: tuple[str, bytearray] | None = None
        self.ended = False

    def callbacks(self) -> Any:
        """What the parser calls by name."""
        told: dict[str, Callable[..., None]] = {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }
        return told

    def _begin(self) -> None:
        self._headers, self._name, self._value = {}, b"", b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            if len(self._form.files) == MAX_FILES:
                raise TooMuchError(f"A request may bring {MAX_FILES} files: send the others apart.")
            given = options[b"filename"].decode("utf-8", "replace")
            self._upload = Upload(file_path(given))
            self._form.files.append(self._upload)
        elif len(self._form.fields) == MAX_FIELDS:
            raise TooMuchError(f"A form may have {MAX_FIELDS} text fields.")
        else:
            self._field = (name, bytearray())

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._upload is not None:
            self._upload.write(data[start:end])
        elif self._field is not None:
            self._field[1].extend(data[start:end])
            if len(self._field[1]) > MAX_FIELD:
                raise TooMuchError(f"A text field of a form may have {MAX_FIELD} bytes.")

    def _part_end(self) -> None:
        if self._field is not None:
            name, value = self._field
            self._form.fields[name] = value.decode("utf-8", "replace")
        self._upload = self._field = None

    def _end(self) -> None:
        self.ended = True
