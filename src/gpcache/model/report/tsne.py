"""Draws features in two dimensions: t-SNE after PCA, or PCA alone for very few or many rows."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

# With fewer points t-SNE invents neighbours; with more it takes minutes.
_FEWEST, _MOST = 10, 2000
_COMPONENTS = 50
_PERPLEXITY = 30.0
# Half of the default: this few points have converged by then.
_ITERATIONS = 500


class Points2D(NamedTuple):
    """Points (n, 2) and the name of the method that placed them."""

    points: NDArray[np.float64]
    method: str


def embed_2d(features: NDArray[Any]) -> Points2D:
    """Place rows (n, d) in the plane; equal input gives equal points."""
    rows = np.asarray(features, dtype=np.float64)
    n, width = rows.shape
    size = min(_COMPONENTS, n, width)
    with warnings.catch_warnings():
        # Identical rows have no variance to explain; they become one point.
        warnings.simplefilter("ignore", RuntimeWarning)
        reduced = PCA(size, random_state=0).fit_transform(rows)
    # Rows on a line or in one place, up to rounding, have no neighbourhoods to unfold.
    thin = size < 3 or np.ptp(reduced[:, 1]) <= 1e-9 * np.abs(rows).max()
    if thin or not _FEWEST <= n <= _MOST:
        points = np.zeros((n, 2))
        points[:, : min(2, size)] = reduced[:, :2]
        return Points2D(points, "PCA")
    perplexity = min(_PERPLEXITY, (n - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", max_iter=_ITERATIONS, random_state=0)
    return Points2D(np.asarray(tsne.fit_transform(reduced), dtype=np.float64), "t-SNE")
