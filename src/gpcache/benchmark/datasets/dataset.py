"""A data set: class names, templates, and which image of which class is in which part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders.prompts import Prompts
from gpcache.features.splits import Draw, draw_shots
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
        return cls(
            tuple(path for path, _ in pairs), np.array([label for _, label in pairs], np.int64)
        )

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set on disk; labels are positions in `class_names`, `root` is where paths start.

    `spoken_names` are the names that sentences use. They differ from `class_names` only where
    two classes share a name (ImageNet has two "sunglasses"): there the class names carry the
    number of the class. `validation` is None where the publisher has none.
    """

    name: str
    title: str
    root: Path
    class_names: tuple[str, ...]
    spoken_names: tuple[str, ...]
    templates: tuple[str, ...]
    train: Split
    validation: Split | None
    test: Split

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


def hash_of_parts(
    class_names: Sequence[str], parts: dict[str, tuple[Sequence[str], NDArray[np.int64]]]
) -> str:
    """SHA-256 of class names and, by part, of the images' names and labels."""
    content = {name: [list(names), labels.tolist()] for name, (names, labels) in parts.items()}
    text = json.dumps([list(class_names), content], sort_keys=True, separators=(",", ":"))
    return sha256(text.encode())


def held_out(
    labels: Sequence[Any], names: Sequence[Any], draw: Draw, per_class: int = 4
) -> NDArray[np.int64]:
    """Training rows to choose on where there is no validation set: some of each class, not drawn.

    `labels` and `names` are those that `draw` was made of. ImageNet's honest protocol: its
    published validation images are the test images, so that nothing may be chosen on them.
    """
    # Fewer shots are a part of more: what the longer draw adds is as random as the shots are.
    longer = draw_shots(labels, names, draw.shots + per_class, draw.seed)
    rows: NDArray[np.int64] = np.setdiff1d(longer.indices, draw.indices)
    return rows
