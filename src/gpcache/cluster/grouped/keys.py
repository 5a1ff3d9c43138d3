"""Labelled rows that stay where they are: an array, or a file that every worker maps for itself."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.kernels import unit_rows


@dataclass(frozen=True)
class MappedFile:
    """A memory-mapped array by the name of its file: what travels is the name, not the rows."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, array: Any) -> MappedFile | None:
        """None for what is not a whole file, row by row: a slice of one counts as an array."""
        whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)
        if not whole or not array.flags.c_contiguous:
            return None
        return cls(str(array.filename), array.dtype.str, array.shape, array.offset)

    def open(self) -> NDArray[Any]:
        """The array, read-only."""
        try:
            return np.memmap(
                self.path, dtype=self.dtype, mode="r", offset=self.offset, shape=self.shape
            )
        except OSError as error:
            raise DataError(
                f"The rows in {self.path} cannot be read any more ({error.strerror}): keep the "
                "file where it was, and with Ray where every machine of the cluster finds it."
            ) from None


@dataclass(frozen=True)
class Keys:
    """Rows (n, d) of any scale, and how they become unit rows in the kernel's space."""

    source: NDArray[Any] | MappedFile
    device: torch.device
    dtype: torch.dtype
    feature_map: FeatureMap = field(default_factory=FeatureMap)

    def features(self, rows: NDArray[np.int64]) -> Tensor:
        """Unit rows (k, d) of these numbers, as the encoder gave them."""
        source = self.source.open() if isinstance(self.source, MappedFile) else self.source
        return unit_rows(self.tensor(source[rows]))

    def mapped(self, rows: NDArray[np.int64]) -> Tensor:
        """Unit rows (k, d) of these numbers in the kernel's space."""
        return self.feature_map(self.features(rows))

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """A copy of an array on the device: what comes from elsewhere may not be written to."""
        return torch.tensor(np.asarray(array), device=self.device).to(self.dtype)

    def centred(self, mean: Tensor) -> Keys:
        """The same rows, less their mean (d,)."""
        return replace(self, feature_map=FeatureMap(mean=mean))
