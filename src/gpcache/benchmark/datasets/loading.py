"""Loads a data set by name or from a class folder, and says which of the paper's are on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpcache.benchmark.datasets.catalogue import Counts, DatasetEntry, catalogue
from gpcache.benchmark.datasets.dataset import Dataset, Split
from gpcache.benchmark.datasets.layouts import READERS, check_images, class_folders
from gpcache.benchmark.datasets.names import told_apart
from gpcache.encoders.prompts import DEFAULT_TEMPLATES, clean_class_name
from gpcache.errors import DataError
from gpcache.features.splits import draw_shots
from gpcache.images.folders import from_folder
from gpcache.images.records import Record

PARTS = ("train", "val", "test")
# How a class without published parts is divided: as the community divided Caltech101 and others.
TRAIN_SHARE, VALIDATION_SHARE = 0.5, 0.2


@dataclass(frozen=True)
class DatasetStatus:
    """Whether a data set is on disk.

    "incomplete" cannot be loaded, "different" can, but its counts are not the `known` ones;
    `problem` says what is wrong in a sentence. `absent` are those of the `expected` paths that are
    not there.
    """

    entry: DatasetEntry
    state: Literal["found", "missing", "incomplete", "different"]
    expected: tuple[Path, ...]
    absent: tuple[Path, ...]
    counts: Counts | None
    problem: str

    @property
    def known(self) -> Counts:
        """What a whole copy counts."""
        return self.entry.known


def load_dataset(name: str, root: str | Path) -> Dataset:
    """A data set of the catalogue from its folder below `root`; no image is decoded.

    What is missing or damaged is a DataError that names the file.
    """
    known = catalogue()
    if name not in known:
        raise DataError(f"There is no data set {name!r}: use {', '.join(known)}.")
    entry = known[name]
    folder = Path(root) / entry.folder
    if not folder.is_dir():
        raise DataError(f"{entry.title} is not there: {folder} is missing. {_advice(entry)}")
    dataset = READERS[entry.layout](entry, folder)
    if entry.lists:  # what was found by listing folders is there
        check_images(dataset, folder)
    return dataset


def check_datasets(root: str | Path) -> list[DatasetStatus]:
    """The state of every data set of the catalogue below `root`."""
    place = Path(root)
    if not place.is_dir():
        raise DataError(f"There is no folder {str(root)!r}.")
    return [_status(entry, place) for entry in catalogue().values()]


def load_folder(path: str | Path) -> Dataset:
    """A data set of one's own: class folders, or class folders below train, test and perhaps val.

    Without these parts each class is divided by a fixed draw: half of it trains, a fifth is for
    validation, the rest for testing. Class names are those of the folders, cleaned.
    """
    folder = Path(path).resolve()
    names = set(class_folders(folder))
    given = {"train", "test"} <= names <= set(PARTS)
    if given:
        rows = {part: _labelled(folder, f"{part}/") for part in PARTS if part in names}
    else:
        rows = _divided(_labelled(folder, ""), folder)
    labels = sorted({label for part in rows.values() for _, label in part})
    number_of = {label: number for number, label in enumerate(labels)}
    splits = {
        part: Split.of((name, number_of[label]) for name, label in pairs)
        for part, pairs in rows.items()
    }
    spoken = tuple(clean_class_name(label) for label in labels)
    return Dataset(
        folder.name,
        folder.name,
        folder,
        told_apart(spoken),
        spoken,
        DEFAULT_TEMPLATES,
        splits["train"],
        splits.get("val") or None,
        splits["test"],
    )


def _status(entry: DatasetEntry, root: Path) -> DatasetStatus:
    expected = tuple(root / path for path in entry.expected)
    absent = tuple(path for path in expected if not path.exists())
    if not (root / entry.folder).is_dir():
        problem = f"{root / entry.folder} is missing."
        return DatasetStatus(entry, "missing", expected, absent, None, problem)
    try:
        counts = _counts(load_dataset(entry.name, root))
    except DataError as error:
        return DatasetStatus(entry, "incomplete", expected, absent, None, str(error))
    if counts != entry.known:
        differing = [
            f"{found:,} {field} instead of {known:,}"
            for field, found, known in zip(Counts._fields, counts, entry.known, strict=True)
            if found != known
        ]
        problem = f"{root / entry.folder} is not as published: {', '.join(differing)}."
        return DatasetStatus(entry, "different", expected, absent, counts, problem)
    return DatasetStatus(entry, "found", expected, absent, counts, "")


def _counts(dataset: Dataset) -> Counts:
    validation = len(dataset.validation) if dataset.validation else 0
    return Counts(len(dataset.class_names), len(dataset.train), validation, len(dataset.test))


def _advice(entry: DatasetEntry) -> str:
    return f"Expected: {', '.join(entry.expected)}. Published at: {entry.published}."


def _labelled(folder: Path, prefix: str) -> list[tuple[str, str]]:
    """Name and label of every image in the class folders of folder/prefix."""
    source = from_folder(folder / prefix)
    if source.refused:
        refused = source.refused[0]
        raise DataError(f"{folder / prefix / refused.name} cannot be read: {refused.reason}.")
    records: list[Record] = list(source.records)
    if not source.classes:
        raise DataError(f"{folder / prefix} must hold a folder of images for each class.")
    return [(f"{prefix}{record.name}", str(record.label)) for record in records]


def _divided(rows: list[tuple[str, str]], folder: Path) -> dict[str, list[tuple[str, str]]]:
    """The rows of each class in three parts, in their order; no class may lack one for testing."""
    names, labels = zip(*rows, strict=True)
    order = draw_shots(labels, names, len(rows)).indices.tolist()
    by_class: dict[str, list[int]] = {}
    for row in order:
        by_class.setdefault(labels[row], []).append(row)
    part_of: dict[int, str] = {}
    for label, places in by_class.items():
        if len(places) < 2:
            raise DataError(
                f"The class {label!r} in {folder} has one image: to measure, it needs another, or "
                "folders train and test."
            )
        first = round(len(places) * TRAIN_SHARE)
        second = first + int(len(places) * VALIDATION_SHARE)
        for position, row in enumerate(places):
            part_of[row] = PARTS[(position >= first) + (position >= second)]
    return {
        part: [row for place, row in enumerate(rows) if part_of[place] == part] for part in PARTS
    }
