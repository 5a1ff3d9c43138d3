"""The arrays of a saved model: which dimensions they share, and which values they may hold."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import DataError

# The dimensions of saved arrays: n shots, c classes, d features, w of them mapped, t text vectors,
# v views, l landmarks.
DIMENSIONS = {
    "text": "td",
    "trained_text": "cd",
    "features": "nd",
    "labels": "n",
    "views": "nvd",
    "keys": "nw",
    "map_mean": "d",
    "map_matrix": "dw",
    "coefficients": "nc",
    "belief_weights": "n",
    "belief_labels": "n",
    "sample_weight": "n",
    "landmarks": "lw",
    "landmark_coefficients": "lc",
    "landmark_products": "ll",
    "variance_root": "ll",
    "class_counts": "m",
    "class_means": "md",
    "held_out_logits": "nc",
    "held_out_probabilities": "nc",
    "held_out_counted": "n",
    "held_out_labels": "n",
    "held_out_novelty": "n",
}
_WHOLE = ("labels", "belief_labels", "held_out_labels")


def check_arrays(settings: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse arrays of another shape or type than a fit writes, and NaN where none can be."""
    sizes = {"c": len(settings["classes"]), "d": settings["width"]}
    if "text" in settings:
        sizes["t"] = len(settings["text"]["classes"])
    if "map_matrix" not in arrays:
        sizes["w"] = sizes["d"]
    for name, array in arrays.items():
        dimensions = DIMENSIONS.get(name, "*" * array.ndim)
        fits = array.ndim == len(dimensions) and all(
            dimension == "*" or sizes.setdefault(dimension, size) == size
            for dimension, size in zip(dimensions, array.shape, strict=True)
        )
        if not fits:
            raise DataError(f"the array {name!r} has the shape {array.shape}")
        _check_values(name, array, sizes["c"])


def _check_values(name: str, array: NDArray[np.generic], n_classes: int) -> None:
    kind = "i" if name in _WHOLE else "b" if name == "held_out_counted" else "f"
    other = array.dtype.kind != kind and (name in DIMENSIONS or array.dtype.kind not in "fiub")
    if other or array.dtype == np.float16:
        raise DataError(f"the array {name!r} holds {array.dtype}")
    if name in _WHOLE and array.size:
        least = 0 if name == "labels" else -1
        if array.min() < least or array.max() >= n_classes:
            raise DataError(f"the array {name!r} holds class numbers that do not exist")
    # Rows that were not held out are NaN.
    if kind == "f" and not name.startswith("held_out_") and not np.isfinite(array).all():
        raise DataError(f"the array {name!r} holds NaN or inf")
