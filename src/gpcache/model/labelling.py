"""Suggests which images of a folder to label next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from gpcache.encoders import load_encoder
from gpcache.errors import DataError
from gpcache.features.extract import gather
from gpcache.images.records import Refused
from gpcache.images.sources import open_source
from gpcache.model.classifier import ImageClassifier
from gpcache.model.suggest import suggest

if TYPE_CHECKING:
    from gpcache.methods.cache.estimator import CacheClassifier


class SuggestedImages(NamedTuple):
    """Names and scores of the suggested images, the best first, and the files that were refused."""

    names: list[str]
    scores: list[float]
    refused: list[Refused]


def suggest_images(
    pool: Path,
    count: int,
    *,
    model: Path | None = None,
    encoder: str = "lite",
    device: str = "auto",
) -> SuggestedImages:
    """Choose at most `count` images of `pool`; `encoder` is used if there is no model."""
    fitted = None
    if model is None:
        network = load_encoder(encoder, device=device)
    else:
        classifier = ImageClassifier.load(model, device=device)
        if not classifier.model.has_keys:
            raise DataError(
                f"The method of {str(model)!r} keeps no cache to suggest from: "
                "fit it with --method gpcache."
            )
        fitted, network = cast("CacheClassifier", classifier.model), classifier.encoder_
    gathered = gather(open_source(pool.resolve()), network)
    if not gathered.records:
        raise DataError(f"There is no image that can be read in {str(pool)!r}.")
    rows, scores = suggest(gathered.features, min(count, len(gathered.records)), model=fitted)
    names = [gathered.records[row].name for row in rows]
    return SuggestedImages(names, scores.tolist(), gathered.refused)
