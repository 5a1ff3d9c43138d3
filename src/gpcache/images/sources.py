"""Where images come from: a folder, a manifest, tar shards, or Python objects → records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

from gpcache.errors import DataError
from gpcache.images.folders import from_folder, is_junk
from gpcache.images.manifests import from_manifest
from gpcache.images.records import IMAGE_SUFFIXES, Content, Record, Source, listed
from gpcache.images.shards import from_webdataset

MANIFESTS = (".csv", ".tsv", ".parquet")
SHARDS = (".tar", ".tar.gz", ".tgz")
ARCHIVES = (".zip", ".7z", ".rar", ".gz", ".bz2", ".xz", ".zst")


def open_source(path: str | Path, *, follow: bool = False) -> Source:
    """The images of a folder, a .csv, .tsv or .parquet manifest, a .tar shard or a folder of them.

    `follow` allows links and paths that leave the folder.
    """
    place = Path(path)
    name = place.name.lower()
    if place.is_dir():
        shards = _shards(place)
        return from_webdataset(shards) if shards else from_folder(path, follow=follow)
    if not place.exists():
        raise DataError(f"There is no file or folder {str(path)!r}.")
    if name.endswith(MANIFESTS):
        return from_manifest(path, follow=follow)
    if name.endswith(SHARDS):
        return from_webdataset(path)
    if name.endswith(ARCHIVES):
        raise DataError(f"{str(path)!r} is an archive: unpack it and give the folder.")
    raise DataError(
        f"{str(path)!r} is neither a folder, nor a manifest (.csv, .tsv, .parquet), "
        "nor a shard (.tar)."
    )


def any_source(images: str | Path | Source | Iterable[Any]) -> Source:
    """A source from whatever was given: one, a path of images or of one image, or an iterable."""
    if isinstance(images, Source):
        return images
    if not isinstance(images, str | Path):
        return from_iterable(images)
    place = Path(images)
    listing = place.name.lower().endswith((*MANIFESTS, *SHARDS, *ARCHIVES))
    if (place.is_file() and not listing) or place.suffix.lower() in IMAGE_SUFFIXES:
        return Source(str(images), [Record(str(images), place)], 1)
    return open_source(place)


def _shards(folder: Path) -> list[Path]:
    """The shards of a folder that holds nothing but shards and junk."""
    shards = []
    for entry in sorted(folder.iterdir()):
        if entry.name.lower().endswith(SHARDS) and entry.is_file():
            shards.append(entry)
        elif not is_junk(entry.name, folder=entry.is_dir()):
            return []
    return shards


def from_iterable(items: Iterable[Any], name: str = "iterable") -> Source:
    """Images, or pairs (image, label), taken one at a time; labels become text as they are.

    An image is a path, bytes, a Pillow image or an array.
    """
    if isinstance(items, str | bytes | Path):
        raise DataError("from_iterable needs a list of images; put a single one in a list.")
    return Source(name, _from_items(items), len(items) if isinstance(items, Sized) else None)


def _from_items(items: Iterable[Any]) -> Iterator[Record]:
    for number, item in enumerate(items):
        content, label = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        yield _record(number, content, None if label is None else str(label))


def _record(number: int, content: Any, label: str | None, split: str | None = None) -> Record:
    if isinstance(content, str | Path):
        path = Path(content)
        return Record(path.as_posix(), path, label, split)
    return Record(f"item {number:07d}", content, label, split)


def from_datasets(
    dataset: Any, image: str = "image", label: str = "label", split: str | None = None
) -> Source:
    """The rows of a dataset of the `datasets` library; `split` picks one of a DatasetDict.

    `image` and `label` name its columns; a ClassLabel column gives its names. Without a column
    `label` the images are unlabelled.
    """
    if isinstance(dataset, Mapping):
        if split not in dataset:
            raise DataError(f"split must be one of {listed(list(dataset), 10)}, got {split!r}.")
        dataset = dataset[split]
    features = getattr(dataset, "features", None) or {}
    if features and image not in features:
        raise DataError(
            f"The dataset has no column {image!r}, but {listed(list(features), 10)}: "
            "name the one with the images, as in image='photo'."
        )
    kind = features.get(label)
    return Source(
        "dataset" if split is None else f"dataset {split}",
        _from_rows(dataset, image, label, split, getattr(kind, "int2str", None)),
        len(dataset) if isinstance(dataset, Sized) else None,
        classes=sorted(getattr(kind, "names", None) or []),
    )


def _from_rows(
    rows: Iterable[Mapping[str, Any]], image: str, label: str, split: str | None, name_of: Any
) -> Iterator[Record]:
    for number, row in enumerate(rows):
        if image not in row:
            raise DataError(f"Row {number} of the dataset has no column {image!r}.")
        value = row.get(label)
        # Datasets mark a hidden label of a ClassLabel column with −1.
        if value is not None and name_of is not None:
            value = None if value == -1 else name_of(value)
        text = None if value is None else str(value)
        yield _record(number, _content(row[image], number), text, split)


def _content(value: Any, number: int) -> Content | str:
    """An image column that is not decoded holds {"bytes": …, "path": …}."""
    found: Content | str | None = value
    if isinstance(value, Mapping):
        found = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if found is None:
        raise DataError(f"Row {number} of the dataset has an image without bytes or path.")
    return found
