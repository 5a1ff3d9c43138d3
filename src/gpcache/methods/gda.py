"""GDA (Wang et al., ICLR 2024): a linear discriminant of the shots, added to the text.

    w_y = P μ_y        b_y = −½ μ_yᵀ P μ_y − log c        P = d · [(N − 1) Σ̂ + tr(Σ̂) · I]⁻¹
    logits = s · f W + α · (f [w_1 … w_c] + b)

μ are class means and Σ̂ is the covariance within classes, over all N samples: every augmented view
of a shot is a separate sample. The authors choose α on the full validation set; on ImageNet this is
the test set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.gp.feature_maps import Projection, within_class
from gpcache.methods.additive import AdditiveClassifier, HyperParameters
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior


@dataclass(kw_only=True, eq=False, repr=False)
class GDAClassifier(AdditiveClassifier):
    """Gaussian discriminant analysis with one shrunk precision matrix (Wang et al., 2024).

    Parameters
    ----------
    text_prior : TextPrior, optional
        Text vectors of the classes. Without it, only the discriminant decides.
    alpha : float or "auto", default="auto"
        Weight of the discriminant.
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
    >>> from gpcache.methods import GDAClassifier, TextPrior
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = GDAClassifier(text_prior=prior).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    alpha: float | Auto = "auto"
    projection: Projection | ArrayLike | None = None
    criterion: Literal["nll", "accuracy"] = "nll"
    selection: Literal["auto", "folds", "validation"] = "auto"
    n_folds: int = 8
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = (
        "Wang et al., 2024, A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation"
    )
    _weights: ClassVar[dict[str, Sequence[float]]] = {
        "alpha": tuple(10.0**power for power in range(-4, 3))
    }
    _defaults: ClassVar[HyperParameters] = {"alpha": 0.02}

    def _learn(self, shots: Shots) -> GaussianScores:
        samples, labels = shots.samples()
        return GaussianScores.of(samples, labels, shots.n_classes)


class GaussianScores(NamedTuple):
    """A linear score (c, d) and its offset (c,); a class without a sample has score 0."""

    weight: Tensor
    offset: Tensor

    @classmethod
    def of(cls, samples: Tensor, labels: Tensor, classes: int) -> GaussianScores:
        """The discriminant of samples (N, d)."""
        n, d = samples.shape
        counts = torch.bincount(labels, minlength=classes).to(samples)
        sums = samples.new_zeros(classes, d).index_add(0, labels, samples)
        means = sums / counts.clamp(min=1)[:, None]
        centred = within_class(samples, labels)
        scatter = centred.mT @ centred  # (N − 1) Σ̂
        eye = torch.eye(d, dtype=samples.dtype, device=samples.device)
        spread = scatter.trace() / max(1, n - 1)
        if float(spread) <= torch.finfo(samples.dtype).eps:
            # With one sample a class the scatter is unknown: weight all directions equally.
            weight = d * means
        else:
            weight = d * torch.linalg.solve(scatter + spread * eye, means.mT).mT
        offset = -0.5 * (weight * means).sum(1) - math.log(classes)
        has_shots = counts > 0
        return cls(weight * has_shots[:, None], offset * has_shots)

    def scores(self, features: Tensor, hyper_parameters: HyperParameters) -> Tensor:
        """(1, m, c)."""
        return (features @ self.weight.mT + self.offset)[None]
