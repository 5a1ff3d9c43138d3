"""The photos of a request's body, in temporary files until they are decoded."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile

from anyio import CancelScope
from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from gpcache.errors import DataError, DiskFullError, GPCacheError
from gpcache.images.decode import POLICY
from gpcache.web.workspace_contents import file_name, file_path

MAX_FILES = 100
MAX_FIELD = 10_000
MAX_FIELDS = 20
# Bytes of a file that is kept in memory; a larger one is stored on disk.
IN_MEMORY = 65_536


class TooMuchError(GPCacheError):
    """A body is too large."""

    status = 413


class NoTemporaryFolderError(GPCacheError):
    """Uploads cannot be stored."""

    status = 503


def _temporary_file() -> UploadFile:
    file = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - Form closes it
    return UploadFile(file, size=0)  # type: ignore[arg-type]


@dataclass
class Upload:
    """A file of a request, with its path in the upload."""

    path: str
    file: UploadFile = field(default_factory=_temporary_file)

    @property
    def name(self) -> str:
        """The path without its folders."""
        return file_name(self.path)

    @property
    def size(self) -> int:
        return self.file.size or 0

    @property
    def refused(self) -> str | None:
        """The reason for refusal if it is too large; otherwise None."""
        large = self.size > POLICY.max_bytes
        return f"it is larger than {POLICY.max_bytes / 1e6:g} MB" if large else None

    async def write(self, data: bytes) -> None:
        """Append a part of its content."""
        with explained_temporary_files():
            await self.file.write(data)

    async def read(self) -> bytes:
        """The content, from memory or from the disk."""
        await self.file.seek(0)
        return await self.file.read()


@dataclass
class Form:
    """The files and the text fields of a request; the files are deleted at the end."""

    files: list[Upload] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """Delete the files."""
        for upload in self.files:
            upload.file.file.close()


@asynccontextmanager
async def received(request: Request) -> AsyncIterator[Form]:
    """The form of a multipart body, or of a body that is one image; deleted afterwards."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    with closing(Form()) as form:
        if kind == "multipart/form-data":
            await _read_multipart(request, form)
        elif kind.startswith("image/") or kind == "application/octet-stream":
            form.files.append(Upload(file_path(request.headers.get("x-file-name", "photo"))))
            async for part in request.stream():
                await form.files[0].write(part)
        else:
            raise DataError(
                "The body must be multipart/form-data with files, or one image with a "
                "Content-Type such as image/jpeg."
            )
        if not form.files:
            raise DataError("There is no file in the request: send it in the field 'files'.")
        async with stopped_on_disconnect(request):
            yield form


@asynccontextmanager
async def stopped_on_disconnect(request: Request) -> AsyncIterator[None]:
    """Cancel the work inside, such as a decode, once the client has left."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue
        scope.cancel()

    with CancelScope() as scope:
        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
    if scope.cancelled_caught:
        raise ClientDisconnect


@contextmanager
def explained_temporary_files() -> Iterator[None]:
    """Turn the system's error of a temporary file into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                "The disk is full: there is no room for an upload in the temporary folder."
            ) from None
        raise NoTemporaryFolderError(
            f"The server cannot write to its temporary folder ({error.strerror}): make the folder "
            "again, or start the server with another TMPDIR."
        ) from None


_EXTENDED_NAME = re.compile(rb";\s*filename\*", re.IGNORECASE)
_PLAIN_NAME = re.compile(rb";\s*filename\s*=", re.IGNORECASE)


class _Parser(MultiPartParser):
    """Starlette's parser; `ended` says whether the closing boundary has come."""

    spool_max_size = IN_MEMORY
    ended = False

    def on_headers_finished(self) -> None:
        header = self._current_part.content_disposition or b""
        if _EXTENDED_NAME.search(header) and not _PLAIN_NAME.search(header):
            # The parser would take the file for a text field.
            raise DataError(
                "A file of the request has its name only as filename*=, which is not allowed in "
                'multipart/form-data: send filename="photo.jpg", in UTF-8.'
            )
        super().on_headers_finished()

    def on_end(self) -> None:
        self.ended = True


async def _read_multipart(request: Request, form: Form) -> None:
    limits = {"max_files": MAX_FILES, "max_fields": MAX_FIELDS, "max_part_size": MAX_FIELD}
    parser = _Parser(request.headers, request.stream(), **limits)
    try:
        with explained_temporary_files():
            parsed = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith(("Too many", "Part exceeded")):
            raise TooMuchError(
                f"A request may bring {MAX_FILES} files and {MAX_FIELDS} text fields of "
                f"{MAX_FIELD} bytes: send the others separately."
            ) from None
        raise DataError(f"The multipart body is broken: {error.message}") from None
    except UnicodeError:
        raise DataError("The multipart body names a charset that cannot be used.") from None
    for name, value in parsed.multi_items():
        if isinstance(value, UploadFile):
            form.files.append(Upload(file_path(value.filename or ""), value))
        else:
            form.fields[name] = value
    if not parser.ended:
        raise DataError("The multipart body is incomplete: its closing boundary is missing.")
