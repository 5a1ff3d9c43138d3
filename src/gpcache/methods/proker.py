"""ProKeR (Bendou et al., CVPR 2025): kernel ridge regression on the residuals of the text.

    R = Y − F W        a = (K / λ + I)⁻¹ R        logits = s · (f W + k(f) a)

with cosines F W, not logits, in the residual. As (K/λ + I)⁻¹ = λ (K + λI)⁻¹, this is the mean of a
Gaussian process whose prior mean is the text, multiplied by λ: λ is both the noise and the weight
of the cache. The authors use every view of a shot as a separate key, and choose β and λ on the
validation set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.gp.cholesky import cholesky, solve
from gpcache.gp.feature_maps import Projection
from gpcache.gp.kernels import gram, kernel
from gpcache.methods.additive import AdditiveClassifier, HyperParameters
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.support.devices import ensure_memory


@dataclass(kw_only=True, eq=False, repr=False)
class ProKeRClassifier(AdditiveClassifier):
    """ProKeR: kernel ridge regression around the zero-shot logits (Bendou et al., 2025).

    Parameters
    ----------
    text_prior : TextPrior
        Text vectors of the classes; required.
    beta : float or "auto", default="auto"
        Sharpness of the kernel.
    lam : float or "auto", default="auto"
        Ridge penalty.
    alpha : float or "auto", default=1.0
        Weight of the correction, on the scale of the text logits; 1 in the paper.
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
    >>> from gpcache.methods import ProKeRClassifier, TextPrior
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = ProKeRClassifier(text_prior=prior).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    beta: float | Auto = "auto"
    lam: float | Auto = "auto"
    alpha: float | Auto = 1.0
    projection: Projection | ArrayLike | None = None
    criterion: Literal["nll", "accuracy"] = "nll"
    selection: Literal["auto", "folds", "validation"] = "auto"
    n_folds: int = 8
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = "Bendou et al., 2025, ProKeR: A Kernel Perspective on Few-Shot Adaptation"
    needs = ("text", "shots")
    _weights: ClassVar[dict[str, Sequence[float]]] = {"alpha": (1.0,)}
    _shapes: ClassVar[dict[str, Sequence[float]]] = {
        "beta": (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
        "lam": (0.001, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    }
    _defaults: ClassVar[HyperParameters] = {"alpha": 1.0, "beta": 0.5, "lam": 0.1}
    _needs_shots_of_a_class: ClassVar[bool] = False

    def _learn(self, shots: Shots) -> Ridge:
        text, scale = self._unit_text_and_scale()
        keys, labels = shots.samples()
        values = torch.nn.functional.one_hot(labels, shots.n_classes).to(keys)
        residuals = values - keys @ text.mT
        # The shots say nothing about a class without shots.
        return Ridge(keys, residuals.masked_fill(shots.absent, 0), scale)


class Ridge:
    """Keys (n, d) with residuals (n, c); solved for each β and λ."""

    def __init__(self, keys: Tensor, residuals: Tensor, scale: float) -> None:
        n = len(keys)
        ensure_memory(
            3 * n * n * keys.element_size(),
            keys.device,
            what=f"ProKeR over {n:,} keys",
            remedy="Give it fewer shots, or their means instead of views.",
        )
        self._keys, self._residuals, self._scale = keys, residuals, scale

    def scores(self, features: Tensor, hyper_parameters: HyperParameters) -> Tensor:
        """s · k(f) (K/λ + I)⁻¹ R as (1, m, c)."""
        beta, lam = hyper_parameters["beta"], hyper_parameters["lam"]
        lifted = gram(self._keys, beta) / lam
        lifted.diagonal().add_(1.0)
        weights = solve(cholesky(lifted), self._residuals)
        return self._scale * (kernel(features, self._keys, beta) @ weights)[None]
