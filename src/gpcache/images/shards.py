"""Webdataset shards: tar files that are read as a stream, without writing to the disk.

The webdataset library is not used: it unpickles members and runs commands, has no limits against
decompression bombs, and takes a damaged header for the end of a shard.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path, PurePosixPath

from gpcache.errors import DataError, ImageRefusedError
from gpcache.images.decode import POLICY
from gpcache.images.records import (
    IMAGE_SUFFIXES,
    ClassNames,
    Record,
    Refused,
    Source,
    listed,
    readable,
)
from gpcache.support.checks import first_line, is_nan

# Members that may hold the label; the first one that a record has is used.
LABEL_SUFFIXES = (".cls", ".txt", ".json")
MAX_LABEL_BYTES = 1_000_000
MAX_NAME_BYTES = 1_000_000
# Photos hardly shrink: a shard that unpacks to more than this many times its size is a bomb.
MAX_RATIO = 100

_NAME_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _Header(tarfile.TarInfo):
    """A member's header that reports damage: tarfile takes a broken one for the archive's end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise  # the mark at the end of every sound archive
        except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
            raise tarfile.ReadError("the end is missing") from None
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None
        if header.size < 0 or (header.type in _NAME_TYPES and header.size > MAX_NAME_BYTES):
            raise tarfile.ReadError("a header of impossible size")
        return header


def from_webdataset(shards: str | Path | Iterable[str | Path]) -> Source:
    """The images of tar shards, as a stream; members that share a key are one record.

    The key is the member's name up to the first dot. The image is the member with the suffix of
    an image; the label comes from `.cls`, else `.txt`, else the "label" of `.json`.
    """
    paths = [Path(shards)] if isinstance(shards, str | Path) else [Path(path) for path in shards]
    if not paths:
        raise DataError("from_webdataset needs at least one shard.")
    for path in paths:
        if not path.is_file():
            raise DataError(f"There is no shard {str(path)!r}.")
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    source = Source(name, ())
    source.records = _records(paths, source)
    return source


def _records(paths: list[Path], source: Source) -> Iterator[Record]:
    names = ClassNames(source.notices)
    origins: set[str] = set()
    for path in paths:
        ignored: list[str] = []
        try:
            for key, members in _groups(path, ignored):
                name = f"{readable(path.name)}/{key}"
                if isinstance(members, ImageRefusedError):
                    source.refused.append(Refused(name, members.reason))
                    continue
                image, label, origin = members
                if label is not None:
                    origins.add(origin)
                yield Record(name, image, names.label(label, repr(name)))
        except DataError:
            raise
        except Exception as error:  # tarfile and the decompressors raise many kinds
            reason = f"the shard is broken, the rest was not read ({first_line(error)})"
            source.refused.append(Refused(readable(path.name), reason))
        if ignored:
            source.notices.append(
                f"Links and devices in {path.name!r} were ignored: {listed(ignored)}."
            )
    if origins:
        source.notices.append(f"Labels were read from {', '.join(sorted(origins))} members.")
    source.classes = names.sorted()


def _groups(
    path: Path, ignored: list[str]
) -> Iterator[tuple[str, tuple[bytes, str | None, str] | ImageRefusedError]]:
    """The keys of a shard, each with its image, label and the label's origin, or a refusal.

    Neighbouring members with one key belong together; an incomplete group is left out.
    """
    seen: set[str] = set()
    with tarfile.open(path, "r|*", tarinfo=_Header) as archive:
        members = _members(archive, MAX_RATIO * path.stat().st_size, ignored)
        for key, group in groupby(members, key=itemgetter(0)):
            try:
                image, labels = _contents(archive, group)
                if key in seen:
                    raise ImageRefusedError("its key occurs twice in the shard")
                yield key, (image, *_label(labels))
            except ImageRefusedError as refusal:
                yield key, refusal
            seen.add(key)


def _members(
    archive: tarfile.TarFile, limit: int, ignored: list[str]
) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Key, suffix and header of every file; the names of links and devices go to `ignored`."""
    while (member := archive.next()) is not None:
        # Otherwise a long stream would keep every header.
        archive.members.clear()  # type: ignore[attr-defined]
        if member.offset_data + member.size > limit:
            raise tarfile.ReadError(f"it unpacks to more than {MAX_RATIO} times its size")
        name = readable(member.name).removeprefix("./")
        if member.isreg():
            folder, _, file = name.rpartition("/")
            stem, dot, suffix = file.partition(".")
            key = f"{folder}/{stem}" if folder else stem
            yield key, f"{dot}{suffix}".lower(), member
        elif not member.isdir():
            ignored.append(name)


def _contents(
    archive: tarfile.TarFile, group: Iterable[tuple[str, str, tarfile.TarInfo]]
) -> tuple[bytes, dict[str, bytes]]:
    """The image of a group, and its members that may hold a label; others are not read."""
    contents: dict[str, bytes] = {}
    for _, suffix, member in group:
        path = PurePosixPath(member.name)
        is_image = suffix in IMAGE_SUFFIXES
        key, limit = ("image", POLICY.max_bytes) if is_image else (suffix, MAX_LABEL_BYTES)
        if path.is_absolute() or ".." in path.parts:
            raise ImageRefusedError("its name is an absolute path or contains ..")
        if is_image and key in contents:
            raise ImageRefusedError("there are two images under its key")
        if not is_image and suffix not in LABEL_SUFFIXES:
            continue
        if member.size > limit or member.issparse():
            kind = "image" if is_image else "label"
            raise ImageRefusedError(f"its {kind} is larger than {limit / 1e6:g} MB, or sparse")
        opened = archive.extractfile(member)
        contents[key] = b"" if opened is None else opened.read()
    if "image" not in contents:
        raise ImageRefusedError("there is no image under its key")
    return contents.pop("image"), contents


def _label(labels: dict[str, bytes]) -> tuple[str | None, str]:
    """The label of a group, and the suffix of the member that it comes from."""
    for suffix in LABEL_SUFFIXES:
        if suffix not in labels:
            continue
        try:
            text = labels[suffix].decode("utf-8-sig")
            value = json.loads(text) if suffix == ".json" else text.strip()
        except (ValueError, RecursionError):
            raise ImageRefusedError(f"its {suffix} member is not UTF-8 or not JSON") from None
        if suffix == ".json":
            value = value.get("label") if isinstance(value, dict) else None
        if is_nan(value):
            raise ImageRefusedError("its label is NaN, which is not a class")
        if value is not None and str(value).strip():
            return str(value), suffix
    return None, ""
