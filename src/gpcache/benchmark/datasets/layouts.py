"""How data sets lie on disk: published split files, Aircraft's lists, and folders of ImageNet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from gpcache.benchmark.datasets.catalogue import DatasetEntry
from gpcache.benchmark.datasets.dataset import Dataset, Split
from gpcache.benchmark.datasets.names import spoken_name, told_apart
from gpcache.encoders.lite import imagenet_classes
from gpcache.encoders.prompts import clean_class_name
from gpcache.errors import DataError
from gpcache.features.splits import read_split_file
from gpcache.images.folders import is_junk
from gpcache.images.records import listed, plural

CLASS_TABLE = "classnames.txt"
IMAGENET_CLASSES = 1000


def read_with_split_file(entry: DatasetEntry, folder: Path) -> Dataset:
    """A data set whose split file lists [path, label, class name] in train, val and test."""
    file = folder / entry.lists[0]
    published = read_split_file(file)
    number_of = {name: number for number, name in enumerate(published.class_names)}
    parts = {}
    for name, part in published.parts.items():
        labels = (number_of[label] for label in part.labels)
        parts[name] = Split.of(zip(part.names, labels, strict=True))
        check_paths(file, part.names)
    return _dataset(entry, folder, published.class_names, parts)


def read_variants(entry: DatasetEntry, folder: Path) -> Dataset:
    """Aircraft: variants.txt has the classes in order, a list a part has "image variant" lines."""
    variants = _lines(folder / entry.lists[0])
    number_of = {name: number for number, name in enumerate(variants)}
    place_of: dict[str, str] = {}
    parts = {}
    for part, name in zip(("train", "val", "test"), entry.lists[1:], strict=True):
        file = folder / name
        rows = []
        for number, line in enumerate(_lines(file), start=1):
            image, _, variant = line.partition(" ")
            if variant not in number_of:
                raise DataError(
                    f"Line {number} of {file} must be an image and a class of {entry.lists[0]}, "
                    f"got {line[:80]!r}."
                )
            if image in place_of:
                raise DataError(f"{file} lists {image!r}, which {place_of[image]} lists already.")
            place_of[image] = name
            rows.append((f"{image}.jpg", number_of[variant]))
        parts[part] = Split.of(rows)
        check_paths(file, parts[part].paths)
    return _dataset(entry, folder, variants, parts)


def read_imagenet(entry: DatasetEntry, folder: Path) -> Dataset:
    """ImageNet: train and val hold a folder a class, and val is the test set."""
    images = folder / entry.images
    wnids = class_folders(images / "train")
    class_names, names = _imagenet_names(folder, wnids)
    number_of = {wnid: number for number, wnid in enumerate(wnids)}
    parts = {"train": folder_split(images, "train/", number_of)}
    if foreign := set(class_folders(images / "val")) - set(wnids):
        raise DataError(
            f"{images / 'val'} has the class folder {min(foreign)!r}, which "
            f"{images / 'train'} has not."
        )
    parts["test"] = folder_split(images, "val/", number_of)
    return _dataset(entry, folder, names, parts, class_names)


def read_imagenet_sketch(entry: DatasetEntry, folder: Path) -> Dataset:
    """ImageNet-Sketch: a folder a class, named as ImageNet's are; test images only."""
    images = folder / entry.images
    wnids = class_folders(images)
    class_names, names = _imagenet_names(folder, wnids)
    number_of = {wnid: number for number, wnid in enumerate(wnids)}
    parts = {"test": folder_split(images, "", number_of)}
    return _dataset(entry, folder, names, parts, class_names)


def read_imagenetv2(entry: DatasetEntry, folder: Path) -> Dataset:
    """ImageNetV2: folders 0, 1, … stand for ImageNet's classes in their order; test images only."""
    images = folder / entry.images
    table = _class_table(folder)
    names = imagenet_classes() if table is None else list(table.values())
    number_of = {str(number): number for number in range(len(names))}
    for name in class_folders(images):
        if name not in number_of:
            raise DataError(
                f"{images} has the folder {name!r}: its folders are numbered from 0 to "
                f"{len(names) - 1}."
            )
    return _dataset(entry, folder, names, {"test": folder_split(images, "", number_of)})


READERS: Mapping[str, Callable[[DatasetEntry, Path], Dataset]] = {
    "split file": read_with_split_file,
    "variants": read_variants,
    "imagenet": read_imagenet,
    "imagenetv2": read_imagenetv2,
    "imagenet-sketch": read_imagenet_sketch,
}


def check_paths(file: Path, paths: Iterable[str]) -> None:
    """Refuse paths in a list that lead out of the folder of its images."""
    for path in paths:
        windows = PureWindowsPath(path)
        outside = ".." in windows.parts or windows.anchor or PurePosixPath(path).is_absolute()
        if outside or "\0" in path:
            raise DataError(f"{file} names {path[:80]!r}, which leaves the folder of its images.")


def check_images(dataset: Dataset, folder: Path) -> None:
    """Every image of every part must be there; each folder is listed once, no image is opened."""
    paths = [*dataset.train.paths, *dataset.test.paths]
    paths += dataset.validation.paths if dataset.validation else ()
    present: dict[str, set[str]] = {}
    missing = []
    for path in paths:
        parent, _, name = path.rpartition("/")
        if parent not in present:
            place = dataset.root / parent
            present[parent] = set(os.listdir(place)) if place.is_dir() else set()
        if name not in present[parent]:
            missing.append(path)
    if missing:
        first = dataset.root / missing[0]
        raise DataError(
            f"{plural(len(missing), 'image')} of {len(paths):,} that the lists in {folder} name "
            f"{'is' if len(missing) == 1 else 'are'} missing, the first is {first}."
        )


def class_folders(folder: Path) -> list[str]:
    """The names of the class folders in a folder, sorted."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if entry.is_dir() and not is_junk(entry.name, folder=True)
            )
    except OSError as error:
        raise DataError(f"The folder {folder} cannot be read: {error.strerror}.") from None
    if not names:
        raise DataError(f"{folder} must hold a folder of images for each class, it has none.")
    return names


def folder_split(root: Path, prefix: str, number_of: Mapping[str, int]) -> Split:
    """The images of root/prefix, a folder a class, by label and name."""
    rows = []
    for name, number in number_of.items():
        place = root / f"{prefix}{name}"
        if place.is_dir():
            with os.scandir(place) as entries:
                files = sorted(
                    entry.name for entry in entries if entry.is_file() and not is_junk(entry.name)
                )
            rows += [(f"{prefix}{name}/{file}", number) for file in files]
    return Split.of(rows)


def _dataset(
    entry: DatasetEntry,
    folder: Path,
    names: Iterable[str],
    parts: Mapping[str, Split],
    class_names: tuple[str, ...] | None = None,
) -> Dataset:
    """The data set of classes by their raw names; parts that are empty are no parts."""
    spoken = tuple(spoken_name(entry.name, name) for name in names)
    empty = Split.of(())
    if not len(parts["test"]):
        raise DataError(f"{entry.title} in {folder} has no test images.")
    return Dataset(
        entry.name,
        entry.title,
        folder / entry.images,
        class_names or told_apart(spoken),
        spoken,
        entry.templates,
        parts.get("train", empty),
        parts.get("val") or None,
        parts["test"],
    )


def _imagenet_names(folder: Path, wnids: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """The class names and the spoken names of ImageNet's classes by their WordNet numbers."""
    table = _class_table(folder)
    if table is None:
        if len(wnids) != IMAGENET_CLASSES:
            raise DataError(
                f"{folder} has {plural(len(wnids), 'class folder')}, which is not ImageNet's "
                f"{IMAGENET_CLASSES}: name them in {CLASS_TABLE}, a line 'n01440764 tench' each."
            )
        table = dict(zip(wnids, imagenet_classes(), strict=True))
    if unknown := [wnid for wnid in wnids if wnid not in table]:
        raise DataError(f"{folder / CLASS_TABLE} lacks the class folders {listed(unknown)}.")
    distinct = dict(zip(table, told_apart(list(table.values())), strict=True))
    return tuple(distinct[wnid] for wnid in wnids), [table[wnid] for wnid in wnids]


def _class_table(folder: Path) -> dict[str, str] | None:
    """WordNet number → name, sorted, from classnames.txt where there is one.

    A whole table gets the names that CLIP's authors cleaned, for copies of it differ.
    """
    file = folder / CLASS_TABLE
    if not file.exists():
        return None
    table: dict[str, str] = {}
    for number, line in enumerate(_lines(file), start=1):
        wnid, _, name = line.partition(" ")
        if not name.strip() or wnid in table:
            raise DataError(
                f"Line {number} of {file} must be another class, such as 'n01440764 tench', got "
                f"{line[:80]!r}."
            )
        table[wnid] = clean_class_name(name)
    if len(table) == IMAGENET_CLASSES:
        return dict(zip(sorted(table), imagenet_classes(), strict=True))
    return dict(sorted(table.items()))


def _lines(file: Path) -> list[str]:
    """The lines of a text file, without those that are empty at its end."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"The list {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(f"The list {file} is no UTF-8 text: it is damaged.") from None
    lines = [line.strip() for line in text.rstrip().split("\n")]
    if lines == [""]:
        raise DataError(f"The list {file} is empty.")
    return lines
