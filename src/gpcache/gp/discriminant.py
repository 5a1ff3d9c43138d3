"""The linear discriminant in the kernel's space, from the distance to each class mean.

    score = z · μ − ½ ‖μ‖²      z = unscaled rows of the feature map,  μ = class means of the shots

In a whitened space this is Fisher's discriminant with the shrunk scatter within classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.gp.feature_maps import FeatureMap, projected


class Discriminant(NamedTuple):
    """Class means (c, d') in the kernel's space, and half their squared lengths (c,)."""

    means: Tensor
    halves: Tensor

    @classmethod
    def of(
        cls,
        features: Tensor,
        labels: Tensor,
        n_classes: int,
        feature_map: FeatureMap,
        weights: Tensor | None = None,
    ) -> Discriminant:
        """The discriminant of features (n, d) with class numbers (n,); 0 for classes without shots.

        `weights` (n,) are row weights in the class means.
        """
        projection = feature_map.projection
        rows = features if projection is None else projected(projection, features)
        if weights is None:
            weights = rows.new_ones(len(rows))
        counts = rows.new_zeros(n_classes).index_add(0, labels, weights)
        sums = rows.new_zeros(n_classes, rows.shape[1])
        sums = sums.index_add(0, labels, rows * weights[:, None])
        means = sums / torch.where(counts > 0, counts, 1.0)[:, None]
        return cls.of_means(means, counts, feature_map)

    @classmethod
    def of_means(cls, means: Tensor, counts: Tensor, feature_map: FeatureMap) -> Discriminant:
        """The same from the means (c, d) of (projected) features and their number (c,)."""
        # After the projection the map is linear: map the means, not every row.
        means = replace(feature_map, projection=None).unscaled(means)
        means = means * (counts > 0)[:, None]
        return cls(means, 0.5 * means.square().sum(1))

    def scores(self, rows: Tensor) -> Tensor:
        """(m, c) of rows (m, d')."""
        return rows @ self.means.mT - self.halves
