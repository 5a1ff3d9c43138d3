"""Planted copies of photos, as they stand in faulty data: which of them `gpcache check` finds.

Writes a section of docs/results/photos.md. `imagehash` must be installed: `pip install imagehash`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import imagehash
import numpy as np
import torch
from development_data import CHOOSING, REPORTING, folder, task_of
from numpy.typing import NDArray
from pages import table, text, write_page
from PIL import Image, ImageOps

from gpcache import load_encoder
from gpcache.gp.kernels import unit_rows
from gpcache.model.audit.copies import find_copies
from gpcache.model.audit.findings import LabelledRows
from gpcache.model.audit.fingerprints import fingerprint
from gpcache.model.training_images import Example

SETS = ("caltech20", "trash6")
BATCH = 32


def _resized(image: Image.Image) -> Image.Image:
    size = (max(1, round(0.7 * image.width)), max(1, round(0.7 * image.height)))
    return image.resize(size, Image.Resampling.LANCZOS)


def _cropped(image: Image.Image) -> Image.Image:
    width, height = image.size
    box = (0.04 * width, 0.04 * height, 0.96 * width, 0.96 * height)
    return image.crop(tuple(map(round, box)))


def _saved_again(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=60)
    return Image.open(stream).convert("RGB")


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "original": lambda image: image,
    "resized": _resized,
    "cropped": _cropped,
    "mirrored": ImageOps.mirror,
    "JPEG, quality 60": _saved_again,
}


class PhotoSet(NamedTuple):
    """Features (n, d) and labels of photos, and small pictures of them."""

    features: NDArray[np.float32]
    labels: NDArray[np.str_]
    pictures: NDArray[np.uint8]


@cache
def photo_sets(change: str = "original") -> dict[str, PhotoSet]:
    """The training photos of each set, changed, through `lite`."""
    encoder, found = load_encoder("lite", device="cpu"), {}
    for name in SETS:
        files = sorted((folder("images") / name / "train").glob("*/*.jpg"))
        rows, pictures = [], []
        for first in range(0, len(files), BATCH):
            images = [Image.open(file).convert("RGB") for file in files[first : first + BATCH]]
            pixels = [encoder.preprocess.pixels(CHANGES[change](image)) for image in images]
            rows.append(encoder.encode_pixels(np.stack(pixels)))
            pictures += [fingerprint(one) for one in pixels]
        labels = np.array([file.parent.name for file in files])
        found[name] = PhotoSet(np.concatenate(rows), labels, np.stack(pictures))
    return found


def copy_rows() -> Iterator[list[object]]:
    """The rows of the table: each set and change, who found how many copies, and false pairs."""
    yield ["photos", "copies", "found %", "false", "by features %", "false", "imagehash %", "bits"]
    for name in SETS:
        plain = photo_sets()[name]
        known = _pairs(plain.features, plain.pictures)  # copies in the data set itself
        bits, hashes = _largest_safe_distance(plain.pictures, known)
        for change in list(CHANGES)[1:]:
            copies = photo_sets(change)[name]
            n = len(plain.labels)
            features = np.concatenate([plain.features, copies.features])
            pictures = np.concatenate([plain.pictures, copies.pictures])
            cells: list[object] = []
            for given in (pictures, None):
                pairs = _pairs(features, given)
                planted = sum((row + n, row) in pairs for row in range(n))
                same = {(one % n, other % n) for one, other in pairs}
                false = {pair for pair in same if pair[0] != pair[1]} - _both_ways(known)
                cells += [f"{100 * planted / n:.1f}", len(false)]
            near = [
                min(one - other for one in ours) <= bits
                for ours, other in zip(hashes, map(_hash, copies.pictures), strict=True)
            ]
            yield [name, f"{n} {change}", *cells, f"{100 * np.mean(near):.1f}", bits]


def _pairs(
    features: NDArray[np.float32], pictures: NDArray[np.uint8] | None
) -> set[tuple[int, int]]:
    names = [str(row) for row in range(len(features))]
    rows = LabelledRows(
        unit_rows(torch.as_tensor(features).double()),
        [Example(name, "", name) for name in names],
        range(len(names)),
        None if pictures is None else list(pictures),
    )
    return {(copy.row, copy.other) for copy in find_copies(rows)}


def _both_ways(pairs: set[tuple[int, int]]) -> set[tuple[int, int]]:
    return pairs | {(other, one) for one, other in pairs}


def _hash(picture: NDArray[np.uint8]) -> imagehash.ImageHash:
    return imagehash.phash(Image.fromarray(picture))


def _largest_safe_distance(
    pictures: NDArray[np.uint8], known: set[tuple[int, int]]
) -> tuple[int, list[list[imagehash.ImageHash]]]:
    """One bit less than the closest different photos, and the hashes, plain and mirrored."""
    hashes = [[_hash(one), _hash(np.ascontiguousarray(one[:, ::-1]))] for one in pictures]
    bits = np.array([[one.hash.ravel() for one in pair] for pair in hashes])  # (n, 2, 64)
    first, second = np.triu_indices(len(bits), 1)
    apart = (bits[first] != bits[second, :1]).sum(-1).min(1)
    both = _both_ways(known)
    real = [(i, j) not in both for i, j in zip(first.tolist(), second.tolist(), strict=True)]
    return int(apart[real].min()) - 1, hashes


def distances() -> Iterator[list[object]]:
    """For each set: the closest images of two classes, and how many rows have a near-duplicate."""
    sets = {name: (one.features, one.labels) for name, one in photo_sets().items()}
    for name in CHOOSING + REPORTING:
        task = task_of(name)
        sets[name] = task.X_test, task.y_test
    yield ["set", "rows", "median distance", "closest of two classes", "rows with a near-duplicate"]
    for name, (X, y) in sets.items():
        rows = unit_rows(torch.as_tensor(X)).numpy()
        apart = 1 - rows @ rows.T
        median = np.median(apart)
        np.fill_diagonal(apart, np.inf)
        other_class = np.where(y[:, None] == y, np.inf, apart).min() / median
        near = int((apart.min(1) < 0.05 * median).sum())
        yield [name, len(y), f"{median:.3f}", f"{other_class:.3f}", near]


if __name__ == "__main__":
    parts = (text("copies"), table(copy_rows()), text("copies-distances"), table(distances()))
    write_page("copies", "Near copies", *parts)
