"""Two feature stores of the same images, the originals and their views, matched by content."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import StoreError
from gpcache.features.store import FeatureStore


class PairedFeatures(NamedTuple):
    """Features (p, d) of different images and (p, v, d) of their views."""

    original: NDArray[np.float32]
    views: NDArray[np.float32]


def paired_features(
    original: FeatureStore, views: FeatureStore, *, split: str | None = None
) -> PairedFeatures:
    """The images of `original`, all or of one split, each content once, with their views."""
    _check_kinds(original, views)
    found = [item.hash for item in original.items() if split is None or item.split == split]
    hashes = list(dict.fromkeys(found))
    if not hashes:
        wanted = "" if split is None else f" of the split {split!r}"
        raise StoreError(f"The store {str(original.folder)!r} holds no images{wanted}.")
    missing = len(set(hashes) - views.hashes())
    if missing:
        raise StoreError(
            f"{str(views.folder)!r} lacks the views of {missing:,} of the {len(hashes):,} images "
            f"in {str(original.folder)!r}: extract the same images into both."
        )
    rows = views.vectors(hashes)
    return PairedFeatures(original.vectors(hashes), rows[:, None] if rows.ndim == 2 else rows)


def _check_kinds(original: FeatureStore, views: FeatureStore) -> None:
    ours, theirs = original.manifest, views.manifest
    if ours.fingerprint != theirs.fingerprint:
        raise StoreError(
            f"{str(original.folder)!r} was made by the encoder {ours.encoder!r} (fingerprint "
            f"{ours.fingerprint[:12]}) and {str(views.folder)!r} by {theirs.encoder!r} "
            f"({theirs.fingerprint[:12]}): their features do not mix."
        )
    if ours.views is not None:
        raise StoreError(
            f"{str(original.folder)!r} holds random views: extract the original images without "
            "--views."
        )
    kept = theirs.views
    if kept is None or (kept["average"] and kept["count"] > 1):
        raise StoreError(
            f"{str(views.folder)!r} holds no single views: extract the images with "
            "--views 2 --keep-views."
        )
