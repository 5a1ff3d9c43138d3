"""TextPrior: the text vector of each class, before any image is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import DataError
from gpcache.support.checks import (
    number_array,
    positive,
    refuse_missing,
    refuse_twins,
    shown,
    to_numpy,
)

# Length of CLIP's text embeddings before they are scaled to one.
CLIP_TEXT_LENGTH = 10.0
# Tolerance between vectors of the same text that were encoded in different batches.
ROUNDING = 1e-6
UNSORTABLE = (
    "The class names of a TextPrior must be of one kind that can be sorted: all text, or all "
    "numbers."
)


@dataclass(frozen=True, eq=False)
class TextPrior:
    """Text vectors of the classes, which are known before any image is seen.

    Classes are matched with labels by name, never by position. Vectors are scaled to length one.

    Parameters
    ----------
    class_names : sequence
        Class names, all text or all numbers.
    vectors : array of shape (c, d)
        One text vector per class, from the encoder of the images.
    logit_scale : float, default=100.0
        Factor that turns cosines into logits; 100 for CLIP.
    length : float, default=10.0
        Length of the text vectors before they are scaled to one. TaskRes and CLAP train from
        vectors of this length, as their authors do.

    Raises
    ------
    DataError
        If names and vectors do not match, or a vector is zero or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import TextPrior
    >>> TextPrior(["dog", "cat"], np.eye(2)).classes.tolist()
    ['cat', 'dog']
    """

    class_names: Sequence[Hashable]
    vectors: NDArray[Any]
    logit_scale: float = 100.0
    length: float = CLIP_TEXT_LENGTH

    def __post_init__(self) -> None:
        vectors = number_array("vectors", self.vectors).astype(np.float64)
        names = list(self.class_names)
        if vectors.ndim != 2 or len(vectors) != len(names):
            raise DataError(
                f"TextPrior needs one vector per class name: got {len(names)} names and vectors of "
                f"shape {vectors.shape}."
            )
        if not names:
            raise DataError("TextPrior needs at least one class name.")
        refuse_missing("class_names", names, none=False)
        refuse_twins(names)
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise DataError(f"TextPrior has the class name {shown(repeated[0])} more than once.")
        if not np.isfinite(vectors).all():
            row = int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])
            raise DataError(f"The text vector of class {shown(names[row])} holds NaN or inf.")
        lengths = np.linalg.norm(vectors, axis=1)
        if (lengths == 0).any():
            name = names[int(lengths.argmin())]
            raise DataError(f"The text vector of class {shown(name)} is all zeros.")
        if len({isinstance(name, str) for name in names}) > 1:
            raise DataError(UNSORTABLE)
        scale = to_numpy(self.logit_scale)
        if isinstance(scale, np.ndarray) and scale.size == 1:  # encoders keep it as a tensor
            scale = scale.item()
        scale = positive("logit_scale", scale, owner=self, auto=False)
        object.__setattr__(self, "logit_scale", scale)
        length = positive("length", self.length, owner=self, auto=False)
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "class_names", tuple(names))
        object.__setattr__(self, "vectors", vectors / lengths[:, None])

    @property
    def classes(self) -> NDArray[Any]:
        """Class names in sorted order, as scikit-learn keeps them."""
        try:
            names: NDArray[Any] = np.unique(np.asarray(self.class_names))
        except TypeError:
            raise DataError(UNSORTABLE) from None
        return names

    def aligned(self, classes: NDArray[Any]) -> NDArray[np.float64]:
        """Return the vectors in the order of given classes.

        Parameters
        ----------
        classes : array
            Class names.

        Returns
        -------
        array of shape (len(classes), d)
            One vector per class.

        Raises
        ------
        DataError
            If there is no vector for a class.

        Examples
        --------
        >>> import numpy as np
        >>> from gpcache import TextPrior
        >>> TextPrior(["dog", "cat"], np.eye(2)).aligned(np.array(["cat", "dog"])).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        row_of = {name: row for row, name in enumerate(self.class_names)}
        missing = [name for name in classes.tolist() if name not in row_of]
        if missing:
            known = ", ".join(shown(name) for name in self.class_names[:3])
            raise DataError(
                f"The text prior has no class {shown(missing[0])} (it has {known}, …): "
                "labels and class names must match."
            )
        rows: NDArray[np.float64] = self.vectors[[row_of[name] for name in classes.tolist()]]
        return rows


def require_text_prior(value: Any, width: int | None = None) -> None:
    """Raise an error if `value` is not a TextPrior, or its vectors do not have this width."""
    if not isinstance(value, TextPrior):
        raise DataError(
            f"text_prior must be a TextPrior(class_names, vectors), got a {type(value).__name__}."
        )
    columns = value.vectors.shape[1]
    if width is not None and columns != width:
        raise DataError(
            f"The text vectors have {columns} columns, the shots {width}: both must come from the "
            "same encoder."
        )


def same_text(one: TextPrior | None, other: TextPrior | None) -> bool:
    """Whether two texts differ by no more than rounding."""
    if one is None or other is None or set(one.class_names) != set(other.class_names):
        return one is other
    apart = one.aligned(one.classes) - other.aligned(one.classes)
    return bool(np.abs(apart).max() < ROUNDING)


def joined_text(one: TextPrior, other: TextPrior) -> TextPrior:
    """The classes of both texts; those of the second replace equal names."""
    vectors = dict(zip(one.class_names, one.vectors, strict=True))
    vectors |= dict(zip(other.class_names, other.vectors, strict=True))
    return TextPrior(list(vectors), np.stack(list(vectors.values())), other.logit_scale)
