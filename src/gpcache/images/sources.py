"""Where images come from: a folder, a manifest, tar shards, or Python objects → records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpcache.errors import DataError
from gpcache.images.adapters import from_datasets, from_iterable
from gpcache.images.folders import from_folder, is_junk
from gpcache.images.manifests import from_manifest
from gpcache.images.records import IMAGE_SUFFIXES, Record, Refused, Source
from gpcache.images.shards import from_webdataset

__all__ = [
    "Record",
    "Refused",
    "Source",
    "any_source",
    "from_datasets",
    "from_folder",
    "from_iterable",
    "from_manifest",
    "from_webdataset",
    "open_source",
]

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
