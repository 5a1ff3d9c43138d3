"""Labelled rows that are read in batches: of an array, a mapped file or a feature store."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpcache.gp.kernels import unit_rows
from gpcache.methods.cache.passes import Pass
from gpcache.methods.cache.shots import Shots
from gpcache.methods.reading import unit_tensor
from gpcache.support.devices import free_memory
from gpcache.support.threads import take_free_cores

# Elements of the largest temporaries of a batch.
BATCH_ELEMENTS = {"cpu": 2**22, "cuda": 2**26}
# Unit rows are kept after the first pass where they take no more than this share of free memory.
KEPT_SHARE = 4


class RowStream:
    """Unit rows (n, d) with class numbers (n,) of `n_classes`, and their text logits if any.

    `source` has a length, and gives rows (b, d) for a slice or an array of row numbers. If it has a
    method `total_of`, that runs the passes. `first` is the number of the first row, where these
    are a part of all rows.
    """

    def __init__(
        self,
        source: Any,
        labels: Tensor,
        n_classes: int,
        text: Tensor | None,
        dtype: torch.dtype,
        *,
        first: int = 0,
    ) -> None:
        self._source, self.dtype, self.text = source, dtype, text
        self.labels, self.n_classes, self._first = labels, n_classes, first
        self._kept: Tensor | None = None
        self._checked = False

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def width(self) -> int:
        """d."""
        return int(self._source.shape[1])

    @property
    def elsewhere(self) -> bool:
        """Whether passes over the rows are computed by their source, for example on Ray."""
        return hasattr(self._source, "total_of")

    def mask(self, without: Tensor) -> Tensor:
        """True (n,) for all rows but those of the numbers `without` (k,)."""
        kept = torch.ones(len(self), dtype=torch.bool, device=self.labels.device)
        kept[without] = False
        return kept

    def total(self, step: Pass, size: int, without: Tensor | None = None) -> tuple[Tensor, ...]:
        """The sum of a pass over all rows but those of the numbers `without`, in batches."""
        if self.elsewhere:
            sums: tuple[Tensor, ...] = self._source.total_of(step, self, size, without)
            return sums
        return step.total(self.batches(size, without))

    def batches(self, size: int, without: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows (b, d) and labels (b,), about `size` at a time; not the numbers `without`."""
        place = self.labels.device
        kept = None if without is None else self.mask(without)
        held, known = self._kept, self._kept is not None
        room = free_memory(place) // KEPT_SHARE
        if held is None and len(self) * self.width * self.dtype.itemsize <= room:
            held = torch.empty(len(self), self.width, dtype=self.dtype, device=place)
        starts = range(0, len(self), size)
        parts = self._read(size) if self._kept is None else iter(torch.split(self._kept, size))
        for first, rows in zip(starts, parts, strict=True):
            part = slice(first, first + size)
            if held is not None and not known:
                held[part] = rows
            labels = self.labels[part]
            if kept is not None:
                rows, labels = rows[kept[part]], labels[kept[part]]
            take_free_cores()
            yield rows, labels
        self._kept, self._checked = held, True

    def _read(self, size: int) -> Iterator[Tensor]:
        """Unit rows from the source; the next ones are read while these are used."""
        place = self.labels.device
        simple = self._checked and self._source.dtype == np.float32

        def read(first: int) -> Any:
            return np.array(self._source[first : first + size])

        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(read, 0)
            for first in range(0, len(self), size):
                array = coming.result()
                coming = reader.submit(read, first + size)
                if simple:  # a pass before this one has found nothing wrong
                    yield unit_rows(torch.from_numpy(array).to(place, self.dtype))
                else:
                    yield unit_tensor(array, "X", place, self.dtype, first=self._first + first)

    def shots(self, rows: Tensor, classes: Tensor | None = None) -> Shots:
        """The rows of these numbers (k,), which are sorted; of `classes` alone, numbered anew."""
        labels, text = self.labels[rows], self.text
        n_classes = self.n_classes
        if classes is not None:
            labels = torch.searchsorted(classes, labels)
            n_classes, text = len(classes), None if text is None else text[classes]
        array = np.asarray(self._source[rows.cpu().numpy()])
        features = unit_tensor(array, "X", labels.device, self.dtype)
        return Shots(features, labels, n_classes, None if text is None else features @ text.mT)

    def labels_alone(self, without: Tensor | None = None) -> Shots:
        """Shots without features: what depends on labels, and on whether there is text."""
        labels = self.labels if without is None else self.labels[self.mask(without)]
        nothing = torch.empty(len(labels), 0, dtype=self.dtype, device=labels.device)
        return Shots(nothing, labels, self.n_classes, None if self.text is None else nothing)


def stratified(labels: Tensor, count: int, seed: int) -> Tensor:
    """Numbers of about `count` rows (sorted), a random share that is equal for all classes."""
    if count >= len(labels):
        return torch.arange(len(labels), device=labels.device)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    # Every n/count-th row of the rows by class, in random order within a class.
    order = order[torch.argsort(labels[order], stable=True)]
    spaced = (torch.arange(count, device=labels.device, dtype=torch.float64) + 0.5) / count
    return order[(spaced * len(labels)).long()].sort().values
