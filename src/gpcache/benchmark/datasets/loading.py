"""Opens a data set of a spec, and checks which data sets of the catalogue are on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gpcache.benchmark.datasets.catalogue import Counts, DatasetEntry, catalogue
from gpcache.benchmark.datasets.class_folders import load_class_folders
from gpcache.benchmark.datasets.dataset import Dataset
from gpcache.benchmark.datasets.encoding import encode_dataset
from gpcache.benchmark.datasets.published_layouts import READERS, require_images
from gpcache.benchmark.datasets.stored_features import open_features
from gpcache.benchmark.options import did_you_mean
from gpcache.benchmark.task import Task
from gpcache.encoders import Encoder
from gpcache.errors import DataError
from gpcache.features.manifest import NAME as STORE_MANIFEST

State = Literal["found", "missing", "incomplete", "different"]


@dataclass(frozen=True)
class DatasetStatus:
    """Whether a data set is on disk.

    "incomplete" cannot be loaded, "different" can, but its counts are not the known ones;
    `problem` says in a sentence what is wrong. `absent` are the `expected` paths that do not exist.
    """

    entry: DatasetEntry
    state: State
    problem: str
    expected: tuple[Path, ...]
    absent: tuple[Path, ...]
    counts: Counts | None

    def to_json(self) -> dict[str, object]:
        """The status as `gpcache benchmark datasets --json` prints it."""
        return {
            "name": self.entry.name,
            "title": self.entry.title,
            "state": self.state,
            "problem": self.problem,
            "expected": [str(path) for path in self.expected],
            "absent": [str(path) for path in self.absent],
            "counts": self.counts and self.counts._asdict(),
            "known": self.entry.known._asdict(),
            "published": self.entry.published,
        }

    def lines(self) -> list[str]:
        """The status as `gpcache benchmark datasets` prints it."""
        lines = [f"{self.state}: {self.problem}" if self.problem else self.state]
        if self.counts is not None:
            counts = self.counts._asdict().items()
            lines.append(", ".join(f"{count:,} {name}" for name, count in counts))
        if self.absent:
            lines.append(f"expected: {', '.join(map(str, self.absent))}")
        if self.state != "found":
            lines.append(f"published: {self.entry.published}")
        return lines


def load_dataset(name: str, root: str | Path) -> Dataset:
    """A data set of the catalogue from its folder below `root`; no image is decoded.

    A missing or damaged file raises a DataError with its name.
    """
    known = catalogue()
    if name not in known:
        raise DataError(f"There is no data set {name!r}: use {', '.join(known)}.")
    entry = known[name]
    folder = Path(root) / entry.folder
    if not folder.is_dir():
        raise DataError(
            f"{entry.title} is missing: there is no {folder}. Expected: "
            f"{', '.join(entry.expected)}. Published at: {entry.published}."
        )
    dataset = READERS[entry.layout](entry, folder)
    if entry.lists:  # images that were found by listing folders exist
        require_images(dataset, folder)
    return dataset


def check_datasets(root: str | Path) -> list[DatasetStatus]:
    """The state of every data set of the catalogue below `root`."""
    place = Path(root)
    if not place.is_dir():
        raise DataError(f"There is no folder {str(root)!r}.")
    return [_status(entry, place) for entry in catalogue().values()]


def _status(entry: DatasetEntry, root: Path) -> DatasetStatus:
    expected = tuple(root / path for path in entry.expected)
    absent = tuple(path for path in expected if not path.exists())
    folder = root / entry.folder

    def status(state: State, problem: str, counts: Counts | None) -> DatasetStatus:
        return DatasetStatus(entry, state, problem, expected, absent, counts)

    if not folder.is_dir():
        return status("missing", f"{folder} is missing.", None)
    try:
        counts = load_dataset(entry.name, root).counts
    except DataError as error:
        return status("incomplete", str(error), None)
    if counts == entry.known:
        return status("found", "", counts)
    pairs = zip(Counts._fields, counts, entry.known, strict=True)
    different = [f"{n:,} {name} instead of {known:,}" for name, n, known in pairs if n != known]
    return status("different", f"{folder} is not as published: {', '.join(different)}.", counts)


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
