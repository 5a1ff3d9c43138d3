"""The linear discriminant in the kernel's space: how near a row is to the mean of each class.

    score = z · μ − ½ ‖μ‖²      z = unscaled rows of the feature map,  μ = class means of the shots

In a whitened space that is Fisher's discriminant with the shrunk scatter within classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Discriminant(NamedTuple):
    """Class means (c, d') in the kernel's space, and half their squared lengths (c,)."""

    means: Tensor
    halves: Tensor

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, n_classes: int) -> Discriminant:
        """The discriminant of rows (n, d') with class numbers (n,); no shot: score 0."""
        counts = torch.bincount(labels, minlength=n_classes).clamp(min=1).to(rows)
        sums = rows.new_zeros(n_classes, rows.shape[1]).index_add(0, labels, rows)
        means = sums / counts[:, None]
        return cls(means, 0.5 * means.square().sum(1))

    def scores(self, rows: Tensor) -> Tensor:
        """(m, c) of rows (m, d')."""
        return rows @ self.means.mT - self.halves
