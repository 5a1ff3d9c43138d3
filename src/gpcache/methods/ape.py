"""APE and APE-T (Zhu et al., ICCV 2023): a cache on the channels that separate classes.

    J = −w₀ · S + w₁ · V        the Q channels of largest J are kept: f′, F′, W′, scaled to length 1
    logits = s · f W + α · exp(−β(1 − f′ F′ᵀ)) diag(exp(γ D)) Y

S_j is the mean product of channel j over vectors (text and shots) of different classes, V_j its
variance over the class names. D_i = KL from a shot's zero-shot prediction to its label, in bits.
The authors write S as four nested loops; with T = Σ_a t_a over class means t_a it is
(T² − Σ_a t_a²) / (c(c − 1)), which also holds for unequal shots.

APE-T trains one residual for the text and the shots of a class:

    W̃ = W + R, F̃_i = F_i + R_{y_i}, on the Q channels of largest J; the others stay as they are
    logits = s · f W̃ + α · exp(−β(1 − f F̃ᵀ)) diag(v) Y

R (c, Q) starts at 0 and v (n) at 1 (with unequal shots, at their mean count over that of the
class): training starts at Tip-Adapter, at the paper's first α and β. With a validation set both are
searched after training. (Starting at the values that held-out shots choose for Tip-Adapter is
worse: few shots choose a narrow kernel, and the keys then learn nothing.) Here J is that of the
text only. Nothing is scaled back to length one. A class without shots keeps its text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.feature_maps import Projection
from gpcache.gp.kernels import kernel, unit_rows
from gpcache.methods.additive import AdditiveClassifier, HyperParameters, neutral
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.trained_head import Parameters, TrainedHeadClassifier
from gpcache.metrics import fit_scales, smoothed_nll
from gpcache.support.checks import is_auto, positive

PUBLICATION = (
    "Zhu et al., 2023, Not All Features Matter: Enhancing Few-shot CLIP with Adaptive Prior"
)
EPSILON = 1e-6
# The paper starts at β = 1 everywhere and at α between 0.8 and 5.
ALPHA, BETA = 2.0, 1.0
# Values to try after training, as multiples of β.
BETA_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


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

    publication = PUBLICATION
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
        text, _ = self._unit_text_and_scale()
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


@dataclass(kw_only=True, eq=False, repr=False)
class APETClassifier(TrainedHeadClassifier):
    """APE-T: keys and text share trained residuals on selected channels (Zhu et al., 2023).

    Parameters
    ----------
    text_prior : TextPrior
        Text vectors of the classes; required.
    alpha : float or "auto", default="auto"
        Weight of the cache. "auto" starts at the value of the paper, and is searched again on a
        validation set.
    beta : float or "auto", default="auto"
        Sharpness of the kernel, as `alpha`.
    channels : float, default=0.8
        Share of the channels that are trained.
    criterion_weights : tuple of float, default=(0.2, 0.8)
        Weights of inter-class similarity and of text variance when channels are selected.
    epochs : int, default=30
        Number of epochs.
    batch_size : int, default=256
        Number of rows in a step.
    learning_rate : float, default=1e-3
        Initial learning rate of AdamW with a cosine schedule.
    weight_decay : float, default=0.1
        Weight decay.
    calibrate : bool, default=True
        Train in folds of the shots as well, to fit the temperature.
    n_folds : int, default=4
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
    >>> from gpcache.methods import APETClassifier, TextPrior
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = APETClassifier(text_prior=prior).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    alpha: float | Auto = "auto"
    beta: float | Auto = "auto"
    channels: float = 0.8
    criterion_weights: tuple[float, float] = (0.2, 0.8)
    epochs: int = 30
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    calibrate: bool = True
    n_folds: int = 4
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = PUBLICATION
    trains = True
    needs = ("text", "shots")
    _epsilon: ClassVar[float] = 1e-3

    def _take(self, parameters: Parameters) -> None:
        """Set the trained parameters."""
        super()._take(parameters)
        self.alpha_, self.beta_ = parameters[-1].tolist()

    def _check_options(self) -> None:
        super()._check_options()
        if not is_auto(self.alpha):
            positive("alpha", self.alpha, owner=self, allow_zero=True)
        if not is_auto(self.beta):
            positive("beta", self.beta, owner=self)

    def _prepare(self) -> None:
        self.alpha_ = ALPHA if is_auto(self.alpha) else float(self.alpha)
        self.beta_ = BETA if is_auto(self.beta) else float(self.beta)

    def _trained_parts(self, shots: Shots) -> tuple[Parameters, Callable[[], Parameters]]:
        text = self._unit_text
        merit = channel_merit(None, text, *self.criterion_weights)
        channels = best_channels(merit, self.channels, owner=self)
        numbers = text.new_tensor([self.alpha_, self.beta_])
        residual = text.new_zeros(len(text), len(channels)).requires_grad_()
        # Classes start with equal weight, whatever their number of shots.
        counts = torch.bincount(shots.labels, minlength=len(text)).to(text)
        trust = (counts[counts > 0].mean() / counts[shots.labels]).clone().requires_grad_()
        has_shots = (counts > 0).to(text)[:, None]

        def moved() -> Parameters:
            step = torch.zeros_like(text).index_copy(1, channels, has_shots * residual)
            return [text + step, shots.features + step[shots.labels], trust, shots.labels, numbers]

        return [residual, trust], moved

    def _head(self, parameters: Parameters, features: Tensor) -> Tensor:
        alpha, beta = parameters[-1].tolist()
        votes = _votes(parameters, features, beta)
        return torch.add(self._zero_shot(parameters, features), votes, alpha=alpha)

    def _zero_shot(self, parameters: Parameters, features: Tensor) -> Tensor:
        return self._logit_scale * features @ parameters[0].mT

    def _calibrate(self, shots: Shots, validation: Any) -> None:
        if validation is not None:
            self._search(*self._read_validation(validation))
        super()._calibrate(shots, validation)

    @torch.no_grad()
    def _search(self, features: Tensor, labels: Tensor) -> None:
        """Choose α and β by the NLL of rows (m, d), after training."""
        zero_shot = self._zero_shot(self.parameters_, features)
        factors = BETA_FACTORS if is_auto(self.beta) else (1.0,)
        tried = []
        for beta in (factor * self.beta_ for factor in factors):
            votes = _votes(self.parameters_, features, beta)
            alpha = self.alpha_
            if is_auto(self.alpha):
                scales, _ = fit_scales(votes[None, None], labels, offset=zero_shot)
                alpha = float(scales)
            tried.append((float(smoothed_nll(zero_shot + alpha * votes, labels)), alpha, beta))
        _, self.alpha_, self.beta_ = min(tried)
        self.parameters_[-1] = self.parameters_[-1].new_tensor([self.alpha_, self.beta_])


def _votes(parameters: Parameters, features: Tensor, beta: float) -> Tensor:
    """exp(−β(1 − f F̃ᵀ)) diag(v) Y (m, c)."""
    text, keys, trust, labels, _ = parameters
    values = torch.nn.functional.one_hot(labels, len(text)).to(features)
    votes = kernel(features, keys, beta) * trust @ values
    return neutral(votes, torch.bincount(labels, minlength=len(text)) == 0)
