"""Seeded random views of an image: a resized crop and a flip, the same in any order or process."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpcache.errors import DataError
from gpcache.images.preprocess import Preprocess
from gpcache.support.checks import whole

RATIO = (3 / 4, 4 / 3)
FLIP = 0.5
TRIES = 10

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Views:
    """`count` views: crops of `scale` (low, high) of the area, half of them mirrored.

    `average` says whether their features are averaged to one vector per image or all kept.
    """

    count: int = 10
    scale: tuple[float, float] = (0.5, 1.0)
    seed: int = 0
    average: bool = True

    def __post_init__(self) -> None:
        low, high = self.scale
        whole("count of Views", self.count, least=1)
        whole("seed of Views", self.seed, least=0)
        if not 0 < low <= high <= 1:
            raise DataError(
                f"scale of Views must be (low, high) with 0 < low ≤ high ≤ 1, got {self.scale}."
            )
        object.__setattr__(self, "scale", (float(low), float(high)))

    def pixels(
        self, image: Image.Image, preprocess: Preprocess, key: bytes | str
    ) -> NDArray[np.uint8]:
        """The views of an RGB image as bytes (count, size, size, 3).

        The draws depend only on the seed and on `key`, the hash of the image content.
        """
        side = preprocess.size
        views = np.empty((self.count, side, side, 3), dtype=np.uint8)
        for view, (box, mirrored) in zip(views, self.boxes(*image.size, key), strict=True):
            pixels = preprocess.resized(image.crop(box), (side, side))
            view[:] = pixels[:, ::-1] if mirrored else pixels
        return views

    def boxes(self, width: int, height: int, key: bytes | str) -> list[tuple[Box, bool]]:
        """The crops (left, top, right, bottom) that `pixels` cuts, and whether each is mirrored."""
        digest = hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()
        generator = np.random.Generator(np.random.PCG64([self.seed, *digest]))
        return [
            (self._box(generator, width, height), bool(generator.random() < FLIP))
            for _ in range(self.count)
        ]

    def describe(self) -> dict[str, Any]:
        """A description for a fingerprint: equal descriptions give equal views."""
        return asdict(self) | {"ratio": RATIO, "flip": FLIP, "tries": TRIES}

    def _box(self, generator: np.random.Generator, width: int, height: int) -> Box:
        """A crop as torchvision's RandomResizedCrop draws it; after ten failures the centre.

        Only `random()` is used: numpy may change how its other draws use the bits.
        """
        low, high = math.log(RATIO[0]), math.log(RATIO[1])
        for _ in range(TRIES):
            share = self.scale[0] + (self.scale[1] - self.scale[0]) * generator.random()
            ratio = math.exp(low + (high - low) * generator.random())
            area = share * width * height
            across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < across <= width and 0 < down <= height:
                left = int((width - across + 1) * generator.random())
                top = int((height - down + 1) * generator.random())
                return left, top, left + across, top + down
        return _centre(width, height)


def _centre(width: int, height: int) -> Box:
    """The largest centred crop whose aspect ratio is allowed."""
    across, down = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down
