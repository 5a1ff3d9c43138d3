"""Training images of a model in explicit features, by which it explains its answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpcache.errors import DataError
from gpcache.features.shot_index import Seal, ShotIndex, write_index
from gpcache.features.stored_rows import StoredRows
from gpcache.methods.cache.explicit_reasons import residuals_of
from gpcache.model.training_images import Example, stored_example

if TYPE_CHECKING:
    from gpcache.methods.cache.estimator import CacheClassifier


class StoredShots(NamedTuple):
    """Training images whose features (n, d) are all read for each batch of answers.

    `rows` are an array or rows of a feature store.
    """

    rows: Any
    examples: Sequence[Example]
    labels: NDArray[np.str_]
    note: str = ""

    @classmethod
    def of(cls, rows: Any, examples: Sequence[Example]) -> StoredShots:
        """Those of a fit."""
        return cls(rows, examples, np.array([one.label for one in examples]))

    @classmethod
    def of_store(cls, rows: StoredRows, classes: set[str], learned: int) -> StoredShots:
        """Those of these classes, where a model has learned from `learned` images."""
        name = str(rows.store.folder)
        known = [one for one in rows.items if one.label in classes]
        if not known:
            raise DataError(f"The store {name!r} has no image of a class of the model.")
        note = ""
        if len(known) != learned:
            note = (
                f"The model learned from {learned:,} images, and {name!r} has {len(known):,} of "
                "its classes: reasons may name images that it did not learn from, or miss some."
            )
        if len(known) < len(rows):
            rows = StoredRows(rows.store, known)
        return cls.of(rows, [stored_example(one) for one in rows.items])._replace(note=note)

    @property
    def shots(self) -> tuple[Any, NDArray[np.str_]]:
        """What `explain` takes."""
        return self.rows, self.labels

    def example(self, row: int) -> Example:
        """The image of a row."""
        return self.examples[row]

    def write(self, path: Path, model: CacheClassifier) -> Seal:
        """Write their index, with what the fit has left of them."""
        fitted, rows = model.fitted_, model.shots_elsewhere(self.rows, self.labels)
        assert fitted.streamed is not None
        residuals = residuals_of(fitted.model, fitted.streamed, rows)
        names = [one.name for one in self.examples]
        labels = rows.labels.cpu().numpy()
        return write_index(path, self.rows, labels, names, residuals, rows.n_classes)


class IndexedShots(NamedTuple):
    """Training images in the index of a model folder, of which each answer reads a small part."""

    shots: ShotIndex
    classes: NDArray[np.str_]
    note: str = ""

    def example(self, row: int) -> Example:
        """The image of a row."""
        return Example(self.shots.name(row), str(self.classes[self.shots.label(row)]), "")

    def write(self, path: Path, _model: CacheClassifier) -> Seal:
        """Copy the index."""
        return self.shots.write(path)


KeptShots = StoredShots | IndexedShots
