"""Resizes, crops and normalises, bit for bit like CLIP's torchvision pipeline."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    import torch

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

# A line of 1 × 5,000 pixels would grow to a gigabyte; of more than this only the crop is computed.
_MAX_SCALED = 50_000_000
# More pixels on each side than any filter uses when it enlarges.
_MARGIN = 4


@dataclass(frozen=True)
class Preprocess:
    """The preprocessing of an encoder: from an RGB image to its input.

    `pixels` resizes and crops bytes, and `normalised` converts whole batches to floats, so only a
    quarter of the memory is copied between processes and to a GPU.

    `fit="crop"` resizes the short side to `resize` (default: `size`) and cuts the centre out;
    `fit="squash"` resizes both sides and ignores the aspect ratio.
    """

    size: int = 224
    resize: int | None = None
    fit: Literal["crop", "squash"] = "crop"
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bicubic"
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """The resized and cropped image as bytes (size, size, 3)."""
        if self.fit == "squash":
            return self.resized(image, (self.size, self.size))
        short = self.resize or self.size
        # The long side is cut down to a whole pixel, as torchvision does it.
        width, height = (int(short * side / min(image.size)) for side in image.size)
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        if width * height > _MAX_SCALED:
            return self._crop_alone(image, (width, height), left, top)
        scaled = image.resize((width, height), self._filter)
        crop = scaled.crop((left, top, left + self.size, top + self.size))
        return np.asarray(crop, dtype=np.uint8)

    @property
    def _filter(self) -> Image.Resampling:
        return Image.Resampling[self.interpolation.upper()]

    def resized(
        self,
        image: Image.Image,
        size: tuple[int, int],
        box: tuple[float, float, float, float] | None = None,
    ) -> NDArray[np.uint8]:
        """`image`, or only its `box`, resized to `size` (width, height), as bytes."""
        return np.asarray(image.resize(size, self._filter, box=box), dtype=np.uint8)

    def _crop_alone(
        self, image: Image.Image, scaled: tuple[int, int], left: int, top: int
    ) -> NDArray[np.uint8]:
        """The crop at (left, top) of the `scaled` image, without computing the whole image."""
        across, down = image.width / scaled[0], image.height / scaled[1]
        start = (left * across, top * down)
        end = (
            min((left + self.size) * across, image.width),
            min((top + self.size) * down, image.height),
        )
        # Pillow keeps a box in single precision: near zero that is enough.
        x, y = (max(int(at) - _MARGIN, 0) for at in start)
        right, bottom = (int(at) + _MARGIN for at in end)
        near = image.crop((x, y, min(right, image.width), min(bottom, image.height)))
        box = (start[0] - x, start[1] - y, end[0] - x, end[1] - y)
        return self.resized(near, (self.size, self.size), box)

    def normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """Bytes (b, size, size, 3) as floats (b, 3, size, size), on the device they are on."""
        values = pixels.permute(0, 3, 1, 2).float() / 255
        mean = values.new_tensor(self.mean)[:, None, None]
        std = values.new_tensor(self.std)[:, None, None]
        return (values - mean) / std

    def normalised_array(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """What `normalised` gives, bit by bit, as an array."""
        values = pixels.transpose(0, 3, 1, 2).astype(np.float32, order="C") / np.float32(255)
        mean, std = (np.array(part, np.float32)[:, None, None] for part in (self.mean, self.std))
        return (values - mean) / std

    def describe(self) -> dict[str, Any]:
        """A description for a fingerprint: equal descriptions give equal inputs."""
        return asdict(self) | {"resize": self.resize or self.size}
