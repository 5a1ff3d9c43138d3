"""Reads the rows of an audit: unit features, labels, groups, hashes and names."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.kernels import unit_rows
from gpcache.support.checks import to_numpy


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """The labelled rows: unit features (n, d), labels, groups, hashes, names and row numbers.

    `pictures` are small grey pictures of the images, if there are any.
    """

    features: Tensor
    labels: NDArray[Any]
    groups: list[Hashable]
    hashes: list[Hashable]
    names: list[str]
    numbers: list[int]
    unlabelled: int
    pictures: list[NDArray[np.uint8]] | None = None

    @classmethod
    def read(cls, features: Any, labels: Any, **columns: Any) -> LabelledRows:
        array = np.asarray(to_numpy(features))
        if array.ndim != 2 or array.dtype.kind not in "fiu":
            raise DataError(f"features must be numbers (n, d), got shape {array.shape}.")
        given = [plain(label) for label in to_numpy(labels)]
        lists: dict[str, list[Any]] = {"labels": given}
        for name, column in columns.items():
            lists[name] = [None] * len(array) if column is None else [plain(v) for v in column]
        for name, values in lists.items():
            if len(values) != len(array):
                raise DataError(
                    f"There are {len(array)} rows of features but {len(values)} {name}."
                )
        kept = [row for row, label in enumerate(given) if label is not None]
        if not kept:
            raise DataError("An audit needs labels, but no row has one.")
        array, held = array[kept], [given[row] for row in kept]
        usable = np.isfinite(array).all(1) & array.any(1) & [label == label for label in held]
        if not usable.all():
            row = kept[int(np.flatnonzero(~usable)[0])]
            raise DataError(
                f"Row {row} has a feature with NaN, inf or only zeros, or NaN for a label: remove "
                "or fix it, and use None for a row without a label."
            )
        if len({isinstance(label, str) for label in held}) > 1:
            raise DataError("Labels must be of one kind: all text, or all numbers.")
        names = [lists["names"][row] for row in kept]
        return cls(
            unit_rows(torch.as_tensor(array.astype(np.float64))),
            np.array(held),
            [lists["groups"][row] for row in kept],
            [lists["hashes"][row] for row in kept],
            [f"Row {row}" if name is None else name for row, name in zip(kept, names, strict=True)],
            kept,
            len(given) - len(kept),
            None if columns.get("pictures") is None else [lists["pictures"][row] for row in kept],
        )

    def first_of_content(self, *, by_label: bool = False) -> list[int]:
        """The first row of each content hash (and label), and all rows without a hash."""
        first: dict[Hashable, int] = {}
        labels = self.labels.tolist() if by_label else [None] * len(self.hashes)
        for row, key in enumerate(self.hashes):
            first.setdefault(("row", row) if key is None else (key, labels[row]), row)
        return list(first.values())

    def part(self, rows: Sequence[int]) -> LabelledRows:
        """Some of the rows."""
        pictures = self.pictures
        return replace(
            self,
            features=self.features[rows],
            labels=self.labels[rows],
            groups=[self.groups[row] for row in rows],
            hashes=[self.hashes[row] for row in rows],
            names=[self.names[row] for row in rows],
            numbers=[self.numbers[row] for row in rows],
            pictures=None if pictures is None else [pictures[row] for row in rows],
        )


def plain(value: Any) -> Any:
    """A value as a plain Python object, so that equal ones are one key."""
    return value.item() if getattr(value, "ndim", None) == 0 else value
