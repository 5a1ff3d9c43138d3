"""Opens a data set of a spec: of the catalogue, class folders, or stored features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gpcache.benchmark.datasets.catalogue import catalogue
from gpcache.benchmark.datasets.class_folders import load_class_folders
from gpcache.benchmark.datasets.encoding import encode_dataset
from gpcache.benchmark.datasets.loading import load_dataset
from gpcache.benchmark.datasets.stored_features import open_features
from gpcache.benchmark.options import did_you_mean
from gpcache.benchmark.task import Task
from gpcache.encoders import Encoder
from gpcache.errors import DataError
from gpcache.features.manifest import NAME as STORE_MANIFEST


def check_reference(reference: str, where: str, *, folder: Path, root: Path | None) -> None:
    """Raise an error if this is neither a name of the catalogue nor an existing path."""
    names = catalogue()
    if reference not in names and _found(reference, folder, root) is None:
        raise DataError(
            f"{where} names {reference!r}{did_you_mean(reference, names)}, which is not a data "
            f"set: use {', '.join(names)}, or a path of class folders, a feature store or an .npz "
            "file."
        )


def open_task(
    reference: str,
    encoder: Callable[[], Encoder | None],
    *,
    folder: Path,
    root: Path | None,
    cache: Path,
    wanted: Sequence[tuple[int, int]],
) -> Task:
    """A data set of a spec: a name below `root`, or a path that starts from `folder` or `root`.

    Of images, the test and validation images and the `wanted` draws (shots, seed) are encoded, into
    stores below `cache`. `encoder` is called for images only.
    """
    if reference in catalogue():
        if root is None:
            raise DataError(
                f"{reference!r} is a data set on disk: give the folder above it with --root."
            )
        dataset = load_dataset(reference, root)
    elif (place := _found(reference, folder, root)) is None:
        raise DataError(f"{reference!r} does not exist any more.")
    elif ".npz" in place.name or place.is_file() or (place / STORE_MANIFEST).exists():
        return replace(open_features(place), reference=reference)
    else:
        dataset = load_class_folders(place)
    if (loaded := encoder()) is None:
        raise DataError(f"{dataset.name!r} has images: name an encoder in the spec's encoders.")
    return replace(encode_dataset(dataset, loaded, cache, wanted), reference=reference)


def _found(reference: str, folder: Path, root: Path | None) -> Path | None:
    places = [folder / Path(reference).expanduser(), *([] if root is None else [root / reference])]
    return next((place for place in places if _file_of(place).exists()), None)


def _file_of(place: Path) -> Path:
    """FILE.npz:text is a part of FILE.npz."""
    name, part, _ = place.name.partition(".npz:")
    return place.with_name(f"{name}.npz") if part else place
