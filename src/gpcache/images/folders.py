"""Folders of images: one folder a class, or a flat one without labels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpcache.errors import DataError
from gpcache.images.records import (
    HOW_TO_FOLLOW,
    ClassNames,
    Record,
    Refused,
    Source,
    listed,
    plural,
    readable,
)

# Suffixes of files that people keep beside images. An unknown suffix is tried as an image.
_SUFFIXES = """
.txt .md .rst .json .jsonl .csv .tsv .xml .yaml .yml .toml .ini .cfg .log .html .htm .css .js .py
.pyc .ipynb .sh .bat .pdf .doc .docx .xls .xlsx .ppt .pptx .odt .ods .zip .tar .gz .tgz .bz2 .xz
.7z .rar .parquet .arrow .npy .npz .pt .pth .safetensors .h5 .hdf5 .mat .db .sqlite .dat .bin .mp3
.wav .ogg .flac .mp4 .m4v .mov .avi .mkv .webm .lnk .url .bak .tmp
"""
NO_IMAGES = frozenset(_SUFFIXES.split())
JUNK = frozenset(("thumbs.db", "desktop.ini", "__macosx"))


@dataclass
class _Walk:
    """The state of one search below `root`: what was skipped, and the links that were followed."""

    root: Path
    follow: bool
    refused: list[Refused] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    linked: set[Path] = field(default_factory=set)
    classes: list[str] = field(default_factory=list)

    def _entries(self, folder: Path, prefix: str) -> Iterator[tuple[os.DirEntry[str], str]]:
        """The entries that may hold images, sorted, each with its name relative to the root."""
        try:
            with os.scandir(folder) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError as error:
            self._refuse(prefix.rstrip("/"), f"the folder cannot be read ({error.strerror})")
            return
        for entry in entries:
            name = prefix + readable(entry.name)
            if is_junk(entry.name, folder=os.path.isdir(entry.path)):
                self.skipped.append(name)
            else:
                yield entry, name

    def files(self) -> Iterator[tuple[str, Path]]:
        """Every file, at any depth, with its name; the folders in the root go to `classes`."""
        folders: list[tuple[Path, str, tuple[Path, ...]]] = [(self.root, "", (self.root,))]
        for folder, prefix, chain in folders:
            for entry, name in self._entries(folder, prefix):
                path = Path(entry.path)
                if reason := self._refusal(entry, chain):
                    self._refuse(name, reason)
                elif entry.is_dir():
                    self.classes += [] if prefix else [name]
                    folders.append((path, f"{name}/", (*chain, path.resolve())))
                elif entry.is_file():
                    yield name, path
                else:
                    self._refuse(name, "it is not a regular file")

    def _refusal(self, entry: os.DirEntry[str], chain: tuple[Path, ...]) -> str | None:
        """Why an entry is not read, or None: links must not leave the root or form a cycle.

        Every linked folder is read once, because links among many folders could repeat endlessly.
        """
        if not entry.is_symlink():
            return None
        try:
            target = Path(entry.path).resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: a link to itself, before Python 3.13
            return "it is a broken link"
        if not self.follow and not target.is_relative_to(self.root):
            return f"it is a link that leaves the folder ({HOW_TO_FOLLOW})"
        if target.is_dir():
            if target in chain or target in self.linked:
                return "it is a link to a folder that is read already"
            self.linked.add(target)
        return None

    def _refuse(self, name: str, reason: str) -> None:
        self.refused.append(Refused(name, reason))


def is_junk(name: str, *, folder: bool = False) -> bool:
    """Whether a file or folder is one that systems and people keep beside images."""
    folded = name.casefold()
    if name.startswith(".") or folded in JUNK:
        return True
    return not folder and os.path.splitext(folded)[1] in NO_IMAGES


def from_folder(path: str | Path, *, follow: bool = False, labelled: bool = True) -> Source:
    """The images below a folder; its subfolders are the classes, without any it is unlabelled.

    `follow` allows links that leave the folder. Files are named relative to it and not decoded.
    Where images are not `labelled`, subfolders mean nothing.
    """
    root = Path(path).resolve()
    if not root.is_dir():
        raise DataError(f"There is no folder {str(path)!r}.")
    walk = _Walk(root, follow)
    files = sorted(walk.files())
    source = Source(str(path), (), len(files), walk.refused)
    names = ClassNames(source.notices)
    labels = {name: names.add(name) for name in walk.classes if labelled}
    outside = [name for name, _ in files if "/" not in name]
    if labels and outside:
        raise DataError(
            f"{str(path)!r} holds class folders and, outside of them, {listed(outside)}: put every "
            "image into a class folder."
        )
    if not files:
        others = f" ({plural(len(walk.refused), 'file')} refused)" if walk.refused else ""
        others += f", which holds {listed(sorted(walk.skipped))}" if walk.skipped else ""
        raise DataError(
            f"There is no image in {str(path)!r}{others}: put images into it, or a folder of "
            "images for each class."
        )
    source.records = [Record(name, file, labels.get(name.split("/")[0])) for name, file in files]
    source.classes = names.sorted()
    if empty := sorted(set(source.classes) - {record.label for record in source.records}):
        noun = "A class" if len(empty) == 1 else f"{len(empty)} classes"
        source.notices.append(f"{noun} without images: {listed(empty)}.")
    if walk.skipped:
        source.notices.append(
            f"{plural(len(walk.skipped), 'file')} that cannot be an image skipped: "
            f"{listed(walk.skipped)}."
        )
    return source
