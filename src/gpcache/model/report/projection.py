"""Features in two dimensions, for the eye alone: t-SNE after PCA, or PCA where t-SNE is no help."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

# Of fewer points t-SNE makes up neighbours; of more it takes minutes.
_FEWEST, _MOST = 10, 2000
_COMPONENTS = 50
_PERPLEXITY = 30.0
# Half of the usual: so few points have settled by then.
_ITERATIONS = 500


class Picture(NamedTuple):
    """Points (n, 2) in the plane and the name of the method that put them there."""

    points: NDArray[np.float64]
    method: str


def flatten(features: NDArray[Any]) -> Picture:
    """Put rows (n, d) on a plane; the same rows always land in the same place."""
    rows = np.asarray(features, dtype=np.float64)
    n, width = rows.shape
    size = min(_COMPONENTS, n, width)
    with warnings.catch_warnings():
        # Identical rows have no variance to explain; the picture is one point all the same.
        warnings.simplefilter("ignore", RuntimeWarning)
        reduced = PCA(size, random_state=0).fit_transform(rows)
    # Rows on a line or in one place, up to rounding, have no neighbourhoods to unfold.
    thin = size < 3 or np.ptp(reduced[:, 1]) <= 1e-9 * np.abs(rows).max()
    if thin or not _FEWEST <= n <= _MOST:
        flat = np.zeros((n, 2))
        flat[:, : min(2, size)] = reduced[:, :2]
        return Picture(flat, "PCA")
    perplexity = min(_PERPLEXITY, (n - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", max_iter=_ITERATIONS, random_state=0)
    points = tsne.fit_transform(reduced)
    return Picture(np.asarray(points, dtype=np.float64), "t-SNE")
