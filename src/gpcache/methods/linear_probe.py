"""A linear probe: multinomial logistic regression on the features, without text.

    min_w Σ_i cross-entropy(f_i w + b, y_i) + ‖w‖² / (2 C)

by full-batch L-BFGS; C is chosen like every other number, on held-out shots or a validation set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpcache.methods.additive import AdditiveClassifier, Numbers
from gpcache.methods.base import extends_options
from gpcache.methods.shots import Shots
from gpcache.search import Auto

STEPS = 200


class LinearProbeClassifier(AdditiveClassifier):
    """The plain linear classifier, as a row to compare with; text is not used.

    Parameters
    ----------
    strength : C, the inverse of the penalty, a number or "auto".
    **options : criterion, selection, n_folds, device, dtype, random_state.
    """

    _weights: ClassVar[dict[str, Sequence[float]]] = {"alpha": (1.0,)}
    _shapes: ClassVar[dict[str, Sequence[float]]] = {
        "strength": (1.0, 0.1, 10.0, 100.0, 1000.0, 10000.0)
    }
    _shipped: ClassVar[Numbers] = {"alpha": 1.0, "strength": 100.0}
    _uses_text: ClassVar[bool] = False
    alpha = 1.0  # its logits are what they are

    @extends_options(AdditiveClassifier)
    def __init__(
        self, *, strength: float | Auto = "auto", n_folds: int = 4, **options: Any
    ) -> None:
        super().__init__(n_folds=n_folds, **options)
        self.strength = strength

    def _learn(self, shots: Shots) -> Probe:
        return Probe(*shots.samples(), shots.n_classes)


class Probe:
    """Samples (n, d) with labels (n,); solved once for each strength."""

    def __init__(self, samples: Tensor, labels: Tensor, classes: int) -> None:
        self._samples, self._labels, self._classes = samples, labels, classes
        self._solved: dict[float, tuple[Tensor, Tensor]] = {}

    def scores(self, features: Tensor, numbers: Numbers) -> Tensor:
        """(1, m, c)."""
        strength = numbers["strength"]
        if strength not in self._solved:
            self._solved[strength] = self._solve(strength)
        weight, offset = self._solved[strength]
        return (features @ weight.mT + offset)[None]

    @torch.enable_grad()
    def _solve(self, strength: float) -> tuple[Tensor, Tensor]:
        weight = self._samples.new_zeros(self._classes, self._samples.shape[1]).requires_grad_()
        offset = self._samples.new_zeros(self._classes).requires_grad_()
        optimiser = torch.optim.LBFGS(
            [weight, offset],
            max_iter=STEPS,
            tolerance_grad=1e-7,
            tolerance_change=1e-10,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            optimiser.zero_grad()
            logits = self._samples @ weight.mT + offset
            total = torch.nn.functional.cross_entropy(logits, self._labels, reduction="sum")
            total = total + weight.square().sum() / (2 * strength)
            total.backward()  # type: ignore[no-untyped-call]
            return total

        optimiser.step(loss)  # type: ignore[no-untyped-call]
        return weight.detach(), offset.detach()
