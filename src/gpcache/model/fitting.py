"""Fits a classifier on a folder or list of images and saves it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpcache.errors import DataError
from gpcache.features.manifest import NAME as STORE
from gpcache.features.store import FeatureStore
from gpcache.images.records import Source
from gpcache.images.sources import open_source
from gpcache.model.audit import Finding
from gpcache.model.classifier import ImageClassifier
from gpcache.model.files import check_model_place
from gpcache.model.learning import Engine

logger = logging.getLogger(__name__)


class FitSummary(NamedTuple):
    """The training images whose label is probably wrong, and how long everything took."""

    suspects: list[Finding]
    seconds: float


def fit_and_save(
    classifier: ImageClassifier,
    images: Path,
    folder: Path,
    *,
    shots: int | None = None,
    seed: int = 0,
    classes: Sequence[str] = (),
    follow: bool = False,
    thumbnails: bool = False,
    replace: bool = False,
    engine: Engine = "local",
) -> FitSummary:
    """Fit on the images of a folder or list, save the model in `folder`, and check the labels.

    `shots`, `seed`, `classes` and `engine` are those of ImageClassifier.fit. `follow` allows links
    that leave the folder; `thumbnails` keeps small pictures in the model; `replace` lets it take
    the place of another model.
    """
    check_new_model(folder, replace=replace)
    start = time.perf_counter()
    source: Source | FeatureStore
    if (images / STORE).is_file():
        source = FeatureStore.open(images.resolve())
    else:
        source = open_source(images.resolve(), follow=follow)
        logger.info("%r: %s images, %d classes", source.name, source.total, len(source.classes))
    classifier.fit(source, shots=shots, seed=seed, classes=classes, engine=engine)
    logger.info("fitted %s on %s", classifier.method_name, classifier.encoder_name)
    classifier.save(folder, thumbnails=thumbnails)
    logger.info("saved %r", str(folder))
    return FitSummary(classifier.suspects(), time.perf_counter() - start)


def check_new_model(folder: Path, *, replace: bool) -> None:
    """Refuse a place where a model is already, unless it may be replaced, or something else."""
    check_model_place(folder)
    if not replace and folder.is_dir() and any(folder.iterdir()):
        raise DataError(
            f"There is a model in {str(folder)!r} already: choose another name, or add --force to "
            "replace it."
        )
