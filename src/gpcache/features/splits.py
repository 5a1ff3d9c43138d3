"""Few-shot draws with a seed, and published split files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import DataError
from gpcache.support.checks import shown, whole
from gpcache.support.files import read_json

SPLIT_PARTS = ("train", "val", "test")
MAX_SPLIT_FILE = 1_000_000_000


@dataclass(frozen=True, eq=False)
class Draw:
    """Rows of a few-shot draw.

    Parameters
    ----------
    indices : array of int
        Row numbers, class by class, in the order drawn.
    rest : array of int
        All other rows, including those without a label.
    shots : int
        Requested number of rows.
    seed : int
        Seed of the draw.
    short : mapping
        Classes with fewer rows than `shots`, and their number of rows.

    Examples
    --------
    >>> from gpcache.features.splits import draw_shots
    >>> draw_shots(["a", "a", "b"], ["1", "2", "3"], shots=2).short
    {'b': 1}
    """

    indices: NDArray[np.int64]
    rest: NDArray[np.int64]
    shots: int
    seed: int
    short: Mapping[Hashable, int]


@dataclass(frozen=True)
class Part:
    """One part of a split file.

    Parameters
    ----------
    names : tuple of str
        Paths as the file has them.
    labels : tuple of str
        Class name of each path.

    Examples
    --------
    >>> from gpcache.features.splits import Part
    >>> Part(("1.jpg",), ("cat",)).labels
    ('cat',)
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class SplitFile:
    """A published split.

    Parameters
    ----------
    class_names : tuple of str
        Class names in the order of their label numbers.
    parts : mapping of Part
        The parts "train", "val" and "test".

    Examples
    --------
    >>> from gpcache.features.splits import Part, SplitFile
    >>> SplitFile(("cat",), {"train": Part(("1.jpg",), ("cat",))}).class_names
    ('cat',)
    """

    class_names: tuple[str, ...]
    parts: Mapping[str, Part]


def draw_shots(labels: Sequence[Any], names: Sequence[Any], shots: int, seed: int = 0) -> Draw:
    """Draw a number of rows of each class; the order of the rows does not matter.

    The draw of a class depends only on its name, the names of its rows and the seed. A draw of
    fewer shots is a subset of a draw of more. Rows with the label None are never drawn.

    Parameters
    ----------
    labels : sequence
        Label of each row.
    names : sequence
        Name of each row, such as its path.
    shots : int
        Number of rows to draw of each class.
    seed : int, default=0
        Seed of the draw.

    Returns
    -------
    Draw
        The drawn rows and the rest.

    Raises
    ------
    DataError
        If names repeat in a class, or no row has a label.

    Examples
    --------
    >>> from gpcache.features.splits import draw_shots
    >>> draw = draw_shots(["a", "a", "b", "b"], ["1", "2", "3", "4"], shots=1)
    >>> len(draw.indices), len(draw.rest)
    (2, 2)
    """
    whole("shots", shots, least=1)
    whole("seed", seed, least=0)
    try:
        rows_of = sorted(_rows_by_class(labels, names).items(), key=itemgetter(0))
    except TypeError:
        raise DataError("Labels must be of one kind: all text, or all numbers.") from None
    drawn: list[int] = []
    short: dict[Hashable, int] = {}
    for label, rows in rows_of:
        by_name = sorted(rows)
        order = _random_order(len(rows), str(label), int(seed))
        drawn += [rows[by_name[place]] for place in order[:shots]]
        if len(rows) < shots:
            short[label] = len(rows)
    indices = np.array(drawn, dtype=np.int64)
    rest = np.setdiff1d(np.arange(len(labels)), indices)
    return Draw(indices, rest, int(shots), int(seed), short)


def _rows_by_class(labels: Sequence[Any], names: Sequence[Any]) -> dict[Hashable, dict[str, int]]:
    """For each class the names of its rows, and the position of each."""
    if len(labels) != len(names):
        raise DataError(
            f"A draw needs one name per label: got {len(labels)} labels and {len(names)} names."
        )
    rows_of: dict[Hashable, dict[str, int]] = {}
    for row, (raw_label, name) in enumerate(zip(labels, names, strict=True)):
        # Elements of arrays and tensors are not plain Python values.
        label = raw_label.item() if hasattr(raw_label, "item") else raw_label
        if label is None:
            continue
        if not isinstance(label, Hashable):
            raise DataError(f"The label of row {row} must be text or a number, got {shown(label)}.")
        if label != label:
            raise DataError(f"The label of row {row} is NaN: use None for a row without a label.")
        rows = rows_of.setdefault(label, {})
        if str(name) in rows:
            raise DataError(f"The class {shown(label)} has the name {shown(str(name))} twice.")
        rows[str(name)] = row
    if not rows_of:
        raise DataError("A draw needs labels, but no row has one.")
    return rows_of


def _random_order(count: int, label: str, seed: int) -> list[int]:
    """The numbers below `count` in an order that depends on this class and seed only."""
    name = int.from_bytes(hashlib.sha256(label.encode(errors="surrogatepass")).digest(), "big")
    generator = np.random.PCG64(np.random.SeedSequence([seed, name]))
    # numpy guarantees the raw numbers of a generator, but not its shuffling.
    order: list[int] = np.argsort(generator.random_raw(count), kind="stable").tolist()
    return order


def read_split_file(path: str | os.PathLike[str]) -> SplitFile:
    """Read a split file: {"train": [[path, label, class name], …], "val": …, "test": …}.

    Label numbers must run from 0 without gaps, each with its own class name, and no path may occur
    twice.

    Parameters
    ----------
    path : str or path
        The JSON file.

    Returns
    -------
    SplitFile
        Class names and parts.

    Raises
    ------
    DataError
        If the file breaks one of these rules.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from gpcache.features.splits import read_split_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "split.json"
    ...     parts = {"train": [["1.jpg", 0, "cat"]], "val": [], "test": []}
    ...     _ = file.write_text(json.dumps(parts))
    ...     read_split_file(file).class_names
    ('cat',)
    """
    file = Path(path)
    content = read_json(file, "split file", limit=MAX_SPLIT_FILE)
    if not isinstance(content, dict) or set(content) != set(SPLIT_PARTS):
        raise DataError(f"{file} must hold one object with the parts {', '.join(SPLIT_PARTS)}.")
    names: dict[int, str] = {}
    part_of: dict[str, str] = {}
    parts: dict[str, Part] = {}
    for part in SPLIT_PARTS:
        rows = content[part]
        if not isinstance(rows, list) or not all(map(_is_image, rows)):
            raise DataError(
                f"The part {part!r} of {file} must be a list of images, each with a path, a label "
                "number and a class name."
            )
        for image, number, name in rows:
            if image in part_of:
                first = part_of[image]
                raise DataError(f"{file} has {shown(image)} twice: in {first!r} and in {part!r}.")
            part_of[image] = part
            if names.setdefault(number, name) != name:
                raise DataError(
                    f"{file} has two class names for the label {number}: "
                    f"{shown(names[number])} and {shown(name)}."
                )
        parts[part] = Part(tuple(row[0] for row in rows), tuple(row[2] for row in rows))
    return SplitFile(_class_names(file, names), parts)


def _is_image(row: Any) -> bool:
    """Whether this is [path, label number, class name]."""
    if not isinstance(row, list) or len(row) != 3 or type(row[1]) is not int:
        return False
    return all(isinstance(text, str) and text.strip() for text in (row[0], row[2]))


def _class_names(file: Path, names: Mapping[int, str]) -> tuple[str, ...]:
    """The class names in the order of their label numbers."""
    if not names or set(names) != set(range(len(names))):
        raise DataError(f"The labels of {file} must run from 0 to the last without gaps.")
    first: dict[str, int] = {}
    for number, name in sorted(names.items()):
        if first.setdefault(name, number) != number:
            raise DataError(
                f"The split file {file} has the class name {shown(name)} for the labels "
                f"{first[name]} and {number}."
            )
    return tuple(first)
