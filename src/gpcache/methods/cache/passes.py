"""Passes over all rows of a fit in explicit features: sums over batches, that can run anywhere.

A pass holds data alone. Its `total` over parts of the rows adds up to that over all of them, so
that other processes can compute it for the rows they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from gpcache.gp.discriminant import Discriminant
from gpcache.gp.explicit import Batch, loss_of, products_of
from gpcache.gp.feature_maps import FeatureMap, Moments, Projection, projected
from gpcache.methods.cache.softmax import prior_logits

# Unit rows (b, d) and their class numbers (b,).
RowBatches = Iterable[tuple[Tensor, Tensor]]
# Elements of the means that the rows of a piece of a batch meet: on a CPU they stay in its cache.
PIECE_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}


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
    """The (projected) rows nearest to each mean of some discriminants: their sums and numbers."""

    feature_map: FeatureMap
    discriminants: Sequence[Discriminant]

    def total(self, batches: RowBatches) -> tuple[Tensor, ...]:
        """For each discriminant the sums and, in the last column, the numbers (c · k, d + 1).

        They are added up in float64. Rows are taken in small pieces, as each of them meets all
        means of its class.
        """
        projection, mean = self.feature_map.projection, self.feature_map.mean
        before = [one.before_matrix(self.feature_map) for one in self.discriminants]
        place = before[0].means
        most = max(one.means.shape[1] * one.n_modes for one in before)
        elements = PIECE_ELEMENTS.get(place.device.type, PIECE_ELEMENTS["cuda"])
        size = max(1, elements // most)
        totals = [
            place.new_zeros(len(one.means), one.means.shape[1] + 1, dtype=torch.float64)
            for one in before
        ]
        for batch in batches:
            for rows, labels in zip(*(torch.split(part, size) for part in batch), strict=True):
                given = rows if projection is None else projected(projection, rows)
                centred = given if mean is None else given - mean
                counted = torch.nn.functional.pad(given.double(), (0, 1), value=1.0)
                for one, total in zip(before, totals, strict=True):
                    total.index_add_(0, one.nearest(centred, labels), counted)
        return tuple(totals)


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
