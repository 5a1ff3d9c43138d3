"""The layouts of published data sets: split files, Aircraft's lists, ImageNet's class folders."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from gpcache.benchmark.datasets.catalogue import DatasetEntry
from gpcache.benchmark.datasets.class_folders import PARTS, class_folders, list_images
from gpcache.benchmark.datasets.dataset import Dataset, Split, number_duplicates
from gpcache.encoders.lite import imagenet_classes
from gpcache.encoders.prompts import clean_class_name
from gpcache.errors import DataError
from gpcache.features.splits import read_split_file
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
        _check_paths(file, part.names)
    return _dataset(entry, folder, published.class_names, parts)


def read_variants(entry: DatasetEntry, folder: Path) -> Dataset:
    """Aircraft: variants.txt has the classes in order; lists have lines "image variant"."""
    variants = _lines(folder / entry.lists[0])
    number_of = {name: number for number, name in enumerate(variants)}
    list_of: dict[str, str] = {}
    parts = {}
    for part, name in zip(PARTS, entry.lists[1:], strict=True):
        file = folder / name
        rows = []
        for number, line in enumerate(_lines(file), start=1):
            image, _, variant = line.partition(" ")
            if variant not in number_of:
                raise DataError(
                    f"Line {number} of {file} must be an image and a class of {entry.lists[0]}, "
                    f"got {line[:80]!r}."
                )
            if image in list_of:
                raise DataError(f"{file} lists {image!r}, which {list_of[image]} lists already.")
            list_of[image] = name
            rows.append((f"{image}.jpg", number_of[variant]))
        parts[part] = Split.of(rows)
        _check_paths(file, parts[part].paths)
    return _dataset(entry, folder, variants, parts)


def read_wordnet_folders(entry: DatasetEntry, folder: Path) -> Dataset:
    """ImageNet and ImageNet-Sketch: a folder per class, named by its WordNet number.

    ImageNet has them below train and val, and val is the test set; Sketch has test images only.
    """
    images = folder / entry.images
    prefixes = {"train": "train/", "test": "val/"} if len(entry.parts) > 1 else {"test": ""}
    places = [images / prefix for prefix in prefixes.values()]
    wnids = class_folders(places[0])
    table = _names_by_wnid(folder, wnids)
    for place in places[1:]:
        if unknown := set(class_folders(place)) - set(wnids):
            raise DataError(
                f"{place} has the class folder {min(unknown)!r}, which {places[0]} does not have."
            )
    number_of = {wnid: number for number, wnid in enumerate(wnids)}
    parts = {part: list_images(images, prefix, number_of) for part, prefix in prefixes.items()}
    distinct = dict(zip(table, number_duplicates(list(table.values())), strict=True))
    class_names = tuple(distinct[wnid] for wnid in wnids)
    return _dataset(entry, folder, [table[wnid] for wnid in wnids], parts, class_names)


def read_numbered_folders(entry: DatasetEntry, folder: Path) -> Dataset:
    """ImageNetV2: folders 0, 1, … are ImageNet's classes in their order; test images only."""
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
    return _dataset(entry, folder, names, {"test": list_images(images, "", number_of)})


READERS: Mapping[str, Callable[[DatasetEntry, Path], Dataset]] = {
    "split file": read_with_split_file,
    "variants": read_variants,
    "WordNet folders": read_wordnet_folders,
    "numbered folders": read_numbered_folders,
}


def require_images(dataset: Dataset, folder: Path) -> None:
    """Check that every image of every part exists; each folder is listed once, none is opened."""
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


def _check_paths(file: Path, paths: Iterable[str]) -> None:
    """Raise an error for paths in a list that leave the folder of its images."""
    for path in paths:
        windows = PureWindowsPath(path)
        outside = ".." in windows.parts or windows.anchor or PurePosixPath(path).is_absolute()
        if outside or "\0" in path:
            raise DataError(f"{file} names {path[:80]!r}, which leaves the folder of its images.")


def spoken_name(entry: DatasetEntry, name: str) -> str:
    """The name of a class as prompts use it; a name that is clean already stays as it is.

    Split files hold cleaned names, except for underscores; folders and lists hold the owners' own.
    """
    name = entry.renamed.get(name, name)
    for pattern, replacement in entry.substitutions:
        name = re.sub(pattern, replacement, name)
    return clean_class_name(name.lower() if entry.lower_case else name)


def _dataset(
    entry: DatasetEntry,
    folder: Path,
    names: Iterable[str],
    parts: Mapping[str, Split],
    class_names: tuple[str, ...] | None = None,
) -> Dataset:
    """The data set of classes by their raw names; an empty validation part counts as none."""
    spoken = tuple(spoken_name(entry, name) for name in names)
    class_names = class_names or number_duplicates(spoken)
    train, validation, test = (parts.get(part, Split.of(())) for part in PARTS)
    if not len(test):
        raise DataError(f"{entry.title} in {folder} has no test images.")
    root = folder / entry.images
    return Dataset(
        entry.name, root, class_names, spoken, entry.templates, train, validation or None, test
    )


def _names_by_wnid(folder: Path, wnids: list[str]) -> dict[str, str]:
    """WordNet number → name; without a table the folders must be ImageNet's 1,000."""
    table = _class_table(folder)
    if table is None:
        if len(wnids) != IMAGENET_CLASSES:
            raise DataError(
                f"{folder} has {plural(len(wnids), 'class folder')}, which is not ImageNet's "
                f"{IMAGENET_CLASSES}: name them in {CLASS_TABLE}, a line 'n01440764 tench' each."
            )
        return dict(zip(wnids, imagenet_classes(), strict=True))
    if unknown := [wnid for wnid in wnids if wnid not in table]:
        raise DataError(f"{folder / CLASS_TABLE} lacks the class folders {listed(unknown)}.")
    return table


def _class_table(folder: Path) -> dict[str, str] | None:
    """WordNet number → name, sorted, from classnames.txt if it exists.

    A whole table gets the names that CLIP's authors cleaned, because copies of it differ.
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
    """The lines of a text file, without empty ones at its end."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"The list {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(f"The list {file} is not UTF-8 text: it is damaged.") from None
    if not text.strip():
        raise DataError(f"The list {file} is empty.")
    return [line.strip() for line in text.rstrip().split("\n")]
