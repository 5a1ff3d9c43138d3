"""Checks of user input: arrays, rows, numbers, options; each failure is one sentence."""

from __future__ import annotations

import sys
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpcache.errors import DataError
from gpcache.support.names import quoted, tidy_name

if TYPE_CHECKING:
    from torch import Tensor


def to_numpy(values: Any) -> Any:
    """Convert a torch tensor of any device and dtype to an array; return anything else as it is.

    Arrays come back in the byte order of this machine, and long doubles, which torch does not
    know, as float64. Masked arrays and lists of masked rows are refused.
    """
    rows = values if isinstance(values, list | tuple) else (values,)
    if any(isinstance(row, np.ma.MaskedArray) for row in rows):
        raise DataError(
            "A masked array has values that are missing: drop those rows, or fill them with "
            "array.filled(value)."
        )
    if isinstance(values, np.ndarray) and values.dtype.kind == "f" and values.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # what float64 cannot hold becomes inf
            return values.astype(np.float64)
    if isinstance(values, np.ndarray) and not values.dtype.isnative:
        return values.astype(values.dtype.newbyteorder("="))
    torch = sys.modules.get("torch")  # without torch there are no tensors
    if torch is not None and isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return values


def label_array(name: str, labels: Any) -> NDArray[Any]:
    """Labels (n,) as an array; a single label counts as one row. NaN and NaT are refused."""
    refuse_missing(name, labels, none=False)
    array = np.atleast_1d(np.asarray(to_numpy(labels)))
    if array.ndim != 1:
        raise DataError(f"{name} needs one label per row, got labels of shape {array.shape}.")
    return array


def refuse_missing(name: str, labels: Any, *, none: bool = True) -> None:
    """Refuse labels with NaN, NaT or pandas.NA, and with `none` also None.

    Numpy would turn NaN next to text into a class "nan".
    """
    array = to_numpy(labels)
    if not isinstance(array, np.ndarray):
        array = np.asarray(array, dtype=object)
    elif array.dtype.kind in "biuSU":
        return
    for row, label in enumerate(np.ravel(array)):
        if is_nan(label) or (none and label is None):
            missing = "NaN" if isinstance(label, float) else label
            raise DataError(
                f"{name} contains {missing} in row {row}, which is not a class: give it a label."
            )


def is_nan(label: Any) -> bool:
    """Whether a label is NaN, NaT or pandas.NA."""
    if label is None or isinstance(label, str | bytes | int):
        return False
    try:
        return bool(label != label)
    except (TypeError, ValueError):  # pandas.NA is neither true nor false
        return type(label).__name__ == "NAType"


def refuse_twins(names: Any) -> None:
    """Refuse class names that differ only in white space, or in how letters are composed."""
    known: dict[str, str] = {}
    for name in names:
        if isinstance(name, str) and (earlier := known.setdefault(tidy_name(name), name)) != name:
            # Letters that are composed in two ways look alike: only their code points differ.
            composed = earlier.split() != name.split()
            spelled = ascii if composed else shown
            one, other = spelled(str(earlier)), spelled(str(name))  # without numpy's type
            raise DataError(
                f"The class names {one} and {other} differ only in white space or in how letters "
                "are composed: give them one spelling."
            )


def same_kind(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Whether two sets of labels can be mixed: all are text, or all are numbers."""
    return len({isinstance(label, str) for array in (first, second) for label in array}) < 2


def shown(value: Any) -> str:
    """A value for an error message: short, on one line, without numpy's type names."""
    value = value.item() if isinstance(value, np.generic) else value
    text = quoted(value) if isinstance(value, str) else " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "…"


def first_line(error: Exception) -> str:
    """The first line of an error of a library, without the advice that follows."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# Rows.


def number_array(name: str, values: Any) -> NDArray[Any]:
    """An array or tensor of real numbers as an array; text and objects are refused."""
    array = np.asarray(to_numpy(values))
    if array.dtype.kind not in "fiu":
        raise DataError(f"{name} must be numbers, got an array of {array.dtype}.")
    return array


def require_directions(lengths: Tensor, name: str, first: int = 0) -> None:
    """Refuse rows whose `lengths` (n, …) are zero, NaN or inf; row 0 is called `first`."""
    bad = ~(lengths.isfinite() & (lengths > 0))
    if bool(bad.any()):
        row = first + int(bad.nonzero()[0, 0])
        raise DataError(f"Row {row} of {name} is all zeros or holds NaN or inf.")


# Numbers and options.


def is_auto(value: Any) -> bool:
    """Whether an option is "auto"; arrays and tensors never are."""
    return isinstance(value, str) and value == "auto"


def is_whole(value: Any) -> bool:
    """Whether a value is an integer; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite real number; True and False are not."""
    try:
        return (is_whole(value) or isinstance(value, float | np.floating)) and isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def positive(
    name: str, value: Any, *, owner: object = None, allow_zero: bool = False, auto: bool = True
) -> float:
    """A finite number above zero, or with `allow_zero` of zero or more."""
    if not is_number(value) or value < 0 or (value == 0 and not allow_zero):
        bound = "of zero or more" if allow_zero else "above zero"
        kind = "'auto' or a number" if auto and owner is not None else "a number"
        raise DataError(f"{name}{_of(owner)} must be {kind} {bound}, got {shown(value)}.")
    return float(value)


def whole(name: str, value: Any, *, least: int) -> int:
    """A whole number of `least` or more."""
    if not is_whole(value) or value < least:
        bound = "above zero" if least == 1 else f"of {least} or more"
        raise DataError(f"{name} must be a whole number {bound}, got {shown(value)}.")
    return int(value)


def share(name: str, value: float, *, closed: bool = False) -> None:
    """Refuse a number that is not between 0 and 1; `closed` includes both ends."""
    if not (0 <= value <= 1 if closed else 0 < value < 1):
        raise DataError(f"{name} must lie between 0 and 1, got {value!r}.")


def one_of(name: str, value: Any, allowed: tuple[Any, ...], *, owner: object = None) -> None:
    """Refuse an option that does not exist, and list the valid ones."""
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise DataError(f"{name}{_of(owner)} must be one of {choices}, got {shown(value)}.")


def _of(owner: object) -> str:
    return "" if owner is None else f" of {type(owner).__name__}"


def further_labels(name: str, y: ArrayLike, classes: NDArray[Any], count: int) -> NDArray[Any]:
    """Labels of `count` further rows; they must be of the same kind as the classes."""
    refuse_missing(name, y)
    labels = label_array(name, y)
    if len(labels) != count:
        raise DataError(f"{name} got {count} rows and {len(labels)} labels.")
    if not same_kind(labels, classes):
        raise DataError(
            f"Label {shown(labels[0])} is of another kind than the classes "
            f"({shown(classes[0])}, …): use text with text and numbers with numbers."
        )
    return labels


def sample_weights(weights: ArrayLike | None, count: int) -> NDArray[np.float64] | None:
    """One weight for each of `count` rows, finite and not negative; None stays."""
    if weights is None:
        return None
    found = np.asarray(to_numpy(weights))
    if found.shape != (count,):
        raise DataError(f"sample_weight must have shape ({count},), got {found.shape}.")
    if found.dtype.kind not in "fiub" or not np.isfinite(found).all() or (found < 0).any():
        raise DataError("sample_weight must hold finite numbers, none of them negative.")
    if not found.any():
        raise DataError("sample_weight must not be zero for all rows.")
    return found.astype(np.float64)


def row_numbers(rows: ArrayLike, count: int) -> NDArray[np.int64]:
    """Distinct row numbers from 0 to count − 1."""
    numbers = np.atleast_1d(np.asarray(rows))
    if not len(numbers):
        numbers = numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu" or (numbers < 0).any() or (numbers >= count).any():
        raise DataError(f"Row numbers must be whole numbers from 0 to {count - 1}.")
    if len(np.unique(numbers)) != len(numbers):
        raise DataError("Row numbers must differ from each other.")
    return numbers.astype(np.int64)
