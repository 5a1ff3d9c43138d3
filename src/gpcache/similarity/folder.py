"""The projection folder: the weights of a projection and the facts about how it was learned."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from gpcache import __version__
from gpcache.errors import DataError, ModelFileError
from gpcache.similarity.projection import ProjectionFacts, SimilarityProjection
from gpcache.support.array_folders import (
    PROJECTION,
    check_place,
    is_projection,
    load_folder,
    save_folder,
)


def save_projection(
    folder: str | Path, projection: SimilarityProjection, facts: ProjectionFacts
) -> None:
    """Write config.json, model.safetensors and README.md in one step."""
    check_projection_place(folder)
    config = {"gpcache": __version__, "kind": PROJECTION, "residual": projection.residual}
    weights = enumerate(projection.weights)
    arrays = {f"weights{number}": weight.detach().cpu().numpy() for number, weight in weights}
    save_folder(folder, config | asdict(facts), arrays, _card(projection, facts))


def check_projection_place(folder: str | Path) -> None:
    """Refuse a place that holds something other than a projection, such as a classifier."""
    place = check_place(folder)
    if place.exists() and any(place.iterdir()) and not is_projection(place):
        raise DataError(f"{str(place)!r} is a model of another kind: choose another name.")


def load_projection(folder: str | Path) -> tuple[SimilarityProjection, ProjectionFacts]:
    """Read a projection folder; a damaged one, or one of another kind, is refused.

    The projection holds its facts, so that an estimator or a classifier can report them.
    """
    config, arrays = load_folder(folder)
    if config.get("kind") != PROJECTION:
        raise ModelFileError(
            f"{str(folder)!r} is not a similarity projection: make one with gpcache project."
        )
    weights = tuple(torch.from_numpy(arrays[name]) for name in sorted(arrays))
    facts = ProjectionFacts(**{name: config[name] for name in ProjectionFacts.__dataclass_fields__})
    return SimilarityProjection(weights, config["residual"], facts), facts


def open_projection(
    projection: str | Path | SimilarityProjection | None,
) -> SimilarityProjection | None:
    """Return a projection, or load it from its folder."""
    return load_projection(projection)[0] if isinstance(projection, str | Path) else projection


def _card(projection: SimilarityProjection, facts: ProjectionFacts) -> str:
    source = {
        "contrastive": "learned by a contrastive loss",
        "whitening": "a whitening of how views of one image differ",
    }[facts.source]
    lines = [
        "# Similarity projection",
        "",
        f"φ(f) = normalise(M f + f) for features of the encoder `{facts.encoder}` (fingerprint "
        f"`{facts.fingerprint[:12]}`), {source}, from {facts.images:,} unlabelled images with "
        f"{facts.views} views each. It has {projection.dim} columns, and turns those images' "
        f"features by a mean sine of {facts.change:.3f}.",
        "",
    ]
    if facts.transductive:
        lines += [
            "**Transductive:** these are the test images. Figures on them say nothing about later "
            "images.",
            "",
        ]
    lines += [f"- {name}: {value}" for name, value in facts.options.items()]
    if facts.history:
        losses = ", ".join(f"{loss:.4f}" for loss in facts.history)
        lines += ["", f"Mean loss of an image in each epoch: {losses}."]
    return "\n".join(lines) + "\n"
