"""A linear probe: multinomial logistic regression on the features, without text.

    min_w Σ_i cross-entropy(f_i w + b, y_i) + ‖w‖² / (2 C)

by full-batch L-BFGS; C is chosen on held-out shots or a validation set, like all hyper-parameters.

Three changes of variables make it fast without moving the minimum. The rows are centred (the offset
absorbs the mean) and rotated to their principal axes (the penalty does not change, and there are at
most as many axes as rows), and each axis is scaled by its expected curvature. Each C starts from
the solution of the next smaller one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpcache.gp.feature_maps import Projection
from gpcache.methods.additive import AdditiveClassifier, HyperParameters
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.support.checks import is_auto, positive

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
STEPS = 500
HISTORY = 10
# L-BFGS stops at this gradient, in the scaled variables. Probabilities are then within 0.001 of the
# exact ones up to C = 100, and within 0.005 at C = 1000.
LEAST_GRADIENT = 1e-3


@dataclass(kw_only=True, eq=False, repr=False)
class LinearProbeClassifier(AdditiveClassifier):
    """Linear probe: logistic regression on features; text is not used.

    Parameters
    ----------
    text_prior : TextPrior, optional
        Names the classes; its vectors are not used.
    strength : float or "auto", default="auto"
        Inverse of the penalty (C).
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
    >>> from gpcache.methods import LinearProbeClassifier, TextPrior
    >>> text = np.eye(3)  # one vector per class; usually from an encoder
    >>> prior = TextPrior(["cat", "dog", "fox"], text)
    >>> X, y = np.vstack([text + 0.1, text + 0.2]), ["cat", "dog", "fox"] * 2
    >>> model = LinearProbeClassifier().fit(X, y)
    >>> model.predict(text).tolist()
    ['cat', 'dog', 'fox']
    """

    text_prior: TextPrior | None = None
    strength: float | Auto = "auto"
    projection: Projection | ArrayLike | None = None
    criterion: Literal["nll", "accuracy"] = "nll"
    selection: Literal["auto", "folds", "validation"] = "auto"
    n_folds: int = 4
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = (
        "Radford et al., 2021, Learning Transferable Visual Models From Language Supervision"
    )
    trains = True
    _weights: ClassVar[dict[str, Sequence[float]]] = {"alpha": (1.0,)}
    _shapes: ClassVar[dict[str, Sequence[float]]] = {"strength": STRENGTHS}
    _defaults: ClassVar[HyperParameters] = {"alpha": 1.0, "strength": 10.0}
    _uses_text: ClassVar[bool] = False
    _needs_shots_of_a_class: ClassVar[bool] = False
    alpha = 1.0  # its logits are what they are

    def _learn(self, shots: Shots) -> Probe:
        if not is_auto(self.strength):
            positive("strength", self.strength, owner=self)
        return Probe(*shots.samples(), shots.n_classes)


class Solution(NamedTuple):
    """Weights (c, r) on the principal axes of the centred rows, and an offset (c,)."""

    weight: Tensor
    offset: Tensor


class Probe:
    """Samples (n, d) with labels (n,); solved once for each strength."""

    def __init__(self, samples: Tensor, labels: Tensor, classes: int) -> None:
        self._mean = samples.mean(0)
        centred = samples - self._mean
        rank = min(centred.shape)
        _, axes = torch.linalg.eigh(centred.mT @ centred)
        self._axes = axes[:, -rank:]  # (d, r)
        self._rows = centred @ self._axes
        self._squares = self._rows.square()
        self._targets = torch.nn.functional.one_hot(labels, classes).to(samples)
        self._start = Solution(samples.new_zeros(classes, rank), samples.new_zeros(classes))
        self._solved: dict[float, Solution] = {}

    def scores(self, features: Tensor, hyper_parameters: HyperParameters) -> Tensor:
        """(1, m, c)."""
        weight, offset = self._at(hyper_parameters["strength"])
        return torch.addmm(offset, (features - self._mean) @ self._axes, weight.mT)[None]

    def _at(self, strength: float) -> Solution:
        """The solution at a strength, always by way of all smaller strengths of the grid."""
        start = self._start
        for step in (*(one for one in STRENGTHS if one < strength), strength):
            if step not in self._solved:
                self._solved[step] = self._solve(step, start)
            start = self._solved[step]
        return start

    def _solve(self, strength: float, start: Solution) -> Solution:
        rows, targets = self._rows, self._targets
        likely = torch.addmm(start.offset, rows, start.weight.mT).softmax(1)
        curvature = (likely * (1 - likely)).mean(1)
        width = (curvature @ self._squares + 1 / strength).rsqrt()
        shift = curvature.sum().clamp(min=torch.finfo(rows.dtype).eps).rsqrt()
        scaled = [start.weight / width, start.offset / shift]
        optimiser = torch.optim.LBFGS(
            scaled,
            max_iter=STEPS,
            history_size=HISTORY,
            tolerance_grad=LEAST_GRADIENT,
            tolerance_change=1e-9,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            weight, offset = scaled[0] * width, scaled[1] * shift
            logits = torch.addmm(offset, rows, weight.mT)
            logs = logits.log_softmax(1)
            excess = logs.exp() - targets
            scaled[0].grad = (excess.mT @ rows + weight / strength) * width
            scaled[1].grad = excess.sum(0) * shift
            total: Tensor = weight.square().sum() / (2 * strength) - (logs * targets).sum()
            return total

        optimiser.step(loss)  # type: ignore[no-untyped-call]
        return Solution(scaled[0] * width, scaled[1] * shift)
