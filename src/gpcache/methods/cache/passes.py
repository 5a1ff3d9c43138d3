"""Passes over all rows of a fit in explicit features: sums over batches, that can run anywhere.

A pass holds data alone. Its `total` over parts of the rows adds up to that over all of them, so
that other processes can compute it for the rows they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from gpcache.gp.discriminant import Discriminant
from gpcache.gp.explicit import Batch, loss_of, products_of
from gpcache.gp.feature_maps import FeatureMap, Moments, Projection, projected
from gpcache.methods.cache.softmax import prior_logits

# Unit rows (b, d) and their class numbers (b,).
RowBatches = Iterable[tuple[Tensor, Tensor]]


class Pass(Protocol):
    """A sum over rows; a named tuple."""

    def __iter__(self) -> Iterator[Any]:
        """Its fields."""

    def total(self, batches: RowBatches) -> tuple[Tensor, ...]:
        """The sum over these rows: tensors whose shapes do not depend on the rows."""


class MomentsPass(NamedTuple):
    """The `Moments` of rows behind the similarity projection, if there is one."""

    projection: Projection | None
    n_classes: int

    def total(self, batches: RowBatches) -> Moments:
        """The moments of these rows."""
        if self.projection is not None:
            batches = ((projected(self.projection, rows), labels) for rows, labels in batches)
        return Moments.of(batches, self.n_classes)


class ModesPass(NamedTuple):
    """Numbers and sums of the (projected) rows nearest to each mean of a discriminant."""

    feature_map: FeatureMap
    means: Tensor
    halves: Tensor
    n_modes: int

    def total(self, batches: RowBatches) -> tuple[Tensor, Tensor]:
        """The numbers (c · k,) and the sums (c · k, d), in float64."""
        discriminant = Discriminant(self.means, self.halves, self.n_modes)
        projection, totals = self.feature_map.projection, None
        for rows, labels in batches:
            numbers = discriminant.nearest(self.feature_map.unscaled(rows), labels)
            given = (rows if projection is None else projected(projection, rows)).double()
            if totals is None:
                totals = given.new_zeros(len(self.means), given.shape[1] + 1)
            totals.index_add_(0, numbers, torch.nn.functional.pad(given, (0, 1), value=1.0))
        assert totals is not None
        return totals[:, -1], totals[:, :-1]


class ProductsPass(NamedTuple):
    """Σ k(L, z) k(z, L) of rows z in the kernel's space, for landmarks L (D, d')."""

    feature_map: FeatureMap
    landmarks: Tensor
    beta: float

    def total(self, batches: RowBatches) -> tuple[Tensor]:
        """The products (D, D) of these rows."""
        mapped = (self.feature_map(rows) for rows, _ in batches)
        return (products_of(mapped, self.landmarks, self.beta),)


class LossPass(NamedTuple):
    """The cross-entropy of rows at coefficients (D, c), and its gradient.

    Before shots are seen, logits are `prior_logits` of the text (c, d) and its gain, the classes
    without shots `absent` (c,), and the logarithm `frequency` (c,) of the others' frequency.
    """

    space: ProductsPass
    values: Tensor
    text: Tensor | None
    absent: Tensor
    gain: float
    frequency: Tensor

    def total(self, batches: RowBatches) -> tuple[Tensor, Tensor]:
        """The loss of these rows, and its gradient (D, c)."""
        prior = self.text, self.absent, self.gain, self.frequency
        mapped = (
            Batch(self.space.feature_map(rows), prior_logits(rows, *prior), labels)
            for rows, labels in batches
        )
        return loss_of(mapped, self.space.landmarks, self.space.beta, self.values)
