"""A projection in closed form: directions in which the views of one image differ count less."""

from __future__ import annotations

from typing import Any

import torch

from gpcache.errors import DataError
from gpcache.similarity.pairs import paired_rows
from gpcache.similarity.projection import SimilarityProjection
from gpcache.support.checks import positive
from gpcache.support.devices import resolve_device

BLOCK_BYTES = 2**28


def whitening_projection(
    original: Any, views: Any, *, shrinkage: float = 4.0, device: str | torch.device = "auto"
) -> SimilarityProjection:
    """(S + λ·tr(S)/(n − 1)·I)^(−½) for the scatter S of `original` (p, d), `views` (p, v, d).

    That is the whitening of the estimators' kernel_space="whitened", with every image as its own
    class, so that it needs no labels; n counts all rows and λ is `shrinkage`. Scaled so that a
    direction in which no views differ keeps its length. Centring is left to the estimators.
    """
    positive("shrinkage", shrinkage)
    first, others = paired_rows(original, views, resolve_device(device))
    images, count, dim = others.shape
    scatter = torch.zeros(dim, dim, dtype=torch.float64, device=first.device)
    step = max(1, BLOCK_BYTES // (8 * dim * (count + 1)))
    for start in range(0, images, step):
        block = slice(start, start + step)
        rows = torch.cat([first[block, None], others[block]], 1).double()
        centred = (rows - rows.mean(1, keepdim=True)).flatten(0, 1)
        scatter += centred.mT @ centred
    spread = float(scatter.trace())
    if spread == 0:
        raise DataError("The views do not differ from the original images: nothing can be learned.")
    ridge = shrinkage * spread / (images * (count + 1) - 1)
    values, vectors = torch.linalg.eigh(scatter)
    roots = (ridge / (values.clamp(min=0) + ridge)).sqrt()
    whitening = (vectors * (roots - 1)) @ vectors.mT
    return SimilarityProjection((whitening.float().cpu(),))
