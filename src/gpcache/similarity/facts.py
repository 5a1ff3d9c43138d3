"""ProjectionFacts: where a similarity projection came from, as it is saved and told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gpcache.encoders.lite import current_name
from gpcache.errors import EncoderError

if TYPE_CHECKING:
    from gpcache.encoders import Encoder

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
            name = current_name(self.encoder, self.fingerprint)
            raise EncoderError(
                f"The projection was learned on features of {name!r} (fingerprint "
                f"{self.fingerprint[:12]}), not of {encoder.name!r} ({encoder.fingerprint[:12]}): "
                "learn one for this encoder with gpcache project."
            )


def told(facts: ProjectionFacts | None) -> str:
    """Where a projection came from, in a few words; None is one that does not say."""
    if facts is None:
        return "of unknown origin"
    words = f"{facts.source}, from {facts.images:,} unlabelled images with {facts.views} views each"
    if facts.transductive:
        words += "; transductive: those are the images to be judged"
    return words
