"""SimilarityProjection: φ(f) = normalise(P f + f), the map that image similarity is taken in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gpcache.encoders.lite_recipes import current_name
from gpcache.errors import DataError, EncoderError
from gpcache.gp.kernels import unit_rows

if TYPE_CHECKING:
    from gpcache.encoders import Encoder


@dataclass(frozen=True)
class ProjectionFacts:
    """Where a projection came from.

    Parameters
    ----------
    source : {"contrastive", "whitening"}
        How it was learned.
    encoder, fingerprint : str
        Name and fingerprint of the encoder of the features.
    images, views : int
        Number of images, and of views of each.
    change : float
        Mean sine of the angle between features before and after.
    transductive : bool, default=False
        Whether the images are those that will be tested on.
    options : dict
        Options of the learning.
    history : list of float
        Mean loss of each epoch.

    Examples
    --------
    >>> from gpcache.similarity import ProjectionFacts
    >>> ProjectionFacts("whitening", "lite", "0" * 64, 1000, 2, 0.1).transductive
    False
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
        """Check that an encoder is the one whose features were projected.

        Parameters
        ----------
        encoder : Encoder
            The encoder to check.

        Raises
        ------
        EncoderError
            If its fingerprint is another one.

        Examples
        --------
        >>> from gpcache import load_encoder
        >>> from gpcache.similarity import ProjectionFacts
        >>> encoder = load_encoder("lite")
        >>> facts = ProjectionFacts("whitening", "lite", encoder.fingerprint, 1000, 2, 0.1)
        >>> facts.require_encoder(encoder)
        """
        if encoder.fingerprint != self.fingerprint:
            name = current_name(self.encoder, self.fingerprint)
            raise EncoderError(
                f"The projection was learned on features of {name!r} (fingerprint "
                f"{self.fingerprint[:12]}), not of {encoder.name!r} ({encoder.fingerprint[:12]}): "
                "learn one for this encoder with gpcache project."
            )


@dataclass(frozen=True, eq=False)
class SimilarityProjection:
    """A linear map of features, followed by scaling to length one.

    Call it with rows of shape (m, d). φ(f) = normalise(P f + f), or normalise(P f) without the
    residual.

    Parameters
    ----------
    weights : tuple of Tensor
        The matrix P (d, d), or its factors of shapes (k, d) and (d, k).
    residual : bool, default=True
        Whether f is added.
    facts : ProjectionFacts, optional
        Where it came from.

    Raises
    ------
    DataError
        If the shapes do not match or a value is not finite.

    Examples
    --------
    >>> import torch
    >>> from gpcache.similarity import SimilarityProjection
    >>> SimilarityProjection((torch.zeros(2, 2),))(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
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
        """Number of columns of the features."""
        return self.weights[0].shape[1]

    @property
    def matrix(self) -> Tensor:
        """Matrix M (d, d) with φ(f) = normalise(M f + f), for `projection` of an estimator."""
        product = _product(self.weights)
        return product if self.residual else product - torch.eye(self.dim).to(product)

    def require_encoder(self, encoder: Encoder) -> None:
        """Check that the projection was learned for this encoder, if that is known.

        Parameters
        ----------
        encoder : Encoder
            The encoder to check.

        Examples
        --------
        >>> import torch
        >>> from gpcache import load_encoder
        >>> from gpcache.similarity import SimilarityProjection
        >>> SimilarityProjection((torch.zeros(2, 2),)).require_encoder(load_encoder("lite"))
        """
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
    """Initial weights, with φ(f) = f.

    Of two factors, `up` is zero, because `down` must pass on gradients. Without the residual a
    bottleneck cannot be the identity; it starts as the identity on a random subspace.
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

    It is measured on features, not on the matrix: even a small matrix along the mean of all
    features, where most of their length lies, changes every cosine.
    """
    cosines = (unit_rows(features) * projection(features)).sum(1)
    return float((1 - cosines.square()).clamp(min=0).sqrt().mean())


def _product(weights: tuple[Tensor, ...]) -> Tensor:
    return weights[0] if len(weights) == 1 else weights[1] @ weights[0]


def origin(facts: ProjectionFacts | None) -> str:
    """Where a projection came from, in a few words; None means that it is unknown."""
    if facts is None:
        return "of unknown origin"
    words = f"{facts.source}, from {facts.images:,} unlabelled images with {facts.views} views each"
    if facts.transductive:
        words += "; transductive: those are the test images"
    return words
