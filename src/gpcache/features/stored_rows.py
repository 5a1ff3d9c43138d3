"""Rows of a feature store as an array that is read part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import StoreError
from gpcache.features.store import FeatureStore, Item


class StoredRows:
    """Vectors of a feature store, of shape (n, dim), that are read when they are asked for.

    `fit` and `add` of `GPCacheClassifier` read them in batches, so that a store may be larger than
    the memory.

    Parameters
    ----------
    store : FeatureStore
        The store; it must hold one vector per image.
    items : sequence of Item
        Images of the store.

    Attributes
    ----------
    store : FeatureStore
        The store.
    items : list of Item
        The images, in the order in which the store holds their vectors.

    Raises
    ------
    StoreError
        If the store holds several vectors per image, or does not have one of the images.

    Examples
    --------
    >>> import tempfile
    >>> from gpcache import FeatureStore, load_encoder
    >>> from gpcache.features.store import Item
    >>> from gpcache.features.stored_rows import StoredRows
    >>> encoder = load_encoder("lite")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = FeatureStore.create(folder, encoder)
    ...     count = store.append(["0" * 64], encoder.encode_texts(["cat"]))
    ...     StoredRows(store, [Item("photos", "1.jpg", "0" * 64)])[:1].shape
    (1, 1664)
    """

    #: Estimators that can read rows batch by batch do so; to others they are an array.
    reads_in_batches = True
    ndim, dtype = 2, np.dtype(np.float32)

    def __init__(self, store: FeatureStore, items: Sequence[Item]) -> None:
        views = store.manifest.views
        if views is not None and not views["average"]:
            raise StoreError(
                f"The store {str(store.folder)!r} holds several views of each image: extract the "
                "images with averaged views, or with one."
            )
        self.store = store
        place = store.places([item.hash for item in items])
        self.items = [items[row] for row in sorted(range(len(items)), key=place.__getitem__)]
        self.shape = len(items), store.manifest.dim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        if isinstance(rows, slice):
            chosen = self.items[rows]
        else:
            numbers = np.asarray(rows)
            if numbers.dtype == bool:
                numbers = np.arange(len(self))[numbers]
            chosen = [self.items[row] for row in numbers.tolist()]
        return self.store.vectors([item.hash for item in chosen])

    def __array__(self, *_: Any, **__: Any) -> NDArray[np.float32]:
        return self[:]
