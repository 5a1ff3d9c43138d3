"""Which images are contrasted with each other, and the contrastive loss of their views."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpcache.errors import DataError
from gpcache.features.neighbors import nearest


def contrastive_loss(
    cosines: Tensor, *, temperature: float, reduction: Literal["sum", "mean"] = "sum"
) -> Tensor:
    """Compute the contrastive loss of views against originals.

    For b anchors with r images I_t each it is (1/b) Σ_t Σ_{i∈I_t} −log [exp(z_ii/τ) / Σ_{j∈I_t}
    exp(z_ij/τ)] with z_ij = φ(g_i)ᵀφ(f_j). The paper prints it without the minus sign.

    Parameters
    ----------
    cosines : Tensor of shape (b, r, r)
        The cosines z of views with originals.
    temperature : float
        The temperature τ.
    reduction : {"sum", "mean"}, default="sum"
        Sum or mean over the images of an anchor.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> import torch
    >>> from gpcache.similarity import contrastive_loss
    >>> round(float(contrastive_loss(torch.zeros(1, 4, 4), temperature=1.0, reduction="mean")), 3)
    1.386
    """
    logits = cosines / temperature
    losses = logits.logsumexp(-1) - logits.diagonal(dim1=-2, dim2=-1)
    return losses.sum(1).mean() if reduction == "sum" else losses.mean()


def cosines_of_sets(views: Tensor, originals: Tensor, sets: Tensor) -> Tensor:
    """z (b, r, r) for unit rows (u, d) of views and originals, and sets (b, r) of their numbers.

    Sets overlap: if there are fewer pairs of rows than pairs in all sets, each is computed once.
    """
    rows = len(views)
    if rows**2 > sets.numel() * sets.shape[1]:
        flat = sets.flatten()
        shape = (*sets.shape, views.shape[1])
        first, second = (part.index_select(0, flat).view(shape) for part in (views, originals))
        return first @ second.mT
    pairs = sets[:, :, None] * rows + sets[:, None]
    every = (views @ originals.mT).flatten()
    return every.index_select(0, pairs.flatten()).view(pairs.shape)


def nearest_sets(original: Tensor, size: int) -> Tensor:
    """For every row of `original` (p, d) the rows (p, size) of highest cosine, itself among them.

    If more than `size` rows are equal, the first of them are taken.
    """
    _ensure_enough(len(original), size)
    neighbours, _ = nearest(original, k=size, device=original.device)
    return torch.from_numpy(neighbours).to(original.device)


def random_sets(anchors: Tensor, rows: int, size: int, generator: np.random.Generator) -> Tensor:
    """Each anchor (b,) and size − 1 other rows out of `rows`, drawn without repetition: (b, size).

    All anchors of a batch share one draw of offsets to the other rows: each set is still a uniform
    draw.
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
