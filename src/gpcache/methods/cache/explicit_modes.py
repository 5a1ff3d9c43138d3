"""Clusters within classes, from passes over all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpcache.gp.discriminant import Discriminant
from gpcache.gp.feature_maps import FeatureMap
from gpcache.methods.cache.passes import ModesPass
from gpcache.methods.cache.row_stream import RowStream

# Passes of Lloyd's algorithm.
MODE_PASSES = 8


@dataclass(frozen=True)
class Modes:
    """Finds clusters; `size` is the rows of a batch, and `look` is called before each pass."""

    rows: RowStream
    size: int
    look: Callable[[], object]

    def find(
        self, feature_map: FeatureMap, rest: Tensor, held: Tensor, numbers: Sequence[int]
    ) -> list[Discriminant]:
        """Clusters in each class, in each of these numbers, by Lloyd's algorithm.

        They begin with some of the rows `rest`, and are of all rows but the `held` ones.
        """
        found = [self._first(feature_map, rest, number) for number in numbers]
        for _ in range(MODE_PASSES if found else 0):
            found = [
                Discriminant.of_means(*part, feature_map, old.n_modes)
                for old, part in zip(found, self.nearest(feature_map, found, held), strict=True)
            ]
        return found

    def nearest(
        self, feature_map: FeatureMap, modes: Sequence[Discriminant], held: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Means (c · k, d) and numbers (c · k,) of the rows nearest to each mode."""
        self.look()
        totals = self.rows.total(ModesPass(feature_map, modes), self.size, held)
        found = []
        for one, total in zip(modes, totals, strict=True):
            sums, counts = total[:, :-1].to(one.means), total[:, -1].to(one.means)
            found.append((sums / counts.clamp(min=1)[:, None], counts))
        return found

    def _first(self, feature_map: FeatureMap, rest: Tensor, n_modes: int) -> Discriminant:
        """Rows of each class, evenly spaced among the rows `rest`."""
        order = rest[torch.argsort(self.rows.labels[rest], stable=True)]
        counts = torch.bincount(self.rows.labels[rest], minlength=self.rows.n_classes)
        places = torch.arange(n_modes, device=rest.device) * counts[:, None] // n_modes
        first = order[(counts.cumsum(0) - counts)[:, None] + places].flatten()
        numbers, inverse = torch.unique(first, return_inverse=True)
        means = feature_map.unscaled(self.rows.shots(numbers).features)[inverse]
        return Discriminant(means, 0.5 * means.square().sum(1), n_modes)
