"""Opens sources of images: a folder, a manifest, tar shards, or Python objects → records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

from gpcache.errors import DataError
from gpcache.images.decode import KINDS, described, is_one_image
from gpcache.images.folders import from_folder, is_junk
from gpcache.images.manifests import from_manifest
from gpcache.images.records import IMAGE_SUFFIXES, ClassNames, Record, Source, listed, readable
from gpcache.images.shards import from_webdataset
from gpcache.support.checks import label_array

MANIFESTS = (".csv", ".tsv", ".parquet")
SHARDS = (".tar", ".tar.gz", ".tgz")
ARCHIVES = (".zip", ".7z", ".rar", ".gz", ".bz2", ".xz", ".zst")


def open_source(path: str | Path, *, follow: bool = False, labelled: bool = True) -> Source:
    """The images of a folder, a .csv, .tsv or .parquet manifest, a .tar shard or a folder of them.

    `follow` allows links and paths that leave the folder. Where images are not `labelled`, the
    names of subfolders mean nothing.
    """
    place = Path(path)
    name = place.name.lower()
    if place.is_dir():
        shards = _shards(place)
        if shards:
            return from_webdataset(shards)
        return from_folder(path, follow=follow, labelled=labelled)
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


def any_source(
    images: str | Path | Source | Iterable[Any],
    labels: Any = None,
    *,
    labelled: bool = True,
    follow: bool = False,
) -> Source:
    """The source of any input: a path of images or of one image, a data set, a sequence.

    `labels` go with a sequence of images, one for each. Where images are not `labelled`, the names
    of subfolders mean nothing. `follow` allows links and paths that leave a folder.
    """
    is_dataset = hasattr(images, "features") and hasattr(images, "column_names")
    has_own_labels = is_dataset or isinstance(images, str | Path | Source | Mapping)
    if labels is not None and has_own_labels:
        raise DataError(
            "labels go with a sequence of images: a folder, a list or a data set brings its own, "
            "so leave labels out."
        )
    if isinstance(images, Source):
        return images
    if is_dataset or isinstance(images, Mapping):
        return from_datasets(images)
    if not isinstance(images, str | Path):
        return from_iterable(images, labels=labels)
    place = Path(images)
    listing = place.name.lower().endswith((*MANIFESTS, *SHARDS, *ARCHIVES))
    if (place.is_file() and not listing) or place.suffix.lower() in IMAGE_SUFFIXES:
        return Source(str(images), [Record(readable(str(images)), place)], 1)
    return open_source(place, labelled=labelled, follow=follow)


def _shards(folder: Path) -> list[Path]:
    """The shards of a folder that holds nothing but shards and junk."""
    shards = []
    for entry in sorted(folder.iterdir()):
        if entry.name.lower().endswith(SHARDS) and entry.is_file():
            shards.append(entry)
        elif not is_junk(entry.name, folder=entry.is_dir()):
            return []
    return shards


def from_iterable(items: Iterable[Any], name: str = "iterable", *, labels: Any = None) -> Source:
    """Images taken one at a time; their `labels`, or those of pairs (image, label), become text.

    Parameters
    ----------
    items : iterable, or a stacked array or tensor
        Paths, bytes, Pillow images, numpy arrays (height, width, 3), torch tensors
        (3, height, width), or pairs of one of these and a label.
    name : str, default="iterable"
        Name of the source.
    labels : sequence, optional
        One label for each image.

    Returns
    -------
    Source
        Images in memory are called item 0000000, item 0000001 and so on.

    Raises
    ------
    DataError
        If this is not a sequence of images, or there is not one label for each image.
    """
    if is_one_image(items):
        raise DataError(f"images is a single image ({described(items)}): put it in a list.")
    if not isinstance(items, Iterable) and not hasattr(items, "__getitem__"):
        raise DataError(
            f"images is of the type {described(items)}: give a list, each item {KINDS}."
        )
    total = len(items) if isinstance(items, Sized) else None
    if labels is not None:
        labels = label_array("labels", labels)
        if total is None:
            raise DataError("labels need a sequence of images: make a list of them.")
        if len(labels) != total:
            raise DataError(
                f"There are {total} images and {len(labels)} labels: give each image one label."
            )
        pairs: Iterable[tuple[Any, Any]] = zip(items, labels, strict=True)
    else:
        pairs = (pair if _is_pair(pair) else (pair, None) for pair in items)
    source = Source(name, (), total)
    source.records = _records(pairs, ClassNames(source.notices), "image")
    return source


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2


def _records(
    pairs: Iterable[tuple[Any, Any]], names: ClassNames, noun: str, split: str | None = None
) -> Iterator[Record]:
    """The records of images and their labels; `noun` is what an error calls an image."""
    for number, (image, given) in enumerate(pairs):
        label = names.label(given, f"{noun} {number}")
        if isinstance(image, str | Path):
            yield Record(readable(Path(image).as_posix()), Path(image), label, split)
        else:
            yield Record(f"item {number:07d}", image, label, split)


def from_datasets(
    dataset: Any, image: str | None = None, label: str | None = None, split: str | None = None
) -> Source:
    """The rows of a dataset of the `datasets` library; `split` picks one of a DatasetDict.

    `image` and `label` name its columns: by default those of these names, or else the only Image
    and the only ClassLabel column. Without a column of labels the images are unlabelled.
    """
    if isinstance(dataset, Mapping):
        if split is None:
            names = listed([str(name) for name in dataset], 10)
            raise DataError(f"images has the splits {names}: give one of them, as images[split].")
        if split not in dataset:
            raise DataError(f"split must be one of {listed(list(dataset), 10)}, got {split!r}.")
        dataset = dataset[split]
    features = getattr(dataset, "features", None) or {}
    kinds = {name: type(kind).__name__ for name, kind in features.items()}
    image = image or _column(kinds, "image", "Image")
    label = label or _column(kinds, "label", "ClassLabel")
    if features and image not in features:
        raise DataError(
            f"The dataset has no column {image!r}, but {listed(list(features), 10)}: "
            "name the one with the images, as in image='photo'."
        )
    kind = features.get(label)
    source = Source(
        "dataset" if split is None else f"dataset {split}",
        (),
        len(dataset) if isinstance(dataset, Sized) else None,
    )
    known = ClassNames(source.notices)
    source.classes = sorted({known.add(name) for name in getattr(kind, "names", None) or []})
    name_of = getattr(kind, "int2str", None)
    source.records = _records(_pairs(dataset, image, label, name_of), known, "row", split)
    return source


def _column(kinds: Mapping[str, str], name: str, kind: str) -> str:
    """The column `name`, or the only one of this kind if there is no such column."""
    columns = [column for column, other in kinds.items() if other == kind]
    return columns[0] if name not in kinds and len(columns) == 1 else name


def _pairs(
    rows: Iterable[Mapping[str, Any]], image: str, label: str, name_of: Any
) -> Iterator[tuple[Any, Any]]:
    """The image and the label of every row of a dataset."""
    for number, row in enumerate(rows):
        if image not in row:
            raise DataError(f"Row {number} of the dataset has no column {image!r}.")
        content = row[image]
        value: Any = row.get(label)
        # A column that is not decoded holds {"bytes": …, "path": …}.
        if isinstance(content, Mapping):
            held = content.get("bytes")
            content = content.get("path") if held is None else held
        if content is None:
            raise DataError(f"Row {number} of the dataset has an image without bytes or path.")
        # Datasets mark a hidden label of a ClassLabel column with −1.
        value = value.item() if hasattr(value, "item") else value
        if value is not None and name_of is not None:
            value = None if value == -1 else name_of(value)
        yield content, value
