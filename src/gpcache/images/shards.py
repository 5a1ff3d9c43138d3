"""Webdataset shards: tar files that are read as a stream, without writing to the disk.

The webdataset library is not used: it unpickles members and runs commands, has no limits against
decompression bombs, and takes a damaged header for the end of a shard.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path, PurePosixPath

from gpcache.errors import DataError
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
from gpcache.support.checks import is_nan

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


@dataclass
class _Group:
    """The image and label of one key, and the reason if the image is refused."""

    key: str
    image: bytes | None = None
    labels: dict[str, bytes] = field(default_factory=dict)
    reason: str | None = None


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
    names = ClassNames()
    origins: set[str] = set()
    for path in paths:
        ignored: list[str] = []
        seen: set[str] = set()
        try:
            for group in _groups(path, ignored):
                name = f"{readable(path.name)}/{group.key}"
                label, origin = _label(group)
                if group.key in seen:
                    group.reason = "its key occurs twice in the shard"
                seen.add(group.key)
                if group.image is None or group.reason:
                    reason = group.reason or "there is no image under its key"
                    source.refused.append(Refused(name, reason))
                    continue
                if label is not None:
                    origins.add(origin)
                yield Record(name, group.image, names.label(label, repr(name)))
        except DataError:
            raise
        except Exception as error:  # tarfile and the decompressors raise many kinds
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            source.refused.append(
                Refused(
                    readable(path.name), f"the shard is broken, the rest was not read ({reason})"
                )
            )
        if ignored:
            source.notices.append(
                f"Links and devices in {path.name!r} were ignored: {listed(ignored)}."
            )
    if origins:
        source.notices.append(f"Labels were read from {', '.join(sorted(origins))} members.")
    source.notices += names.notices
    source.classes = names.sorted()


def _groups(path: Path, ignored: list[str]) -> Iterator[_Group]:
    """The groups of neighbouring members with one key; an incomplete one is left out."""
    with tarfile.open(path, "r|*", tarinfo=_Header) as archive:
        members = _members(archive, MAX_RATIO * path.stat().st_size, ignored)
        for key, grouped in groupby(members, key=itemgetter(0)):
            group = _Group(key)
            for _, suffix, member in grouped:
                _take(group, archive, member, suffix)
            yield group


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


def _take(group: _Group, archive: tarfile.TarFile, member: tarfile.TarInfo, suffix: str) -> None:
    """Read a member that is an image or a label; others are not read."""
    path = PurePosixPath(member.name)
    is_image = suffix in IMAGE_SUFFIXES
    limit = POLICY.max_bytes if is_image else MAX_LABEL_BYTES
    if path.is_absolute() or ".." in path.parts:
        group.reason = "its name is an absolute path or contains .."
    elif is_image and group.image is not None:
        group.reason = "there are two images under its key"
    elif not is_image and suffix not in LABEL_SUFFIXES:
        return
    elif member.size > limit or member.issparse():
        kind = "image" if is_image else "label"
        group.reason = f"its {kind} is larger than {limit / 1e6:g} MB, or sparse"
    else:
        opened = archive.extractfile(member)
        content = b"" if opened is None else opened.read()
        if is_image:
            group.image = content
        else:
            group.labels[suffix] = content


def _label(group: _Group) -> tuple[str | None, str]:
    """The label of a group, and the suffix of the member that it comes from."""
    for suffix in LABEL_SUFFIXES:
        if suffix not in group.labels:
            continue
        try:
            text = group.labels[suffix].decode("utf-8-sig")
            value = json.loads(text) if suffix == ".json" else text.strip()
        except (ValueError, RecursionError):
            group.reason = group.reason or f"its {suffix} member is not UTF-8 or not JSON"
            return None, suffix
        if suffix == ".json":
            value = value.get("label") if isinstance(value, dict) else None
        if is_nan(value):
            group.reason = group.reason or "its label is NaN, which is not a class"
        elif value is not None and str(value).strip():
            return str(value), suffix
    return None, ""
