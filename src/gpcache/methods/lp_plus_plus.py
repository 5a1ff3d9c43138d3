"""LP++ (Huang et al., CVPR 2024): a linear probe plus the text, with one text weight per class.

    logits = f · w_y + b_y + a_y · f · t_y

by full-batch gradient descent. The step sizes come from the Lipschitz constants of the loss, so no
learning rate is searched:

    w, b : 4 N / λ_max(FᵀF), with momentum 0.9
    a : N / (4 max_y Σ_i (f_i · t_y)²), at every tenth step

w starts at the class means, b at 0, and a, the same for all classes, at 2.5 s times the mean cosine
of a class's shots with its text (for CLIP, with s = 100, this is 250 times). The authors keep the
best epoch on a validation set; here the number of epochs is a hyper-parameter like the others. A
class without shots keeps its text: its w, b and a stay at their start.

The authors' code differs from this in three ways, which `as_published=True` follows: w starts at
the class sums (deliberately: the division by the count exists and is switched off), b at the random
start of torch's linear layer (its default), and the gradient of a is never set to zero, so every
tenth step takes the sum of all gradients so far (perhaps not deliberately).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.gp.feature_maps import Projection
from gpcache.methods.additive import AdditiveClassifier, HyperParameters, neutral
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.support.checks import is_auto, whole

MOMENTUM = 0.9
MIXTURE_EVERY = 10
MIXTURE_START = 2.5


@dataclass(kw_only=True, eq=False, repr=False)
class LPPlusPlusClassifier(AdditiveClassifier):
    """LP++: a linear probe blended with the text, class by class (Huang et al., 2024).

    Parameters
    ----------
    text_prior : TextPrior
        Text vectors of the classes; required.
    epochs : int or "auto", default="auto"
        Number of training steps.
    as_published : bool, default=False
        Start and step exactly as the code of the authors does.
    projection : callable or array of shape (d, d), optional
        Similarity projection that is applied to features first.
    criterion : {"nll", "accuracy"}, default="nll"
        Criterion to choose hyper-parameters by.
    selection : {"auto", "folds", "validation"}, default="auto"
        Choose hyper-parameters on folds of the shots or on a validation set. "auto" uses the
        validation set if `fit` gets one.
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
    >>> from gpcache.methods import LPPlusPlusClassifier, TextPrior
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = LPPlusPlusClassifier(text_prior=prior).fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    epochs: int | Auto = "auto"
    as_published: bool = False
    projection: Projection | ArrayLike | None = None
    criterion: Literal["nll", "accuracy"] = "nll"
    selection: Literal["auto", "folds", "validation"] = "auto"
    n_folds: int = 4
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = "Huang et al., 2024, LP++: A Surprisingly Strong Linear Probe for Few-Shot CLIP"
    trains = True
    needs = ("text", "shots")
    _weights: ClassVar[dict[str, Sequence[float]]] = {"alpha": (1.0,)}
    _shapes: ClassVar[dict[str, Sequence[float]]] = {
        "epochs": (10.0, 20.0, 40.0, 70.0, 100.0, 150.0, 200.0, 300.0)
    }
    _defaults: ClassVar[HyperParameters] = {"alpha": 1.0, "epochs": 20.0}
    _needs_shots_of_a_class: ClassVar[bool] = False
    # The text is inside its scores, weighted by a.
    _uses_text: ClassVar[bool] = False
    alpha = 1.0  # its logits are what they are

    def _learn(self, shots: Shots) -> Blend:
        if not is_auto(self.epochs):
            whole("epochs", self.epochs, least=0)
        text, scale = self._unit_text_and_scale()
        samples, labels = shots.samples()
        seed = int(self.random_state) if self.as_published else None
        return Blend(samples, labels, text, MIXTURE_START * scale, seed)


class TrainedProbe(NamedTuple):
    """w (c, d), b (c,) and a (c,)."""

    weight: Tensor
    offset: Tensor
    mixture: Tensor


class Blend:
    """Samples (N, d) with labels (N,) and unit text (c, d), trained for as many epochs as needed.

    With a `seed` it starts and steps as the authors' code does.
    """

    def __init__(
        self, samples: Tensor, labels: Tensor, text: Tensor, start: float, seed: int | None = None
    ) -> None:
        self._samples, self._text = samples, text
        self._cosines = samples @ text.mT
        self._targets = torch.nn.functional.one_hot(labels, len(text)).to(samples)
        counts = self._targets.sum(0)
        self._seen = (counts > 0).to(samples)
        # A class without samples has sums of 0, and so has its mean.
        shares = self._targets / counts.clamp(min=1)
        likeness = (shares * self._cosines).sum() / self._seen.sum()
        largest = torch.linalg.matrix_norm(samples, 2).square()
        self._step = 4 * len(samples) / largest
        self._mixture_step = len(samples) / (4 * self._cosines.square().sum(0).max())
        self._as_published = seed is not None
        weight, offset = shares.mT @ samples, text.new_zeros(len(text))
        if seed is not None:
            draw = torch.rand(len(text), generator=torch.Generator().manual_seed(seed))
            offset = (2 * draw - 1).to(text) / samples.shape[1] ** 0.5 * self._seen
            weight = self._targets.mT @ samples
        self._now = TrainedProbe(weight, offset, torch.full_like(counts, start) * likeness)
        self._mixture_gradient = torch.zeros_like(counts)
        self._speed = torch.zeros_like(self._now.weight), torch.zeros_like(self._now.offset)
        self._epoch = 0
        self._reached: dict[int, TrainedProbe] = {0: self._now}

    def scores(self, features: Tensor, hyper_parameters: HyperParameters) -> Tensor:
        """(1, m, c)."""
        weight, offset, mixture = self._after(int(hyper_parameters["epochs"]))
        votes = neutral(features @ weight.mT + offset, self._seen == 0)
        return (votes + mixture * (features @ self._text.mT))[None]

    def _after(self, epochs: int) -> TrainedProbe:
        """The probe after `epochs`; if these are requested in rising order, one run is enough."""
        if epochs not in self._reached:
            while self._epoch < epochs:
                self._advance()
            self._reached[epochs] = self._now
        return self._reached[epochs]

    def _advance(self) -> None:
        weight, offset, mixture = self._now
        logits = self._samples @ weight.mT + offset + mixture * self._cosines
        excess = (logits.softmax(1) - self._targets) * self._seen / len(logits)
        self._speed = (
            MOMENTUM * self._speed[0] + excess.mT @ self._samples,
            MOMENTUM * self._speed[1] + excess.sum(0),
        )
        self._epoch += 1
        gradient = (excess * self._cosines).sum(0)
        self._mixture_gradient = gradient + self._as_published * self._mixture_gradient
        if self._epoch % MIXTURE_EVERY == 0:
            mixture = mixture - self._mixture_step * self._mixture_gradient
        self._now = TrainedProbe(
            weight - self._step * self._speed[0], offset - self._step * self._speed[1], mixture
        )
