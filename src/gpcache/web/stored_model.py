"""The model of a workspace on disk, so that answers do not change after a restart.

Hyper-parameters are chosen on the photos of one moment and kept while photos are added and removed:
they cannot be computed from the present photos.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from gpcache.encoders.vectors import Features
from gpcache.errors import ModelFileError
from gpcache.methods import State, TextPrior, restore, state_of
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.text_prior import same_text
from gpcache.support.array_folders import load_folder, save_folder
from gpcache.web.workspace_contents import Photo


class StoredModel(NamedTuple):
    """A model, its photos in its order, and on how many photos and classes it was chosen."""

    model: CacheClassifier
    photos: Sequence[Photo]
    fitted_on: int
    fitted_classes: int

    @classmethod
    def of(cls, model: CacheClassifier, photos: Sequence[Photo]) -> StoredModel:
        """A model that was fitted on these photos in this order."""
        return cls(model, photos, len(photos), len({photo.label for photo in photos}))

    def is_of(self, photos: Sequence[Photo], prior: TextPrior | None) -> bool:
        """Whether the model was fitted on exactly these photos and this text."""
        lessons = [photo.lesson for photo in photos]
        same_photos = lessons == [photo.lesson for photo in self.photos]
        return same_photos and same_text(self.model.text_prior, prior)

    def features(self) -> dict[str, Features]:
        """The features of its photos, by hash."""
        rows = self.model.fitted_.shots.features.float().cpu().numpy()
        return {photo.hash: row for photo, row in zip(self.photos, rows, strict=True)}


def write_model(folder: Path, stored: StoredModel) -> None:
    """Replace the model in one step, with checksums."""
    state = state_of(stored.model)
    config = {
        "kind": "workspace model",
        "model": state.settings,
        "photos": [asdict(photo) for photo in stored.photos],
        "fitted_on": stored.fitted_on,
        "fitted_classes": stored.fitted_classes,
    }
    save_folder(folder, config, state.arrays, card="")


def read_model(folder: Path, *, device: Any) -> StoredModel | None:
    """The model; None if none was written yet. A damaged one raises ModelFileError."""
    if not folder.exists():
        return None
    config, arrays = load_folder(folder)
    model = restore(State(config["model"], arrays), device=device)
    if not isinstance(model, CacheClassifier):
        raise ModelFileError(f"{str(folder)!r} holds no model of photos.")
    photos = [Photo(**one) for one in config["photos"]]
    return StoredModel(model, photos, config["fitted_on"], config["fitted_classes"])
