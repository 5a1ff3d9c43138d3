"""Which images are contrasted with each other: an anchor's nearest ones, or random ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gpcache.errors import DataError
from gpcache.features.neighbors import nearest


def nearest_sets(original: Tensor, size: int) -> Tensor:
    """For every row of `original` (p, d) the rows (p, size) of highest cosine, itself among them.

    Where more than `size` rows are equal, the first of them stand for all.
    """
    _ensure_enough(len(original), size)
    found, _ = nearest(original, k=size, device=original.device)
    return torch.from_numpy(found).to(original.device)


def random_sets(anchors: Tensor, rows: int, size: int, generator: np.random.Generator) -> Tensor:
    """Each anchor (b,) and size − 1 other rows out of `rows`, drawn without repetition: (b, size).

    The anchors of a batch share their distances to the others: each set is a uniform draw, and one
    draw serves them all.
    """
    _ensure_enough(rows, size)
    drawn = generator.choice(rows - 1, size - 1, replace=False)
    steps = torch.from_numpy(np.append(0, drawn + 1)).to(anchors.device)
    return (anchors[:, None] + steps) % rows


def _ensure_enough(rows: int, size: int) -> None:
    if rows < size:
        raise DataError(
            f"neighbours={size} needs as many images, but there are {rows}: "
            "lower neighbours or add images."
        )
