"""Original images and their augmented views, matched: arrays, or two feature stores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.errors import DataError, StoreError
from gpcache.features.store import FeatureStore
from gpcache.gp.kernels import unit_rows
from gpcache.support.checks import number_array, require_directions


def paired_rows(original: Any, views: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Unit rows in float32: originals (p, d) and views (p, v, d); views (p, d) are one each."""
    image_rows, view_rows = _tensor("original", original, device), _tensor("views", views, device)
    if view_rows.ndim == 2:
        view_rows = view_rows[:, None]
    if image_rows.ndim != 2 or view_rows.ndim != 3 or 0 in view_rows.shape:
        raise DataError(
            "original must be of shape (images, columns) and views of (images, views, columns), "
            f"got {tuple(image_rows.shape)} and {tuple(view_rows.shape)}."
        )
    if (len(image_rows), image_rows.shape[1]) != (len(view_rows), view_rows.shape[2]):
        raise DataError(
            f"original holds {len(image_rows)} images of {image_rows.shape[1]} columns, views "
            f"{len(view_rows)} of {view_rows.shape[2]}: give the same images of one encoder."
        )
    return image_rows, view_rows


def _tensor(name: str, rows: Any, device: torch.device) -> Tensor:
    if not isinstance(rows, Tensor):
        rows = torch.from_numpy(number_array(name, rows))
    unit = unit_rows(rows.detach().to(device, torch.float32))
    require_directions(unit.norm(dim=-1), name)
    return unit


class PairedFeatures(NamedTuple):
    """Features (p, d) of different images and (p, v, d) of their views."""

    original: NDArray[np.float32]
    views: NDArray[np.float32]


def paired_features(
    original: FeatureStore, views: FeatureStore, *, split: str | None = None
) -> PairedFeatures:
    """The images of `original`, all or of one split, each content once, with their views."""
    _check_kinds(original, views)
    listed = [item.hash for item in original.items() if split is None or item.split == split]
    hashes = list(dict.fromkeys(listed))
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
    view_settings = theirs.views
    if view_settings is None or (view_settings["average"] and view_settings["count"] > 1):
        raise StoreError(
            f"{str(views.folder)!r} holds no single views: extract the images with "
            "--views 2 --keep-views."
        )
