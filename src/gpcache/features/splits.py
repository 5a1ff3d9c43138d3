"""Splits: seeded k-shot draws and their manifests, and the split files that others publish."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import DataError
from gpcache.support.files import read_json, write_atomic

SPLIT_PARTS = ("train", "val", "test")
INDEX_PARTS = ("train", "val")
MAX_SPLIT_FILE = 1_000_000_000
DRAW_COLUMNS = ["path", "label", "split", "shots", "seed"]


@dataclass(frozen=True, eq=False)
class Draw:
    """Which rows were drawn.

    `indices` are positions in the input, by class and within a class in the order drawn; `rest`
    are all others, unlabelled rows too. `short` names the classes that had fewer than `shots`
    images, with how many: all of those were taken.
    """

    indices: NDArray[np.int64]
    rest: NDArray[np.int64]
    shots: int
    seed: int
    short: Mapping[Hashable, int]


@dataclass(frozen=True)
class SavedDraw:
    """A draw as its manifest has it: paths and labels, the labels as text."""

    names: tuple[str, ...]
    labels: tuple[str, ...]
    shots: int
    seed: int

    @property
    def short(self) -> dict[str, int]:
        """The classes with fewer than `shots` images, and how many they had."""
        counts = Counter(self.labels)
        return {label: count for label, count in counts.items() if count < self.shots}


@dataclass(frozen=True)
class Part:
    """Paths as the file has them, and the class name of each."""

    names: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """The parts of a published split ("train", "val", …), and its classes in label order."""

    class_names: tuple[str, ...]
    parts: Mapping[str, Part]


def draw_shots(labels: Sequence[Any], names: Sequence[Any], shots: int, seed: int = 0) -> Draw:
    """Draw `shots` rows of each class, the same ones whatever the order of the rows.

    A class's draw depends on its name, its rows' names (paths) and the seed alone: neither on the
    other classes nor, but for how many are taken, on `shots`. So fewer shots are a part of more.
    Rows whose label is None are never drawn, and no row is drawn twice.
    """
    _whole("shots", shots, least=1)
    _whole("seed", seed, least=0)
    rows_of = _rows_by_class(labels, names)
    drawn: list[int] = []
    short: dict[Hashable, int] = {}
    for label in _sorted_classes(rows_of):
        rows = rows_of[label]
        by_name = sorted(rows)
        order = _random_order(len(rows), str(label), int(seed))
        drawn += [rows[by_name[place]] for place in order[:shots]]
        if len(rows) < shots:
            short[label] = len(rows)
    indices = np.array(drawn, dtype=np.int64)
    rest = np.setdiff1d(np.arange(len(labels)), indices)
    return Draw(indices, rest, int(shots), int(seed), short)


def _rows_by_class(labels: Sequence[Any], names: Sequence[Any]) -> dict[Hashable, dict[str, int]]:
    """For each class the names of its rows, and where each is."""
    if len(labels) != len(names):
        raise DataError(
            f"A draw needs one name per label: got {len(labels)} labels and {len(names)} names."
        )
    rows_of: dict[Hashable, dict[str, int]] = {}
    for row, (given, name) in enumerate(zip(labels, names, strict=True)):
        # Arrays and tensors give labels that are not the values they hold.
        label = given.item() if hasattr(given, "item") else given
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


def _sorted_classes(rows_of: Mapping[Hashable, Any]) -> list[Any]:
    classes: list[Any] = list(rows_of)
    try:
        return sorted(classes)
    except TypeError:
        raise DataError("Labels must be of one kind: all text, or all numbers.") from None


def _random_order(count: int, label: str, seed: int) -> list[int]:
    """The numbers below `count` in an order of this class and seed alone."""
    name = int.from_bytes(hashlib.sha256(label.encode(errors="surrogatepass")).digest(), "big")
    generator = np.random.PCG64(np.random.SeedSequence([seed, name]))
    # numpy promises the raw numbers for good, but not what its shuffle makes of them.
    order: list[int] = np.argsort(generator.random_raw(count), kind="stable").tolist()
    return order


def save_draw(
    draw: Draw, path: str | os.PathLike[str], names: Sequence[Any], labels: Sequence[Any]
) -> None:
    """Write the drawn rows as CSV: path, label, split ("train"), shots, seed.

    `names` and `labels` are those that were drawn from. The file is a manifest of images where it
    lies beside them, and one draw always gives the same bytes.
    """
    if len(names) != len(labels) or len(names) != len(draw.indices) + len(draw.rest):
        raise DataError(
            f"The draw is of {len(draw.indices) + len(draw.rest)} rows, "
            f"got {len(names)} names and {len(labels)} labels."
        )
    stream = io.StringIO(newline="")
    # Text in quotes keeps every character of a path, line ends and outer spaces too.
    writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(DRAW_COLUMNS)
    for row in draw.indices.tolist():
        writer.writerow([str(names[row]), str(labels[row]), "train", draw.shots, draw.seed])
    try:
        data = stream.getvalue().encode()
    except UnicodeEncodeError as error:
        text = error.object[max(error.start - 20, 0) : error.end]
        raise DataError(f"A name or label is no Unicode text, near {text!r}: rename it.") from None
    write_atomic(Path(path), data)


def read_draw(path: str | os.PathLike[str]) -> SavedDraw:
    """Read what `save_draw` wrote."""
    file = Path(path)
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            header, *rows = csv.reader(stream, strict=True)
    except OSError as error:
        raise DataError(f"The draw {file} cannot be read: {error.strerror}.") from None
    except (ValueError, csv.Error):  # ValueError: no header, or no UTF-8
        raise DataError(f"The draw {file} is not CSV that save_draw wrote.") from None
    if header != DRAW_COLUMNS or not rows or any(len(row) != len(header) for row in rows):
        raise DataError(f"The draw {file} needs rows with the columns {', '.join(DRAW_COLUMNS)}.")
    names, labels, _, shots, seeds = zip(*rows, strict=True)
    numbers = {*shots}, {*seeds}
    if any(len(found) > 1 or not min(found).isdecimal() for found in numbers):
        raise DataError(f"The draw {file} needs one number of shots and one seed for all rows.")
    return SavedDraw(names, labels, int(shots[0]), int(seeds[0]))


# One image of a published file: path, label number, class name.
Row = tuple[str, int, str]


def read_split_file(path: str | os.PathLike[str]) -> Split:
    """Read a split {"train": [[path, label, class name], …], "val": …, "test": …}.

    Label numbers run from 0 without gaps, each stands for one class name and the other way
    round, and no path comes twice.
    """
    file = Path(path)
    content = read_json(file, "split file", limit=MAX_SPLIT_FILE)
    parts = _parts(file, content, SPLIT_PARTS, lambda part: part, lambda row: row)
    names = _names_by_number(file, parts)
    first: dict[str, int] = {}
    for number, name in enumerate(names):
        if first.setdefault(name, number) != number:
            raise DataError(
                f"The split file {file} has the class name {shown(name)} for the labels "
                f"{first[name]} and {number}."
            )
    return _split(parts, names)


def read_index_file(path: str | os.PathLike[str]) -> Split:
    """Read the few shots, "train" and "val", that cross_modal_adaptation publishes as JSON.

    Two labels that share a class name (ImageNet has two "sunglasses") are told apart by their
    number: "sunglasses (836)".
    """

    def fields(row: Any) -> Any:
        return [row.get(key) for key in ("impath", "label", "classname")]

    file = Path(path)
    content = read_json(file, "index file", limit=MAX_SPLIT_FILE)
    parts = _parts(file, content, INDEX_PARTS, lambda part: part["data"], fields)
    names = _names_by_number(file, parts)
    times = Counter(names)
    distinct = [
        f"{name} ({number})" if times[name] > 1 else name for number, name in enumerate(names)
    ]
    return _split(parts, distinct)


def write_split_file(split: Split, path: str | os.PathLike[str]) -> None:
    """Write a split in the form that `read_split_file` reads; the same split, the same bytes."""
    if set(split.parts) != set(SPLIT_PARTS):
        raise DataError(
            f"A split file has the parts {', '.join(SPLIT_PARTS)}; got {', '.join(split.parts)}."
        )
    number_of = {name: number for number, name in enumerate(split.class_names)}
    content = {}
    for part in SPLIT_PARTS:
        names, labels = split.parts[part].names, split.parts[part].labels
        if unknown := set(labels) - set(number_of):
            raise DataError(f"The label {shown(min(unknown))} is not among the class names.")
        content[part] = [
            [name, number_of[label], label] for name, label in zip(names, labels, strict=True)
        ]
    write_atomic(Path(path), json.dumps(content).encode())


def _parts(
    file: Path,
    content: Any,
    expected: tuple[str, ...],
    rows_of: Callable[[Any], Any],
    fields: Callable[[Any], Any],
) -> dict[str, list[Row]]:
    """The rows of every part, checked one by one; a path may come once in all parts."""
    if not isinstance(content, dict) or set(content) != set(expected):
        raise DataError(f"{file} must hold one object with the parts {', '.join(expected)}.")
    part_of: dict[str, str] = {}
    parts: dict[str, list[Row]] = {}
    for part in expected:
        try:
            parts[part] = [_row(fields(row)) for row in rows_of(content[part])]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DataError(
                f"The part {part!r} of {file} must be a list of images, each with a path, a label "
                "number and a class name."
            ) from None
        for name, _, _ in parts[part]:
            if name in part_of:
                raise DataError(
                    f"{file} has {shown(name)} twice: in {part_of[name]!r} and in {part!r}."
                )
            part_of[name] = part
    return parts


def _row(values: Any) -> Row:
    name, number, class_name = values
    if not (isinstance(name, str) and name and isinstance(class_name, str) and class_name.strip()):
        raise ValueError("path and class name are text")
    if type(number) is not int:
        raise ValueError("a label is a whole number")
    return name, number, class_name


def _names_by_number(file: Path, parts: Mapping[str, list[Row]]) -> list[str]:
    """The class name of each label number."""
    names: dict[int, str] = {}
    for _, number, name in (row for rows in parts.values() for row in rows):
        if names.setdefault(number, name) != name:
            raise DataError(
                f"{file} has two class names for the label {number}: "
                f"{shown(names[number])} and {shown(name)}."
            )
    if not names or set(names) != set(range(len(names))):
        raise DataError(f"The labels of {file} must run from 0 to the last without gaps.")
    return [names[number] for number in range(len(names))]


def _split(parts: Mapping[str, list[Row]], names: Sequence[str]) -> Split:
    return Split(
        tuple(names),
        {
            part: Part(tuple(row[0] for row in rows), tuple(names[row[1]] for row in rows))
            for part, rows in parts.items()
        },
    )


def _whole(name: str, value: Any, *, least: int) -> None:
    good = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not good or value < least:
        bound = "above zero" if least == 1 else f"of {least} or more"
        raise DataError(f"{name} must be a whole number {bound}, got {shown(value)}.")
