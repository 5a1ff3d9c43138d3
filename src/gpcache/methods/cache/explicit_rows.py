"""Rows in explicit features, which are kept between the passes of a solve where memory allows.

The features are the same at every pass, and are kept where they are a notable share of its work.
A start on a part of the rows would save nothing: with 40 to 100 rows in a class, the solution of a
fourth of them is 0.3 nats a row above the optimum of all, and what it saves in passes over all rows
it takes in passes over the part.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from gpcache.gp.explicit import Batch, loss_in, products_in
from gpcache.gp.kernels import kernel
from gpcache.methods.cache.passes import LossPass, ProductsPass
from gpcache.methods.cache.row_stream import KEPT_SHARE, RowStream
from gpcache.methods.cache.softmax import prior_logits
from gpcache.support.devices import free_memory

# With this many classes for each of the d values of a row, features are a small part of a pass.
MANY_CLASSES = 8

# What `prior_logits` needs beside the rows.
Terms = tuple[Tensor | None, Tensor, float, Tensor]


class FeatureRows:
    """The rows of a stream in explicit features, but those of the numbers `without`.

    `size` is the rows of a batch, `reserved` the bytes that must stay free.
    """

    def __init__(
        self,
        rows: RowStream,
        space: ProductsPass,
        size: int,
        without: Tensor | None,
        reserved: int,
    ) -> None:
        self._rows, self._space, self._size, self._without = rows, space, size, without
        self.n_rows = len(rows) - (0 if without is None else len(without))
        room = (free_memory(rows.labels.device) - reserved) // KEPT_SHARE
        fits = self.n_rows * len(space.landmarks) * rows.dtype.itemsize <= room
        few = rows.n_classes <= MANY_CLASSES * rows.width
        self._keeps = fits and few and not rows.elsewhere
        self._kept: list[Tensor] = []

    def products(self) -> Tensor:
        """Σ k(L, z) k(z, L) (D, D)."""
        if not self._keeps:
            return self._rows.total(self._space, self._size, self._without)[0]
        return products_in((features for features, _, _ in self._batches()), self._space.landmarks)

    def loss(self, values: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
        """The cross-entropy at coefficients (D, c), and its gradient."""
        if not self._keeps:
            step = LossPass(self._space, values, *terms)
            total, gradient = self._rows.total(step, self._size, self._without)
            return total, gradient
        return loss_in(
            (
                Batch(features, prior_logits(rows, *terms), labels)
                for features, rows, labels in self._batches()
            ),
            values,
        )

    def _batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features (b, D), which are kept at the first pass, rows (b, d) and labels (b,)."""
        space, kept = self._space, self._kept
        first = not kept
        for number, (rows, labels) in enumerate(self._rows.batches(self._size, self._without)):
            if first:
                kept.append(kernel(space.feature_map(rows), space.landmarks, space.beta))
            yield kept[number], rows, labels
