"""Lists images in class folders, and opens a user's own data sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpcache.benchmark.datasets.dataset import Dataset, Split, number_duplicates
from gpcache.encoders.prompts import PLAIN_TEMPLATES, clean_class_name
from gpcache.errors import DataError
from gpcache.features.splits import draw_shots
from gpcache.images.folders import from_folder, is_junk

PARTS = ("train", "val", "test")
# How a class without published parts is divided: as the community divided Caltech101 and others.
TRAIN_SHARE, VALIDATION_SHARE = 0.5, 0.2


def class_folders(folder: Path) -> list[str]:
    """The names of the class folders in a folder, sorted."""
    try:
        with os.scandir(folder) as entries:
            folders = [entry.name for entry in entries if entry.is_dir()]
    except OSError as error:
        raise DataError(f"The folder {folder} cannot be read: {error.strerror}.") from None
    names = sorted(name for name in folders if not is_junk(name, folder=True))
    if not names:
        raise DataError(f"{folder} must hold a folder of images for each class, it has none.")
    return names


def list_images(root: Path, prefix: str, number_of: Mapping[str, int]) -> Split:
    """The images in the class folders root/prefix/CLASS, by label and name."""
    rows = []
    for name, number in number_of.items():
        place = root / f"{prefix}{name}"
        if place.is_dir():
            with os.scandir(place) as entries:
                files = sorted(entry.name for entry in entries if entry.is_file())
            rows += [(f"{prefix}{name}/{file}", number) for file in files if not is_junk(file)]
    return Split.of(rows)


def load_class_folders(path: str | Path) -> Dataset:
    """A user's own data set: class folders, or class folders below train, test and perhaps val.

    Without these parts each class is divided by a fixed draw: half of it for training, a fifth for
    validation, the rest for testing. Class names are those of the folders, cleaned.
    """
    folder = Path(path).resolve()
    names = set(class_folders(folder))
    if {"train", "test"} <= names <= set(PARTS):
        rows = {part: _labelled(folder, f"{part}/") for part in PARTS if part in names}
    else:
        rows = _divided(_labelled(folder, ""), folder)
    labels = sorted({label for part in rows.values() for _, label in part})
    number_of = {label: number for number, label in enumerate(labels)}
    train, validation, test = (
        Split.of((name, number_of[label]) for name, label in rows.get(part, ())) for part in PARTS
    )
    spoken = tuple(clean_class_name(label) for label in labels)
    class_names = number_duplicates(spoken)
    return Dataset(
        folder.name, folder, class_names, spoken, PLAIN_TEMPLATES, train, validation or None, test
    )


def _labelled(folder: Path, prefix: str) -> list[tuple[str, str]]:
    """Name and label of every image in the class folders of folder/prefix."""
    source = from_folder(folder / prefix)
    if source.refused:
        refused = source.refused[0]
        raise DataError(f"{folder / prefix / refused.name} cannot be read: {refused.reason}.")
    if not source.classes:
        raise DataError(f"{folder / prefix} must hold a folder of images for each class.")
    return [(f"{prefix}{record.name}", str(record.label)) for record in source.records]


def _divided(rows: list[tuple[str, str]], folder: Path) -> dict[str, list[tuple[str, str]]]:
    """The rows of each class in three parts, in their order; each class needs test images."""
    names, labels = zip(*rows, strict=True)
    by_class: dict[str, list[int]] = {}
    for row in draw_shots(labels, names, len(rows)).indices.tolist():
        by_class.setdefault(labels[row], []).append(row)
    part_of: dict[int, str] = {}
    for label, places in by_class.items():
        if len(places) < 2:
            raise DataError(
                f"The class {label!r} in {folder} has one image: add another one, or use "
                "folders train and test."
            )
        first = round(len(places) * TRAIN_SHARE)
        second = first + int(len(places) * VALIDATION_SHARE)
        for position, row in enumerate(places):
            part_of[row] = PARTS[(position >= first) + (position >= second)]
    return {
        part: [row for place, row in enumerate(rows) if part_of[place] == part] for part in PARTS
    }
