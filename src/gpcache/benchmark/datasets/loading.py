"""Loads a data set of the catalogue, and checks which of them are on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpcache.benchmark.datasets.catalogue import Counts, DatasetEntry, catalogue
from gpcache.benchmark.datasets.dataset import Dataset
from gpcache.benchmark.datasets.published_layouts import READERS, require_images
from gpcache.errors import DataError


@dataclass(frozen=True)
class DatasetStatus:
    """Whether a data set is on disk.

    "incomplete" cannot be loaded, "different" can, but its counts are not the known ones;
    `problem` says in a sentence what is wrong. `absent` are the `expected` paths that do not exist.
    """

    entry: DatasetEntry
    state: Literal["found", "missing", "incomplete", "different"]
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
    state: Literal["found", "missing", "incomplete", "different"] = "found"
    problem, counts = "", None
    if not folder.is_dir():
        state, problem = "missing", f"{folder} is missing."
    else:
        try:
            counts = load_dataset(entry.name, root).counts
        except DataError as error:
            state, problem = "incomplete", str(error)
    if counts not in (None, entry.known):
        pairs = zip(Counts._fields, counts, entry.known, strict=True)
        different = [f"{n:,} {name} instead of {known:,}" for name, n, known in pairs if n != known]
        state, problem = "different", f"{folder} is not as published: {', '.join(different)}."
    return DatasetStatus(entry, state, problem, expected, absent, counts)
