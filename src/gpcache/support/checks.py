"""Reading what a user passed: arrays of any kind, numbers and options, or one clear sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.errors import DataError


def to_numpy(values: Any) -> Any:
    """A torch tensor of any device and dtype as an array; anything else as it is."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return values


def label_array(name: str, labels: Any) -> NDArray[Any]:
    """Labels (n,) as an array; a single label counts as one row."""
    array = np.atleast_1d(np.asarray(to_numpy(labels)))
    if array.ndim != 1:
        raise DataError(f"{name} needs one label per row, got labels of shape {array.shape}.")
    return array


def shown(value: Any) -> str:
    """A value as an error message can carry it: short, on one line, numpy's names left out."""
    value = value.item() if isinstance(value, np.generic) else value
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "…"


def is_auto(value: Any) -> bool:
    """Whether an option was left to be chosen; arrays and tensors are never that."""
    return isinstance(value, str) and value == "auto"


def same_kind(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Whether labels can stand beside each other: text with text, numbers with numbers."""
    return len({isinstance(label, str) for array in (first, second) for label in array}) < 2


def positive(
    name: str, value: Any, *, owner: object, allow_zero: bool = False, auto: bool = True
) -> float:
    """A finite number above zero (or not below)."""
    is_number = isinstance(value, int | float | np.integer | np.floating)
    good = is_number and not isinstance(value, bool) and np.isfinite(value)
    if not good or value < 0 or (value == 0 and not allow_zero):
        bound = ("'auto' or " if auto else "") + "a number "
        bound += "of zero or more" if allow_zero else "above zero"
        raise DataError(f"{name} of {type(owner).__name__} must be {bound}, got {shown(value)}.")
    return float(value)


def whole(name: str, value: Any, *, least: int) -> None:
    """Refuse what is not a whole number of at least so much."""
    good = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not good or value < least:
        bound = "above zero" if least == 1 else f"of {least} or more"
        raise DataError(f"{name} must be a whole number {bound}, got {shown(value)}.")


def one_of(name: str, value: Any, allowed: tuple[Any, ...], *, owner: object) -> None:
    """Refuse an option that does not exist, naming those that do."""
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise DataError(
            f"{name} of {type(owner).__name__} must be one of {choices}, got {shown(value)}."
        )
