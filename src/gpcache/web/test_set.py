"""A test set: labelled photos that the model never learns from, and its predictions for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpcache.errors import DataError
from gpcache.images.records import Refused
from gpcache.model.answers import compared
from gpcache.model.classifier import REJECT, ImageClassifier
from gpcache.model.evaluation import Evaluation
from gpcache.model.report.build import build_report
from gpcache.model.report.content import Report
from gpcache.support.names import tidy_name
from gpcache.web.workspace import Workspace
from gpcache.web.workspace_folder import EncodedPhoto

MAX_PHOTOS = 5_000
NO_FOLDER = "it is not in a folder with the name of its class"


@dataclass
class TestSet:
    """The photos of a test set by hash, each with its class; kept while the server runs."""

    photos: dict[str, tuple[str, EncodedPhoto]] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)

    def add(self, paths: Sequence[str], read: Sequence[EncodedPhoto | Refused]) -> None:
        """Add photos; the folder of a photo is its class."""
        for path, photo in zip(paths, read, strict=True):
            label = tidy_name(path.split("/")[-2]) if "/" in path else ""
            if isinstance(photo, Refused):
                self.refused.append(photo)
            elif not label:
                self.refused.append(Refused(path, NO_FOLDER))
            elif len(self.photos) >= MAX_PHOTOS:
                self.refused.append(Refused(path, f"a test set holds {MAX_PHOTOS:,} photos"))
            else:
                self.photos[photo.hash] = (label, photo._replace(name=path))

    def state(self, workspace: Workspace) -> dict[str, Any]:
        """The figures of the model in use, or why there are none."""
        folders = {label for label, _ in self.photos.values()}
        return {
            "photos": len(self.photos),
            "refused": self.refused,
            "other_folders": sorted(folders - _classes(workspace)),
            "figures": self.evaluation(workspace).summary() if self._used(workspace) else None,
        }

    def evaluation(self, workspace: Workspace) -> Evaluation:
        """The predictions for photos that the model did not learn from, with their classes."""
        used = self._used(workspace)
        if not used:
            raise DataError(
                "The test set has no photo of these classes: give its folders the class names."
            )
        learner = workspace.learner
        rows = np.stack([photo.features for _, photo in used])
        names = [photo.name for _, photo in used]
        predicted = [one.prediction for one in learner.answer(rows, names, reject=REJECT)]
        classes = [str(name) for name in learner.ready().classes_]
        left_out = len(self.photos) - len(used)
        also = f"; {left_out} others are training photos or of another class" if left_out else ""
        return compared(
            predicted,
            [classes.index(label) for label, _ in used],
            classes,
            data="the test set",
            protocol=f"photos that were not trained on{also}",
        )

    def report(self, workspace: Workspace, classifier: ImageClassifier) -> Report:
        """The report of the model in use, which `classifier` is, on the test set."""
        photos = [photo for _, photo in self.photos.values()]
        seen = {photo.name: (photo.thumbnail, photo.features[None]) for photo in photos}
        return build_report(classifier, self.evaluation(workspace), seen.get, self.refused)

    def _used(self, workspace: Workspace) -> list[tuple[str, EncodedPhoto]]:
        learned = {photo.hash for photo in workspace.document.contents.labelled()}
        known = _classes(workspace)
        return [
            (label, photo)
            for key, (label, photo) in self.photos.items()
            if label in known and key not in learned
        ]


def _classes(workspace: Workspace) -> set[str]:
    return set(workspace.document.contents.class_names())
