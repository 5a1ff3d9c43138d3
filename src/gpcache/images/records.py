"""Records, refusals and notices of image sources, and the comparison of class names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from PIL import Image

from gpcache.errors import DataError
from gpcache.support.checks import is_nan
from gpcache.support.names import class_name, quoted

_SUFFIXES = ".jpg .jpeg .jpe .jfif .png .apng .webp .gif .bmp .tif .tiff .avif .heic .heif"
IMAGE_SUFFIXES = frozenset(_SUFFIXES.split())

# How to read a file outside of the folder that is given.
HOW_TO_FOLLOW = "allowed with --follow; in Python, with open_source(path, follow=True)"

Content = Path | bytes | Image.Image | NDArray[Any]


@dataclass(frozen=True)
class Record:
    """One image, not yet decoded; `label`, `split` and `group` if the source has them."""

    name: str
    content: Content
    label: str | None = None
    split: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Refused:
    """An image that was refused, and the reason."""

    name: str
    reason: str


@dataclass
class Source:
    """Records, refused files and notices for the user.

    `records` of a folder or a manifest can be read several times; those of a stream only once, and
    its `refused` and `notices` are complete only then. `classes` holds every class name that is
    known in advance, also of classes without an image.
    """

    name: str
    records: Iterable[Record]
    total: int | None = None
    refused: list[Refused] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)


class ClassNames:
    """Class names in one spelling each; names that differ only in case are an error.

    Spellings that differ in white space or in how letters are composed (NFC) are one class.
    `class_name` says which names are refused.
    """

    def __init__(self, notices: list[str] | None = None) -> None:
        self._spelling: dict[str, str] = {}  # normalised → as it was first written
        self._folded: dict[str, str] = {}
        self.notices: list[str] = [] if notices is None else notices

    def label(self, value: Any, where: str) -> str | None:
        """The class that a label of any type names, None for none; NaN is an error."""
        if is_nan(value):
            raise DataError(
                f"The label of {where} is NaN, which is not a class: give it a label, or None."
            )
        return None if value is None or not str(value).strip() else self.add(str(value))

    def add(self, name: str) -> str:
        """The normalised name; another spelling of a known one is noted."""
        normal = class_name(name)
        if normal not in self._spelling:
            refuse_other_case(normal, self._folded.setdefault(normal.casefold(), normal))
            self._spelling[normal] = name
        elif name != self._spelling[normal]:
            notice = (
                f"Two spellings of the class {quoted(normal)}, which differ in white space or in "
                "how letters are composed, were merged."
            )
            if notice not in self.notices:
                self.notices.append(notice)
        return normal

    def sorted(self) -> list[str]:
        """All names so far."""
        return sorted(self._spelling)


def refuse_other_case(name: str, other: str) -> None:
    """Refuse two class names that differ only in case."""
    if name != other and name.casefold() == other.casefold():
        raise DataError(
            f"The class names {quoted(other)} and {quoted(name)} differ only in upper and lower "
            "case: give them one spelling, or names that differ."
        )


def readable(name: str) -> str:
    """A file name as text; bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def listed(names: list[str], limit: int = 3) -> str:
    """Names for a sentence: the first few, quoted, and how many more there are."""
    shown = ", ".join(quoted(name if len(name) < 81 else f"{name[:79]}…") for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 file, 2,000 files, 2 classes."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"
