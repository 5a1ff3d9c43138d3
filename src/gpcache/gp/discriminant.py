"""The linear discriminant in the kernel's space: how near a row is to the mean of each class.

    score = z · μ − ½ ‖μ‖²      z = unscaled rows of the feature map,  μ = class means of the shots

In a whitened space that is Fisher's discriminant with the shrunk scatter within classes.
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
        cls, features: Tensor, labels: Tensor, n_classes: int, feature_map: FeatureMap
    ) -> Discriminant:
        """The discriminant of features (n, d) with class numbers (n,); no shot: score 0."""
        projection = feature_map.projection
        rows = features if projection is None else projected(projection, features)
        counts = torch.bincount(labels, minlength=n_classes)
        sums = rows.new_zeros(n_classes, rows.shape[1]).index_add(0, labels, rows)
        # Behind the projection the map is linear: the means are mapped, not every row.
        linear = replace(feature_map, projection=None)
        means = linear.unscaled(sums / counts.clamp(min=1).to(rows)[:, None])
        means = means * (counts > 0)[:, None]
        return cls(means, 0.5 * means.square().sum(1))

    def scores(self, rows: Tensor) -> Tensor:
        """(m, c) of rows (m, d')."""
        return rows @ self.means.mT - self.halves
