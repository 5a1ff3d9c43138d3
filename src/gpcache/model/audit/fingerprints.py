"""Small grey pictures that separate copies, also mirrored or cropped ones, from different photos.

A perceptual hash of 64 bits (`imagehash`) finds resized, mirrored and recompressed copies as well,
but a crop of 4 % moves up to 24 of its bits, and different photos are as near as 8. So the picture
itself is kept, and two are compared after the best of a few crops: this needs no further package.
"""

from __future__ import annotations

import io
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gpcache.gp.kernels import unit_rows

SIDE = 32
# Pixels a side that are compared.
COMPARED = 16
# The shares of a side that a crop may keep; it may lie at either end or in the middle.
CROPS = (0.96, 0.92, 0.88)
PLACES = (0.0, 0.5, 1.0)
# Pairs at once: 60 MB of crops.
CHUNK = 1024


Picture = NDArray[np.uint8]


def fingerprint(pixels: Picture) -> Picture:
    """The grey picture (32, 32) of an image (height, width, 3)."""
    return _grey(Image.fromarray(pixels))


def fingerprint_of(thumbnail: bytes) -> Picture:
    """The grey picture (32, 32) of a thumbnail of ours; without one, of a single colour."""
    if not thumbnail:
        return np.zeros((SIDE, SIDE), dtype=np.uint8)
    with Image.open(io.BytesIO(thumbnail)) as image:
        return _grey(image)


def _grey(image: Image.Image) -> Picture:
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def picture_distances(pictures: Tensor, pairs: Tensor) -> Tensor:
    """How far apart the pictures (n, 32, 32) of each pair (p, 2) are: 0 alike, 1 unrelated.

    One minus the highest correlation of one picture, mirrored or not, with a crop of the other.
    """
    distances = [torch.zeros(0)]
    for chunk in torch.split(pairs, CHUNK):
        sides = [_cropped(pictures[rows].float()) for rows in chunk.unbind(1)]
        best = torch.full((len(chunk),), -1.0)
        for crops, other_crops in (sides, sides[::-1]):
            whole = other_crops[:, 0]
            for view in (whole, whole.flip(-1)):
                score = _standard(crops) @ _standard(view)[..., None]
                best = torch.maximum(best, score[..., 0].amax(1))
        distances.append(1 - best)
    return torch.cat(distances)


def _cropped(pictures: Tensor) -> Tensor:
    """The pictures (n, 32, 32) whole, then each crop of them: (n, crops, 16, 16)."""
    rows, columns = _windows()
    return rows @ pictures[:, None] @ columns.mT


def _standard(pictures: Tensor) -> Tensor:
    """Rows with mean zero and length one; a picture of one colour becomes zero."""
    rows = pictures.flatten(-2)
    return unit_rows(rows - rows.mean(-1, keepdim=True))


@cache
def _windows() -> tuple[Tensor, Tensor]:
    """The averages (crops, 16, 32) over rows and columns that make each crop."""
    places = [(1.0, 0.0, 0.0)]
    places += [(share, down, right) for share in CROPS for down in PLACES for right in PLACES]
    return (
        torch.stack([_window(share, down) for share, down, _ in places]),
        torch.stack([_window(share, right) for share, _, right in places]),
    )


def _window(share: float, place: float) -> Tensor:
    """Weights (16, 32) of the pixels in each of 16 equal parts of a share of a side."""
    edges = SIDE * (place * (1 - share) + share * torch.linspace(0, 1, COMPARED + 1))
    pixel = torch.arange(SIDE)
    inside = torch.minimum(edges[1:, None], pixel + 1) - torch.maximum(edges[:-1, None], pixel)
    weights = inside.clamp_min(0)
    return weights / weights.sum(1, keepdim=True)
