"""Protocols: which rows a method may choose its numbers on. Rows of two are never compared."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import ProtocolError
from gpcache.features.splits import draw_shots
from gpcache.support.files import sha256

FULL_VALIDATION = "full validation"
SMALL_VALIDATION = "min(k,4) validation"
NO_VALIDATION = "no validation"
LEGACY = "legacy"
PROTOCOLS = (FULL_VALIDATION, SMALL_VALIDATION, NO_VALIDATION, LEGACY)

# What a data set without validation images (ImageNet) takes from its training images instead.
SPARE_SHOTS = 4
LEGACY_DATASETS = ("imagenet",)


class Labelled(NamedTuple):
    """Features (n, d), class names (n,) and, where there are any, the files of the images (n,)."""

    features: NDArray[np.float32]
    labels: NDArray[Any]
    images: NDArray[Any] | None = None

    def at(self, rows: Any) -> Labelled:
        """Some of the rows."""
        images = None if self.images is None else self.images[rows]
        return Labelled(self.features[rows], self.labels[rows], images)


def digest(*parts: Labelled | None) -> str:
    """The hash of rows to their last number: files of the same names may hold other images."""
    found = (
        "" if part is None else sha256(part.features.tobytes()) + "\n".join(map(str, part.labels))
        for part in parts
    )
    return sha256("\n\n".join(found).encode())


def check_legacy(dataset: str) -> None:
    """Refuse to choose on test rows anywhere but where the published numbers did."""
    if dataset not in LEGACY_DATASETS:
        raise ProtocolError(
            f"The protocol {LEGACY!r} chooses on test images, as published numbers of "
            f"{LEGACY_DATASETS[0]!r} do, and is refused on {dataset!r}: use {FULL_VALIDATION!r} or "
            f"{NO_VALIDATION!r}."
        )


def rows_to_choose_on(
    protocol: str,
    *,
    dataset: str,
    shots: int,
    seed: int,
    validation: Labelled | None,
    test: Labelled,
) -> Labelled | None:
    """The rows that a protocol lets a method choose on; None where it is the shots alone.

    `validation` are the data set's own validation rows, or training rows that are not shots.
    """
    if protocol == NO_VALIDATION:
        return None
    if protocol == LEGACY:
        check_legacy(dataset)
        return test
    if validation is None:
        raise ProtocolError(
            f"{dataset!r} has no validation rows for the protocol {protocol!r}: use "
            f"{NO_VALIDATION!r}."
        )
    if protocol == FULL_VALIDATION:
        return validation
    # Rows have no names any more; their order is that of the data set and never changes.
    count = min(shots, SPARE_SHOTS)
    labels = validation.labels.tolist()
    drawn = draw_shots(labels, range(len(labels)), count, seed).indices
    return validation.at(drawn)
