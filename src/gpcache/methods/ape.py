"""APE (Zhu et al., ICCV 2023), training-free: a cache on the channels that separate classes.

    J = −w₀ · S + w₁ · V        the Q channels of largest J are kept: f′, F′, W′, scaled to length 1
    logits = s · f W + α · exp(−β(1 − f′ F′ᵀ)) diag(exp(γ D)) Y

S_j is the mean product of channel j over vectors (text and shots) of different classes, V_j its
variance over the class names. D_i = KL from a shot's zero-shot prediction to its label, in bits.
The authors write S as four nested loops; with T = Σ_a t_a over class means t_a it is
(T² − Σ_a t_a²) / (c(c − 1)), which also holds for unequal shots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.feature_maps import Projection
from gpcache.gp.kernels import kernel, unit_rows
from gpcache.methods.additive import AdditiveClassifier, HyperParameters
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.support.checks import positive

EPSILON = 1e-6


@dataclass(kw_only=True, eq=False, repr=False)
class APEClassifier(AdditiveClassifier):
    """APE: Tip-Adapter on selected channels (Zhu et al., 2023).

    A shot gets more weight the further the zero-shot prediction is from its label.

    Parameters
    ----------
    text_prior : TextPrior
        Text vectors of the classes; required.
    alpha : float or "auto", default="auto"
        Weight of the cache.
    beta : float or "auto", default="auto"
        Sharpness of the kernel.
    gamma : float or "auto", default="auto"
        How much more weight unexpected shots get.
    channels : float, default=0.7
        Share of the channels that are kept.
    criterion_weights : tuple of float, default=(0.5, 0.5)
        Weights of inter-class similarity and of text variance when channels are selected.
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
    >>> from gpcache.methods import APEClassifier, TextPrior
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = APEClassifier(text_prior=prior).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    alpha: float | Auto = "auto"
    beta: float | Auto = "auto"
    gamma: float | Auto = "auto"
    channels: float = 0.7
    criterion_weights: tuple[float, float] = (0.5, 0.5)
    projection: Projection | ArrayLike | None = None
    criterion: Literal["nll", "accuracy"] = "nll"
    selection: Literal["auto", "folds", "validation"] = "auto"
    n_folds: int = 8
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = (
        "Zhu et al., 2023, Not All Features Matter: Enhancing Few-shot CLIP with Adaptive Prior"
    )
    needs = ("text", "shots")
    _weights: ClassVar[dict[str, Sequence[float]]] = {
        "alpha": tuple(0.1 + step * (7 - 0.1) / 20 for step in range(20))
    }
    _shapes: ClassVar[dict[str, Sequence[float]]] = {
        "beta": (5.5, 0.1, 1.0, 2.0, 3.5, 7.0, 10.0, 20.0),
        "gamma": (0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
    }
    learns_from_views: ClassVar[bool] = False
    _defaults: ClassVar[HyperParameters] = {"alpha": 2.0, "beta": 0.5, "gamma": 0.4}

    def _learn(self, shots: Shots) -> Refined:
        assert self.text_prior is not None
        assert self._text is not None
        text = self._text / self.text_prior.logit_scale
        merit = channel_merit(shots, text, *self.criterion_weights)
        return Refined(shots, text, best_channels(merit, self.channels, owner=self))


def best_channels(merit: Tensor, share: float, *, owner: object) -> Tensor:
    """The channels (Q,) of largest merit (d,), as many as their share says."""
    share = positive("channels", share, owner=owner, auto=False)
    if share > 1:
        raise DataError(f"channels of {type(owner).__name__} is a share of at most 1, got {share}.")
    return merit.topk(max(1, round(share * len(merit)))).indices


def channel_merit(shots: Shots | None, text: Tensor, likeness: float, variance: float) -> Tensor:
    """J (d,): how well each channel separates classes; without shots, from the text only."""
    classes, means = len(text), text
    if shots is not None:
        sums = text.index_add(0, shots.labels, shots.features)
        counts = torch.bincount(shots.labels, minlength=classes).to(text) + 1
        means = sums / counts[:, None]
    between = means.sum(0).square() - means.square().sum(0)
    alike = between / max(1, classes * (classes - 1))
    spread = text.var(0) if classes > 1 else torch.zeros_like(alike)
    return variance * spread - likeness * alike


class Refined:
    """The shots in the kept channels, and how far each is from its zero-shot prediction."""

    def __init__(self, shots: Shots, text: Tensor, channels: Tensor) -> None:
        self._channels = channels
        self._keys = unit_rows(shots.features[:, channels])
        self._values = torch.nn.functional.one_hot(shots.labels, len(text)).to(text)
        probabilities = (self._keys @ unit_rows(text[:, channels]).mT).softmax(1)
        rows = torch.arange(len(probabilities), device=probabilities.device)
        self._surprise = torch.log2((1 + EPSILON) / (probabilities[rows, shots.labels] + EPSILON))

    def scores(self, features: Tensor, hyper_parameters: HyperParameters) -> Tensor:
        """The vote of the shots (1, m, c)."""
        weighted = (hyper_parameters["gamma"] * self._surprise).exp()[:, None] * self._values
        queries = unit_rows(features[:, self._channels])
        return (kernel(queries, self._keys, hyper_parameters["beta"]) @ weighted)[None]
