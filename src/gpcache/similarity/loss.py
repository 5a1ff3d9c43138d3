"""The contrastive loss between views and originals, within the set of images of each anchor."""

from __future__ import annotations

from typing import Literal

from torch import Tensor


def contrastive_loss(
    cosines: Tensor, *, temperature: float, reduction: Literal["sum", "mean"] = "sum"
) -> Tensor:
    """(1/b) Σ_t Σ_{i∈I_t} −log [exp(z_ii/τ) / Σ_{j∈I_t} exp(z_ij/τ)] with z_ij = φ(g_i)ᵀφ(f_j).

    `cosines` (b, r, r) are z: for each of b anchors those of the views of its r images I_t with
    their originals. The paper prints the loss without the minus sign, which would be maximised.
    """
    logits = cosines / temperature
    each = logits.logsumexp(-1) - logits.diagonal(dim1=-2, dim2=-1)
    return each.sum(1).mean() if reduction == "sum" else each.mean()


def cosines_of_sets(views: Tensor, originals: Tensor, sets: Tensor) -> Tensor:
    """z (b, r, r) for unit rows (u, d) of views and originals, and sets (b, r) of their numbers.

    Sets overlap: where there are fewer pairs of rows than pairs in all sets, each is taken once.
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
