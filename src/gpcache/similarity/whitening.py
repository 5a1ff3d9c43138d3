"""A projection in closed form that shrinks directions in which views of one image differ."""

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
    """Compute a projection that shrinks directions in which views of one image differ.

    It is (S + λ·tr(S)/(n − 1)·I)^(−½) for the scatter S of the views around their images. This is
    the whitening of ``kernel_space="whitened"`` with every image as its own class, so it needs no
    labels. A direction in which no views differ keeps its length.

    Parameters
    ----------
    original : array of shape (p, d)
        Features of the images.
    views : array of shape (p, v, d)
        Features of augmented views of the same images.
    shrinkage : float, default=4.0
        The shrinkage λ.
    device : str or torch.device, default="auto"
        Device to compute on.

    Returns
    -------
    SimilarityProjection
        The projection.

    Raises
    ------
    DataError
        If the views do not differ from the images.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.similarity import whitening_projection
    >>> rng = np.random.default_rng(0)
    >>> images = rng.normal(size=(40, 8))
    >>> whitening_projection(images, images[:, None] + 0.1 * rng.normal(size=(40, 2, 8))).dim
    8
    """
    positive("shrinkage", shrinkage)
    image_rows, view_rows = paired_rows(original, views, resolve_device(device))
    images, count, dim = view_rows.shape
    scatter = torch.zeros(dim, dim, dtype=torch.float64, device=image_rows.device)
    step = max(1, BLOCK_BYTES // (8 * dim * (count + 1)))
    for start in range(0, images, step):
        block = slice(start, start + step)
        rows = torch.cat([image_rows[block, None], view_rows[block]], 1).double()
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
