"""The data sets of the paper: their expected files, their sizes, and their publishers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import NamedTuple

from gpcache.encoders.prompts import TEMPLATES


class Counts(NamedTuple):
    """Numbers of classes, and of images in each part; 0 if there is no such part."""

    classes: int
    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class DatasetEntry:
    """An entry of catalogue.json.

    `folder` is its place below the root of all data sets, `images` the place of its images in
    there, in the subfolders `parts` if these have fixed names. `lists` are the files that list
    images and labels. `known` holds the counts of a whole copy. `renamed`, `substitutions` (pattern
    and replacement) and `lower_case` turn class names of the owners into those of the prompts.
    """

    name: str
    title: str
    layout: str
    folder: str
    images: str
    lists: tuple[str, ...]
    known: Counts
    published: str
    parts: tuple[str, ...] = ("",)
    renamed: Mapping[str, str] = field(default_factory=dict)
    substitutions: tuple[tuple[str, str], ...] = ()
    lower_case: bool = False

    @property
    def templates(self) -> tuple[str, ...]:
        """The usual templates; those of ImageNet for data sets with its classes."""
        return TEMPLATES.get(self.name, TEMPLATES["imagenet"])

    @property
    def expected(self) -> tuple[str, ...]:
        """The paths, below the root of all data sets, that loading needs."""
        images = [f"{self.images}/{part}".strip("/") for part in self.parts]
        return tuple(f"{self.folder}/{name}" for name in (*images, *self.lists))


@cache
def catalogue() -> dict[str, DatasetEntry]:
    """The eleven data sets of the paper and its two for domain generalisation, by name."""
    file = resources.files("gpcache.benchmark.datasets") / "catalogue.json"
    entries = {}
    for entry in json.loads(file.read_bytes()):
        lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
        known = Counts(**entry["known"])
        entries[entry["name"]] = DatasetEntry(**entry | lists | {"known": known})
    return entries
