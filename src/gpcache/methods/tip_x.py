"""Tip-X (Udandarao et al., ICCV 2023) with few shots: Tip-Adapter plus similarity to the text.

    p(x) = softmax(x W / T), T = ½        M_j = KL(p(f) ‖ p(F_j))
    logits = s · f W + α · exp(−β(1 − f Fᵀ)) Y − γ · ψ(M) Y

ψ rescales M to the range of the cosines f Fᵀ. The authors take this range over the whole test
matrix, so an answer depends on the other queries, and over validation rows for the test rows. Here
both ranges are those between the shots, the same for every query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.gp.feature_maps import Projection
from gpcache.gp.kernels import kernel_of
from gpcache.methods.additive import AdditiveClassifier, HyperParameters
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior

TEMPERATURE = 0.5


@dataclass(kw_only=True, eq=False, repr=False)
class TipXClassifier(AdditiveClassifier):
    """Tip-X: each shot votes by image similarity and by similarity of text affinities.

    Udandarao et al., 2023 (SuS-X).

    Parameters
    ----------
    text_prior : TextPrior
        Text vectors of the classes; required.
    alpha : float or "auto", default="auto"
        Weight of the vote by image similarity.
    beta : float or "auto", default="auto"
        Sharpness of the image similarity.
    gamma : float or "auto", default="auto"
        Weight of the vote by text affinities.
    projection : callable or array of shape (d, d), optional
        Similarity projection that is applied to features first.
    criterion : {"nll", "accuracy"}, default="nll"
        Criterion to choose hyper-parameters by.
    selection : {"auto", "folds", "validation"}, default="auto"
        Choose hyper-parameters on folds of the shots or on a validation set. "auto" uses the
        validation set if `fit` gets one.
    n_folds : int, default=8
        Number of folds of the shots.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="auto"
        "auto" is float32 on a GPU and float64 on a CPU.
    random_state : int, default=0
        Seed of folds and batches.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.methods import TextPrior, TipXClassifier
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = TipXClassifier(text_prior=prior).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    alpha: float | Auto = "auto"
    beta: float | Auto = "auto"
    gamma: float | Auto = "auto"
    projection: Projection | ArrayLike | None = None
    criterion: Literal["nll", "accuracy"] = "nll"
    selection: Literal["auto", "folds", "validation"] = "auto"
    n_folds: int = 8
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = (
        "Udandarao et al., 2023, SuS-X: Training-Free Name-Only Transfer of Vision-Language Models"
    )
    needs = ("text", "shots")
    _weights: ClassVar[dict[str, Sequence[float]]] = {
        "alpha": tuple(0.1 + step * (50 - 0.1) / 20 for step in range(20)),
        "gamma": tuple(0.1 + step * (30 - 0.1) / 10 for step in range(10)),
    }
    _shapes: ClassVar[dict[str, Sequence[float]]] = {
        "beta": (5.5, 1.0, 2.0, 3.5, 8.0, 12.0, 20.0, 35.0, 50.0)
    }
    learns_from_views: ClassVar[bool] = False
    _defaults: ClassVar[HyperParameters] = {"alpha": 8.0, "gamma": 8.0, "beta": 8.0}

    def _learn(self, shots: Shots) -> TwoVotes:
        text, _ = self._unit_text_and_scale()
        return TwoVotes(shots.features, shots.one_hot, text)


class TwoVotes:
    """Keys (n, d), values (n, c) and unit text vectors (c, d)."""

    def __init__(self, keys: Tensor, values: Tensor, text: Tensor) -> None:
        self._keys, self._values, self._text = keys, values, text
        self._signature = self._log_signature(keys)
        cosines, divergences = self._compared(keys)
        self._cosine_range = float(cosines.min()), float(cosines.max())
        self._divergence_range = float(divergences.min()), float(divergences.max())

    def scores(self, features: Tensor, hyper_parameters: HyperParameters) -> Tensor:
        """The vote by similarity and, with its sign, the vote by divergence (2, m, c)."""
        cosines, divergences = self._compared(features)
        low, high = self._divergence_range
        share = (divergences - low) / max(high - low, torch.finfo(cosines.dtype).tiny)
        bottom, top = self._cosine_range
        likeness = bottom + share * (top - bottom)
        votes = (kernel_of(cosines, hyper_parameters["beta"]), -likeness)
        return torch.stack([vote @ self._values for vote in votes])

    def _log_signature(self, features: Tensor) -> Tensor:
        return (features @ self._text.mT / TEMPERATURE).log_softmax(1)

    def _compared(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and Kullback–Leibler divergences (m, n) of rows and keys."""
        signature = self._log_signature(features)
        negative_entropy = (signature.exp() * signature).sum(1, keepdim=True)
        return features @ self._keys.mT, negative_entropy - signature.exp() @ self._signature.mT
