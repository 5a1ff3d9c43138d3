"""A data set of images: class names, templates, and the images of each part."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpcache.benchmark.datasets.catalogue import Counts
from gpcache.encoders.prompts import Prompts
from gpcache.support.files import sha256


@dataclass(frozen=True, eq=False)
class Split:
    """Images in the published order: paths (n) relative to the data set's root, labels (n,)."""

    paths: tuple[str, ...]
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int]]) -> Split:
        """The split of pairs of path and label."""
        pairs = list(rows)
        labels = np.array([label for _, label in pairs], np.int64)
        return cls(tuple(path for path, _ in pairs), labels)

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set on disk; labels are positions in `class_names`, paths start from `root`.

    `spoken_names` are the names that prompts use. They differ from `class_names` only if two
    classes share a name (ImageNet has two "sunglasses"): the class names then contain the number
    of the class. `validation` is None if the publisher has none.
    """

    name: str
    root: Path
    class_names: tuple[str, ...]
    spoken_names: tuple[str, ...]
    templates: tuple[str, ...]
    train: Split
    validation: Split | None
    test: Split

    @property
    def counts(self) -> Counts:
        """How many classes, and how many images in each part."""
        validation = len(self.validation) if self.validation else 0
        return Counts(len(self.class_names), len(self.train), validation, len(self.test))

    @property
    def prompts(self) -> Prompts:
        """Every template with every spoken name, for the classes in their order."""
        spoken = Prompts.from_templates(list(dict.fromkeys(self.spoken_names)), self.templates)
        sentences = dict(zip(spoken.class_names, spoken.sentences, strict=True))
        return Prompts(self.class_names, tuple(sentences[name] for name in self.spoken_names))

    @cached_property
    def split_hash(self) -> str:
        """SHA-256 of class names, paths and labels: the same split has the same hash anywhere."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return hash_of_parts(
            self.class_names,
            {name: (part.paths, part.labels) for name, part in parts.items() if part is not None},
        )


def number_duplicates(names: Sequence[str]) -> tuple[str, ...]:
    """Append the class number to each name that several classes share: "sunglasses (836)"."""
    times = Counter(names)
    return tuple(
        f"{name} ({number})" if times[name] > 1 else name for number, name in enumerate(names)
    )


def hash_of_parts(
    class_names: Sequence[str], parts: dict[str, tuple[Sequence[str], NDArray[np.int64]]]
) -> str:
    """SHA-256 of class names and, by part, of the images' names and labels."""
    content = {name: [list(names), labels.tolist()] for name, (names, labels) in parts.items()}
    text = json.dumps([list(class_names), content], sort_keys=True, separators=(",", ":"))
    return sha256(text.encode())
