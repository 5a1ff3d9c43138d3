"""The projection folder: a learned similarity with all that says where it came from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from gpcache import __version__
from gpcache.encoders import Encoder
from gpcache.errors import DataError, EncoderError, ModelFileError
from gpcache.persistence import check_place, load_folder, save_folder
from gpcache.similarity.projection import SimilarityProjection

KIND = "similarity projection"

Source = Literal["contrastive", "whitening"]


@dataclass(frozen=True)
class ProjectionFacts:
    """Where a projection came from.

    `change` is how far it turns those images' features; `transductive` that they are the images
    that are to be judged.
    """

    source: Source
    encoder: str
    fingerprint: str
    images: int
    views: int
    change: float
    transductive: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    history: list[float] = field(default_factory=list)

    def require_encoder(self, encoder: Encoder) -> None:
        """Refuse an encoder other than the one whose features were projected."""
        if encoder.fingerprint != self.fingerprint:
            raise EncoderError(
                f"The projection was learned on features of {self.encoder!r} (fingerprint "
                f"{self.fingerprint[:12]}), not of {encoder.name!r} ({encoder.fingerprint[:12]}): "
                "learn one for this encoder with gpcache project."
            )


def save_projection(
    folder: str | Path, projection: SimilarityProjection, facts: ProjectionFacts
) -> None:
    """Write config.json, model.safetensors and README.md in one step."""
    check_projection_place(folder)
    config = {
        "gpcache": __version__,
        "kind": KIND,
        "residual": projection.residual,
        **asdict(facts),
    }
    arrays = {
        f"weights{number}": weight.detach().cpu().numpy()
        for number, weight in enumerate(projection.weights)
    }
    save_folder(folder, config, arrays, _card(projection, facts))


def check_projection_place(folder: str | Path) -> None:
    """Refuse a place that holds something other than a projection, such as a classifier."""
    place = check_place(folder)
    if place.exists() and any(place.iterdir()) and load_folder(place)[0].get("kind") != KIND:
        raise DataError(f"{str(place)!r} is a model of another kind: choose another name.")


def load_projection(folder: str | Path) -> tuple[SimilarityProjection, ProjectionFacts]:
    """Read a projection folder; nothing of a damaged one or of another kind is used."""
    config, arrays = load_folder(folder)
    if config.get("kind") != KIND:
        raise ModelFileError(
            f"{str(folder)!r} is no similarity projection: make one with gpcache project."
        )
    weights = tuple(torch.from_numpy(arrays[name]) for name in sorted(arrays))
    facts = {name: config[name] for name in ProjectionFacts.__dataclass_fields__}
    return SimilarityProjection(weights, config["residual"]), ProjectionFacts(**facts)


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
            "**Transductive:** these are the images that are to be judged. Figures on them say "
            "nothing about images that come later.",
            "",
        ]
    lines += [f"- {name}: {value}" for name, value in facts.options.items()]
    if facts.history:
        losses = ", ".join(f"{loss:.4f}" for loss in facts.history)
        lines += ["", f"Mean loss of an image in each epoch: {losses}."]
    return "\n".join(lines) + "\n"
