"""Turns a path, bytes, a Pillow image, an array or a tensor into RGB under a policy, or refuses."""

from __future__ import annotations

import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from gpcache.errors import ImageRefusedError, MissingExtraError
from gpcache.images.integrity import (
    check_file,
    check_items,
    check_length,
    notes_of,
    stream_of,
)
from gpcache.support.checks import first_line, to_numpy
from gpcache.support.extras import require

# Warning filters are global: only one thread at a time may change them.
_WARNING_FILTERS = threading.Lock()

_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}

# EXIF orientation → the operation that turns the image upright.
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_BITS_TAG, _PHOTOMETRIC_TAG = 258, 262

# Arrays and tensors.
_CHANNELS = (1, 3, 4)
# Tolerance for rounding in float32.
_ROUNDING = 1e-4

KINDS = "a path, bytes, a Pillow image, a numpy array (h, w, 3) or a torch tensor (3, h, w)"


@dataclass(frozen=True)
class Policy:
    """Limits on images, which are checked before any pixel is decoded."""

    max_bytes: int = 20_000_000
    max_pixels: int = 50_000_000
    max_side: int = 16_384
    small_side: int = 32
    # In Pillow's order: formats that it always loads come first.
    formats: tuple[str, ...] = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "AVIF")


POLICY = Policy()


@dataclass(frozen=True)
class Decoded:
    """An upright RGB image, and notes for the user about how it was read."""

    image: Image.Image
    notes: tuple[str, ...] = ()


def decode(source: Any, policy: Policy = POLICY) -> Decoded:
    """Decode a path, bytes, a Pillow image, a numpy array (h, w, c) or a torch tensor (c, h, w).

    Both hold uint8, uint16, or floats from 0 to 1. Transparency is composited on white, EXIF
    orientation applied, 16 bits are scaled to 8 (Pillow's mode "I" holds 16-bit values), and of an
    animation or a multi-page file the first image is taken. Everything else raises
    ImageRefusedError.
    """
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else "The image"
    try:
        return _decode(source, policy)
    except ImageRefusedError as error:
        reason = error.reason
    except MissingExtraError as error:
        reason = str(error).rstrip(".")
    except MemoryError:
        reason = "there is not enough memory to decode it"
    except Exception as error:  # Pillow's decoders raise nearly every kind there is
        reason = f"it cannot be decoded ({first_line(error)[:100].rstrip('.')})"
    raise ImageRefusedError(reason, name=str(name))


def _decode(source: Any, policy: Policy) -> Decoded:
    if isinstance(source, str | os.PathLike):
        source = read_file(Path(source), policy)
    if isinstance(source, bytes | bytearray | memoryview):
        image, notes = _open(bytes(source), policy)
    elif isinstance(source, Image.Image):
        image, notes = source, []
    else:
        image, notes = _from_array(_pixels_in_memory(source), policy), []
    _check_size(image.size, policy)
    image.load()
    with _warnings_as(notes):  # damaged EXIF data
        orientation = image.getexif().get(_ORIENTATION_TAG)
    image = _rgb(_upright(image, orientation))
    if min(image.size) < policy.small_side:
        notes.append(f"too small: {image.width} × {image.height} pixels")
    return Decoded(image, tuple(notes))


def read_file(path: Path, policy: Policy = POLICY) -> bytes:
    """The bytes of an image file; not a file, or too large a file, is refused without reading."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            reason = "it is a folder, not a file"
        elif not stat.S_ISREG(status.st_mode):
            reason = "it is not a regular file"
        elif status.st_size > policy.max_bytes:
            reason = _too_many_bytes(policy)
        else:
            with path.open("rb") as file:
                # One byte more than `decode` accepts, for a file that grows.
                return file.read(policy.max_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        reason = "there is no such file"
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = f"it cannot be read ({getattr(error, 'strerror', None) or error})"
    raise ImageRefusedError(reason, name=str(path))


def _open(content: bytes, policy: Policy) -> tuple[Image.Image, list[str]]:
    """The decoded image of a file, its size checked before, and notes."""
    if not content:
        raise ImageRefusedError("it is empty")
    if len(content) > policy.max_bytes:
        raise ImageRefusedError(_too_many_bytes(policy))
    if _is_heic(content):
        return _open_heic(content, policy)
    notes = list[str]()
    try:
        return _opened(content, policy, notes), notes
    except ImageRefusedError:
        raise
    except Image.DecompressionBombError:
        raise ImageRefusedError(_too_many_pixels(policy)) from None
    except (OSError, RuntimeError, SyntaxError, ValueError) as error:
        check_length(content)
        # Pillow only warns where it cannot read the tags of a TIFF, and then recognises no image.
        if any("truncated" in text.lower() for text in (*notes, str(error))):
            raise ImageRefusedError("it is truncated") from None
        if not isinstance(error, UnidentifiedImageError):
            raise
        known = ", ".join(policy.formats[:-1])
        raise ImageRefusedError(f"it is not an image ({known} or {policy.formats[-1]})") from None


def _opened(content: bytes, policy: Policy, notes: list[str]) -> Image.Image:
    """The decoded image of a file; what is to be noted is added to `notes`."""
    stream = stream_of(content)
    with _warnings_as(notes):
        image = Image.open(stream, formats=policy.formats)
    _check_size(image.size, policy)
    check_file(content, image)
    # Counting the frames would parse the whole file; an MPO's other images are previews.
    if image.format != "MPO" and getattr(image, "is_animated", False):
        pages = image.format == "TIFF"
        kind, unit = ("a file of several pages", "page") if pages else ("an animation", "frame")
        notes.append(f"{kind}: only the first {unit} is used")
    image.load()
    notes += notes_of(stream)
    return image


@contextmanager
def _warnings_as(notes: list[str]) -> Iterator[None]:
    """Add the warnings of a decoder to the notes, also if it fails; the policy checks sizes."""
    with _WARNING_FILTERS, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            yield
        finally:
            lines = dict.fromkeys(" ".join(str(one.message).split())[:100] for one in caught)
            notes += [f"it may be damaged: {line.rstrip('.')}" for line in lines]


def _is_heic(content: bytes) -> bool:
    """Whether the brands of an ISO media file say HEIF; AVIF files carry such a brand too."""
    if content[4:8] != b"ftyp":
        return False
    length = min(int.from_bytes(content[:4], "big"), 256)
    brands = {content[at : at + 4] for at in (8, *range(16, length, 4))}
    return bool(brands & _HEIC_BRANDS) and not brands & _AVIF_BRANDS


def _open_heic(content: bytes, policy: Policy) -> tuple[Image.Image, list[str]]:
    # Its plug-in would change Pillow for the whole process.
    pillow_heif = require("pillow_heif", "heif", purpose="reading HEIC")
    try:
        file = pillow_heif.open_heif(content)
    except (OSError, RuntimeError, ValueError):
        check_length(content)
        raise
    _check_size(file.size, policy)
    check_items(content)
    image: Image.Image = file.to_pillow()
    notes = ["a file of several images: only the main one is used"] if len(file) > 1 else []
    return image, notes


def _from_array(array: NDArray[Any], policy: Policy) -> Image.Image:
    _check_size((array.shape[1], array.shape[0]), policy)
    values = array[..., 0] if array.shape[2:] == (1,) else array
    values = _sixteen_to_eight(values) if values.dtype == np.uint16 else values
    return Image.fromarray(np.ascontiguousarray(values))


def _check_size(size: tuple[int, int], policy: Policy) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageRefusedError("it has no pixels")
    if width * height > policy.max_pixels:
        raise ImageRefusedError(f"{_too_many_pixels(policy)}: {width} × {height}")
    if max(width, height) > policy.max_side:
        raise ImageRefusedError(
            f"a side is longer than {policy.max_side:,} pixels: {width} × {height}"
        )


def _too_many_bytes(policy: Policy) -> str:
    return f"it is larger than {policy.max_bytes / 1e6:g} MB"


def _too_many_pixels(policy: Policy) -> str:
    return f"it has more than {policy.max_pixels / 1e6:g} million pixels"


def _upright(image: Image.Image, orientation: Any) -> Image.Image:
    # Damaged EXIF data may give a number of any type, or none.
    method = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if method is None else image.transpose(method)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ImageRefusedError(
            "floating-point pixels have no agreed range, save it with 8 or 16 bits"
        )
    if image.mode.startswith("I"):
        return _from_sixteen_bits(image)
    if image.has_transparency_data:
        colours = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(colours, mask=colours)
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits (modes I;16, I;16B, I, …): Pillow's own conversion saturates it."""
    tags = getattr(image, "tag_v2", {})
    if tags.get(_BITS_TAG) == (12,) or tags.get(_PHOTOMETRIC_TAG) == 0:
        # Pillow decodes both, but does not report the different scale.
        raise ImageRefusedError("grey of 12 bits, or with zero as white, is not read")
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ImageRefusedError(
            f"its values ({values.min()} to {values.max()}) are beyond 16 bits, "
            "save it with 8 or 16 bits"
        )
    grey = _sixteen_to_eight(values)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey).convert("RGB")


def _sixteen_to_eight(values: NDArray[Any]) -> NDArray[np.uint8]:
    """0…65535 → 0…255, rounded to the nearest."""
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _pixels_in_memory(image: Any) -> NDArray[Any]:
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
