"""The places of images, which CALIP attends to: encoded once, and read from the disk as needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from gpcache.encoders import Encoder
from gpcache.methods.calip import image_and_places
from gpcache.support.files import make_folder, replacing, sha256
from gpcache.support.progress import progress_bar

# Images that are encoded together: fifty vectors an image are wide.
BLOCK = 64
# Half the space, and a unit vector to three digits.
DTYPE = np.float16


def stored_places(images: Sequence[Path], encoder: Encoder, folder: Path) -> NDArray[Any]:
    """What CALIP takes as X (n, 1 + positions, dim) of these images, from a file in `folder`.

    It is mapped into memory, not read: of a large test set it is gigabytes.
    """
    place = make_folder(folder) / f"{_identity(images)}.npy"
    # Several processes may ask for the same images at once: one encodes them.
    with FileLock(place.with_suffix(".lock")):
        if not place.exists():
            with replacing(place) as temporary:
                _write(temporary, images, encoder)
    places: NDArray[Any] = np.load(place, mmap_mode="c", allow_pickle=False)
    return places


def _identity(images: Sequence[Path]) -> str:
    """A name for these files as they are now."""
    facts = [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in images]
    return sha256(repr(facts).encode())


def _write(place: Path, images: Sequence[Path], encoder: Encoder) -> None:
    target = None
    with progress_bar("places", total=len(images), unit="image") as bar:
        for start in range(0, len(images), BLOCK):
            block = image_and_places(encoder, images[start : start + BLOCK])
            if target is None:
                shape = (len(images), *block.shape[1:])
                target = np.lib.format.open_memmap(place, mode="w+", dtype=DTYPE, shape=shape)
            target[start : start + len(block)] = block
            bar.update(len(block))
    if target is not None:
        target.flush()
