"""Chooses weights of scores, and other hyper-parameters, on rows that were not learned from.

By NLL, Newton's method finds the exact weights for each setting of the other hyper-parameters; by
accuracy all are taken from grids, as in the papers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.methods.cache.held_out import best_without, cross_fitted
from gpcache.methods.cache.shots import Shots
from gpcache.metrics import fit_scales, fit_temperature, mean_nll, smoothed_losses
from gpcache.support.checks import is_auto, positive
from gpcache.support.progress import progress_bar

HyperParameters = dict[str, float]
Grids = Mapping[str, Sequence[float]]

# The least weight of the text relative to the scores.
LEAST_GAIN = 1e-3


def given_values(owner: object, names: Iterable[str]) -> HyperParameters:
    """The hyper-parameters of an estimator that are not "auto", checked."""
    values = {name: getattr(owner, name) for name in names}
    return {
        name: positive(name, value, owner=owner, allow_zero=True)
        for name, value in values.items()
        if not is_auto(value)
    }


def added(zero_shot: Tensor | None, scores: Tensor, weights: Iterable[float]) -> Tensor:
    """Logits (m, c): text logits (m, c), if there are any, plus weighted scores (k, m, c)."""
    total = torch.einsum("k,kmc->mc", scores.new_tensor(list(weights)), scores)
    return total if zero_shot is None else total + zero_shot


class Tried(NamedTuple):
    """Hyper-parameters that were tried, with their figures, and the losses (n,) of the rows."""

    setting: dict[str, float]
    losses: Tensor


class WeightSearch(NamedTuple):
    """Chooses on rows that were not learned from.

    `scores_at` maps the other hyper-parameters, `shapes`, to scores (k, n, c) of the tested rows,
    one for each of the `weights`. Both have the values to try; hyper-parameters that are `given`
    stay. With `free_gain` the temperature is fitted with the weights: overconfident scores would
    otherwise get too little weight.
    """

    tested: Shots
    scores_at: Callable[[HyperParameters], Tensor]
    weights: Grids
    shapes: Grids
    given: HyperParameters
    criterion: str
    free_gain: bool = True

    def tried(self, name: str) -> list[Tried]:
        """Every setting of the shapes with its best weights, the best setting first."""
        tested, settings = self.tested, _points(self.shapes, self.given)
        tried = []
        with progress_bar(f"{name}: choosing", total=len(settings), unit="setting") as bar:
            for shape in settings:
                scores = self.scores_at(shape)
                weights = self._best_weights(scores, tested)
                logits = added(tested.zero_shot, scores, weights.values())
                wrong = logits.argmax(-1) != tested.labels
                tempered = logits / fit_temperature(logits, tested.labels)
                losses = smoothed_losses(tempered, tested.labels)
                if self.criterion == "accuracy":
                    losses = wrong + 1e-6 * losses
                figures = {
                    "nll": float(mean_nll(logits, tested.labels)),
                    "accuracy": float((~wrong).double().mean()),
                    "score": float(losses.mean()),
                }
                tried.append(Tried(shape | weights | figures, losses))
                bar.update()
        return sorted(tried, key=lambda one: one.setting["score"])

    def logits(self, setting: HyperParameters, others: Tensor | None = None) -> Tensor:
        """Logits (n, c) of the tested rows; with `others`, these rows choose the weights."""
        scores = self.scores_at({name: setting[name] for name in self.shapes})
        if others is not None:
            setting = self._best_weights(scores[:, others], self.tested[others])
        return added(self.tested.zero_shot, scores, [setting[name] for name in self.weights])

    def nested(self, tried: list[Tried], fold: Tensor) -> Tensor:
        """Probabilities (n, c) of the rows; hyper-parameters come from the other folds (n,)."""

        def logits_at(number: int, others: Tensor) -> Tensor:
            return self.logits(tried[number].setting, others)

        losses = torch.stack([one.losses for one in tried])
        best = best_without(losses, losses.new_zeros(len(losses)), fold)
        return cross_fitted(logits_at, best, fold, self.tested.labels)

    def _best_weights(self, scores: Tensor, tested: Shots) -> HyperParameters:
        """The weights of scores (k, n, c): exact by NLL, or from the grids by accuracy."""
        free = [name for name in self.weights if name not in self.given]
        fixed = {name: self.given.get(name, 0.0) for name in self.weights}
        if not free:
            return fixed
        if self.criterion == "accuracy":
            return self._most_accurate(scores, tested)
        offset, gain = tested.zero_shot, 1.0
        if len(free) < len(fixed):
            offset = added(offset, scores, fixed.values())
        parts = scores[[row for row, name in enumerate(self.weights) if name in free]]
        if offset is None or not self.free_gain:
            scales, _ = fit_scales(parts[:, None], tested.labels, offset=offset)
            weights = scales[0].tolist()
        else:
            scales, _ = fit_scales(torch.cat([offset[None], parts])[:, None], tested.labels)
            gain, *weights = scales[0].tolist()
        best = [weight / max(gain, LEAST_GAIN) for weight in weights]
        return fixed | dict(zip(free, best, strict=True))

    def _most_accurate(self, scores: Tensor, tested: Shots) -> HyperParameters:
        """The most accurate point of the grids; ties go to the lowest NLL."""

        def worth(weights: HyperParameters) -> tuple[float, float]:
            logits = added(tested.zero_shot, scores, weights.values())
            accuracy = (logits.argmax(-1) == tested.labels).double().mean()
            return float(accuracy), -float(mean_nll(logits, tested.labels))

        return max(_points(self.weights, self.given), key=worth)


def _points(grids: Grids, given: HyperParameters) -> list[HyperParameters]:
    """All combinations of the values of the grids; a given value replaces its grid."""
    values = [[given[name]] if name in given else grid for name, grid in grids.items()]
    return [dict(zip(grids, point, strict=True)) for point in itertools.product(*values)]


def columns_of(tried: list[Tried]) -> dict[str, NDArray[np.float64]]:
    """What was tried as a table, for `search_`."""
    return {name: np.array([one.setting[name] for one in tried]) for name in tried[0].setting}
