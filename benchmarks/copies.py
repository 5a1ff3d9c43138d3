"""Planted copies of photos, as they stand in faulty data: which of them `gpcache check` finds.

Writes a section of docs/results/photos.md. `imagehash` must be installed: `pip install imagehash`.
"""

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


def _saved_again(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=60)
    return Image.open(stream).convert("RGB")


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "original": lambda image: image,
    "resized": lambda image: ImageOps.scale(image, 0.7, Image.Resampling.LANCZOS),
    "cropped": lambda image: ImageOps.crop(image, tuple(round(0.04 * one) for one in image.size)),
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
    for name, plain in photo_sets().items():
        known, n = _pairs(plain.features, plain.pictures), len(plain.labels)  # copies in the data
        hashes = _bits([plain.pictures, plain.pictures[:, :, ::-1]])
        apart = (hashes[:, :, None] != hashes[:1]).sum(-1).min(0)  # (n, n)
        for one, other in (*known, *zip(*np.tril_indices(n), strict=True)):
            apart[one, other] = hashes.shape[-1]
        bits = int(apart.min()) - 1  # one less than the closest different photos
        for change in list(CHANGES)[1:]:
            copies = photo_sets(change)[name]
            features = np.concatenate([plain.features, copies.features])
            pictures = np.concatenate([plain.pictures, copies.pictures])
            cells: list[object] = []
            for given in (pictures, None):
                pairs = _pairs(features, given)
                planted = sum((row + n, row) in pairs for row in range(n))
                same = {(one % n, other % n) for one, other in pairs}
                false = {pair for pair in same if pair[0] < pair[1]} - known
                cells += [f"{100 * planted / n:.1f}", len(false)]
            near = (hashes != _bits([copies.pictures])).sum(-1).min(0) <= bits
            yield [name, f"{n} {change}", *cells, f"{100 * np.mean(near):.1f}", bits]


def _pairs(
    features: NDArray[np.float32], pictures: NDArray[np.uint8] | None
) -> set[tuple[int, int]]:
    """Pairs of rows that are found to be copies, both ways."""
    examples = [Example(str(row), "", str(row)) for row in range(len(features))]
    unit, kept = unit_rows(torch.as_tensor(features).double()), pictures
    rows = LabelledRows(unit, examples, range(len(examples)), kept if kept is None else list(kept))
    found = {(copy.row, copy.other) for copy in find_copies(rows)}
    return found | {(other, one) for one, other in found}


def _bits(kinds: list[NDArray[np.uint8]]) -> NDArray[np.bool_]:
    """The perceptual hashes (kinds, n, 64) of pictures."""
    images = ([Image.fromarray(np.ascontiguousarray(one)) for one in kind] for kind in kinds)
    return np.array([[imagehash.phash(one).hash.ravel() for one in kind] for kind in images])


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
