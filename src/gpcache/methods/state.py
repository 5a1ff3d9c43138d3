"""Fitted methods as plain numbers and arrays, found again by the name of their method."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gpcache.errors import DataError, GPCacheError
from gpcache.methods.base import FeatureClassifier, State
from gpcache.methods.registry import find_method, name_of


def state_of(model: FeatureClassifier) -> State:
    """Return a fitted model as plain values and arrays, with the name of its method.

    Parameters
    ----------
    model : FeatureClassifier
        A fitted model of a registered method.

    Returns
    -------
    State
        What `restore` takes.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import state_of
    >>> state_of(GPCacheClassifier().fit(np.eye(2), ["a", "b"])).settings["method"]
    'gpcache'
    """
    name = name_of(model)
    settings, arrays = model.state()
    return State({"method": name, **settings}, arrays)


def restore(state: State, *, device: str | torch.device = "auto") -> FeatureClassifier:
    """Restore a fitted model.

    Parameters
    ----------
    state : State
        What `state_of` returned.
    device : str or torch.device, default="auto"
        Device of the restored model.

    Returns
    -------
    FeatureClassifier
        The fitted model.

    Raises
    ------
    DataError
        If the arrays do not fit together.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.methods import restore, state_of
    >>> model = GPCacheClassifier().fit(np.eye(2), ["a", "b"])
    >>> restore(state_of(model)).predict(np.eye(2)).tolist()
    ['a', 'b']
    """
    constructor = find_method(state.settings["method"]).constructor
    _check_arrays(state)
    try:
        model = constructor.from_state(state, device=device)
        if "spatial features" not in constructor.needs:
            model.logits(np.ones((1, state.settings["width"])))
        return model
    except GPCacheError:
        raise
    # Each method has arrays and settings of its own, which only their use can judge.
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
            ValueError) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:100]
        raise DataError(f"its parts do not fit together: {reason}") from None


# The dimensions of saved arrays: n shots, c classes, d features, w of them mapped, t text vectors,
# v views,
# l landmarks.
_DIMENSIONS = {
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
    "landmarks": "lw",
    "landmark_coefficients": "lc",
    "landmark_products": "ll",
    "variance_root": "ll",
    "class_counts": "c",
    "class_means": "cd",
    "held_out_logits": "nc",
    "held_out_probabilities": "nc",
    "held_out_counted": "n",
    "held_out_labels": "n",
    "held_out_novelty": "n",
}
_WHOLE = ("labels", "belief_labels", "held_out_labels")


def _check_arrays(state: State) -> None:
    """Refuse arrays of another shape or type than a fit writes, and NaN where none can be."""
    settings, arrays = state
    sizes = {"c": len(settings["classes"]), "d": settings["width"]}
    if "text" in settings:
        sizes["t"] = len(settings["text"]["classes"])
    if "map_matrix" not in arrays:
        sizes["w"] = sizes["d"]
    for name, array in arrays.items():
        dimensions = _DIMENSIONS.get(name, "*" * array.ndim)
        fits = array.ndim == len(dimensions) and all(
            dimension == "*" or sizes.setdefault(dimension, size) == size
            for dimension, size in zip(dimensions, array.shape, strict=True)
        )
        if not fits:
            raise DataError(f"the array {name!r} has the shape {array.shape}")
        _check_values(name, array, sizes["c"])


def _check_values(name: str, array: NDArray[np.generic], n_classes: int) -> None:
    kind = "i" if name in _WHOLE else "b" if name == "held_out_counted" else "f"
    if array.dtype.kind != kind and (name in _DIMENSIONS or array.dtype.kind not in "fiub"):
        raise DataError(f"the array {name!r} holds {array.dtype}")
    if name in _WHOLE and array.size:
        least = 0 if name == "labels" else -1
        if array.min() < least or array.max() >= n_classes:
            raise DataError(f"the array {name!r} holds numbers that are no class")
    # What was not held out is NaN.
    if kind == "f" and not name.startswith("held_out_") and not np.isfinite(array).all():
        raise DataError(f"the array {name!r} holds NaN or inf")
