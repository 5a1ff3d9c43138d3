"""SimilarityProjection: φ(f) = normalise(P f + f), the map that image similarity is taken in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gpcache.encoders.lite import current_name
from gpcache.errors import DataError, EncoderError
from gpcache.gp.kernels import unit_rows

if TYPE_CHECKING:
    from gpcache.encoders import Encoder


@dataclass(frozen=True)
class ProjectionFacts:
    """Where a projection came from.

    `change` is how far it turns those images' features; `transductive` that they are the images
    that are to be judged.
    """

    source: Literal["contrastive", "whitening"]
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


@dataclass(frozen=True, eq=False)
class SimilarityProjection:
    """A linear map of features and unit length; applied to rows (m, d) by a call.

    `weights` is a matrix P (d, d), or its factors down (d/q, d) and up (d, d/q), P = up · down.
    Without the residual φ(f) = normalise(P f). `facts` say where it came from, if that is known.
    """

    weights: tuple[Tensor, ...]
    residual: bool = True
    facts: ProjectionFacts | None = None

    def __post_init__(self) -> None:
        shapes = [tuple(weight.shape) for weight in self.weights]
        # One square matrix is its own transpose in shape; two factors are each other's.
        paired = len(shapes) in (1, 2) and shapes[0] == shapes[-1][::-1]
        if not paired or len(shapes[0]) != 2:
            raise DataError(
                "A similarity projection is one matrix (d, d), or two of shapes (k, d) and (d, k): "
                f"got {', '.join(map(str, shapes)) or 'none'}."
            )
        if not all(bool(torch.isfinite(weight).all()) for weight in self.weights):
            raise DataError("The similarity projection holds NaN or inf.")

    @property
    def dim(self) -> int:
        """The width d of the features."""
        return self.weights[0].shape[1]

    @property
    def matrix(self) -> Tensor:
        """M (d, d) with φ(f) = normalise(M f + f), as the estimators' `projection` takes it."""
        product = _product(self.weights)
        return product if self.residual else product - torch.eye(self.dim).to(product)

    def require_encoder(self, encoder: Encoder) -> None:
        """Refuse an encoder other than the one it was learned for, as far as that is known."""
        if self.facts is not None:
            self.facts.require_encoder(encoder)

    def __call__(self, features: Tensor) -> Tensor:
        if features.shape[-1] != self.dim:
            raise DataError(
                f"The projection is for features of {self.dim} columns, got {features.shape[-1]}."
            )
        full = linear_map(self.weights, residual=self.residual)
        return unit_rows(features @ full.to(features).mT)


def linear_map(weights: tuple[Tensor, ...], *, residual: bool) -> Tensor:
    """A (d, d) with φ(f) = normalise(A f): P + I with the residual, else P. Differentiable."""
    product = _product(weights)
    return product + torch.eye(len(product)).to(product) if residual else product


def identity_weights(dim: int, *, bottleneck: int, residual: bool, seed: int) -> tuple[Tensor, ...]:
    """Weights to begin with, φ(f) = f.

    A product of factors has two ways to be zero: `up` is, as `down` must pass gradients on. Without
    the residual a bottleneck cannot be the identity, and begins as it on a random subspace.
    """
    if bottleneck == 1:
        return (torch.zeros(dim, dim) if residual else torch.eye(dim),)
    width = dim // bottleneck
    if width < 1:
        raise DataError(f"A bottleneck of {bottleneck} leaves nothing of {dim} columns.")
    generator = torch.Generator().manual_seed(seed)
    orthonormal, _ = torch.linalg.qr(torch.randn(dim, width, generator=generator))
    down = orthonormal.mT.contiguous()
    return down, (torch.zeros(dim, width) if residual else orthonormal.contiguous())


def change(projection: SimilarityProjection, features: Tensor) -> float:
    """How far features (m, d) are turned: the mean sine of the angle between f and φ(f).

    On features, not of the matrix: a faint matrix along the mean of all features, where most of
    their length lies, changes every cosine.
    """
    cosines = (unit_rows(features) * projection(features)).sum(1)
    return float((1 - cosines.square()).clamp(min=0).sqrt().mean())


def _product(weights: tuple[Tensor, ...]) -> Tensor:
    return weights[0] if len(weights) == 1 else weights[1] @ weights[0]


def origin(facts: ProjectionFacts | None) -> str:
    """Where a projection came from, in a few words; None means that nobody knows."""
    if facts is None:
        return "of unknown origin"
    words = f"{facts.source}, from {facts.images:,} unlabelled images with {facts.views} views each"
    if facts.transductive:
        words += "; transductive: those are the images to be judged"
    return words
