"""Images in memory, as arrays or tensors → arrays (h, w, c) of whole numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpcache.errors import ImageRefusedError
from gpcache.support.checks import to_numpy

_CHANNELS = (1, 3, 4)
# Tolerance for rounding in float32.
_ROUNDING = 1e-4

KINDS = "a path, bytes, a Pillow image, a numpy array (h, w, 3) or a torch tensor (3, h, w)"


def pixels_in_memory(image: Any) -> NDArray[Any]:
    """Pixels (h, w) or (h, w, c), uint8 or uint16, of an array or tensor.

    Numpy arrays have their channels last, torch tensors first; both hold uint8, uint16, or floats
    from 0 to 1. Everything else raises ImageRefusedError.
    """
    array: NDArray[Any] = to_numpy(image)
    if not isinstance(array, np.ndarray):
        raise ImageRefusedError(f"it must be {KINDS}, got {described(image)}")
    order = "(h, w, c)"
    if not isinstance(image, np.ndarray):
        order = "(c, h, w)"
        array = np.moveaxis(array, 0, -1) if array.ndim == 3 else array
    coloured = array.ndim == 3 and array.shape[2] in _CHANNELS
    if 0 in array.shape or not (coloured or array.ndim == 2):
        raise ImageRefusedError(
            f"it must be (h, w) or {order} with 1, 3 or 4 channels, got a {described(image)}"
        )
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
            raise ImageRefusedError(
                "its floats must go from 0 to 1, so undo any normalisation, got "
                f"{low:.3g} to {high:.3g} in a {described(image)}"
            )
        pixels: NDArray[np.uint8] = np.rint(255 * array.clip(0, 1)).astype(np.uint8)
        return pixels
    if array.dtype not in (np.uint8, np.uint16):
        raise ImageRefusedError(
            f"it must hold uint8 or uint16, or floats from 0 to 1, got a {described(image)}"
        )
    return array


def is_one_image(images: Any) -> bool:
    """Whether this is a single image, not a sequence of images."""
    if isinstance(images, str | Path | bytes | bytearray | memoryview | Image.Image):
        return True
    shape = getattr(images, "shape", ())
    return len(shape) == 3 and shape[-1 if isinstance(images, np.ndarray) else 0] in _CHANNELS


def described(value: Any) -> str:
    """A value's type for an error; of an array or tensor the dtype and shape, too."""
    array = to_numpy(value)
    if not isinstance(array, np.ndarray):
        return type(value).__name__
    kind = "numpy array" if isinstance(value, np.ndarray) else "torch tensor"
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{kind} of {dtype} with shape {tuple(value.shape)}"
