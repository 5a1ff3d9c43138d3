"""The judge of an audit: an exact Gaussian process, and what it says of rows it has not seen.

It lives in the centred space, which sees no label, so leaving rows out is closed-form and honest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp import ExactPrecision
from gpcache.gp.cholesky import cholesky, solve
from gpcache.gp.factored import lifted
from gpcache.gp.feature_maps import KernelSpace
from gpcache.gp.fusion import fuse
from gpcache.gp.kernels import gram
from gpcache.gp.precision import BATCH_ELEMENTS
from gpcache.methods.cache.search import CacheOutputs, Choice, SearchOptions, search, shipped
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.metrics import fit_temperature

# Elements (row, removed row, class) that the effect of all removals may take: half a minute.
MOST_REMOVALS = 2**31


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """What a model says of labelled rows (n,), each without the rows of its set.

    `counted` (n,): the rows that can be judged, as their class has a row outside their set.
    `logits` (n, c) are calibrated on the counted rows; `variance` (n,) is how new each row is.
    """

    classes: NDArray[Any]
    labels: Tensor
    sets: Tensor
    counted: Tensor
    logits: Tensor
    variance: Tensor


@dataclass(frozen=True, eq=False)
class Judge(HeldOutRows):
    """An exact GP over all rows; `scale` is what its calibrated logits make of a mean."""

    precision: ExactPrecision
    scale: float

    @classmethod
    def of(
        cls, features: Tensor, labels: NDArray[Any], sets: Tensor, text_prior: TextPrior | None
    ) -> Judge:
        """Choose the numbers on rows that are left out with their sets, then the temperature."""
        classes = np.unique(labels)
        zero_shot = None
        if text_prior is not None:
            text_prior.aligned(classes)
            classes = text_prior.classes
            vectors = torch.as_tensor(text_prior.aligned(classes))
            if vectors.shape[1] != features.shape[1]:
                raise DataError(
                    f"The features have {features.shape[1]} columns but the text vectors have "
                    f"{vectors.shape[1]}: both must come from the same encoder."
                )
            zero_shot = text_prior.logit_scale * features @ vectors.mT
        numbers = torch.as_tensor(np.searchsorted(classes, labels))
        shots = Shots(features, numbers, len(classes), zero_shot, residual=True)
        ExactPrecision.plan(numbers, len(classes))
        keys = KernelSpace("centred").fit(features, numbers)(features)
        counted = countable(numbers, sets)
        choice = _choose(shots, keys, sets, counted)
        values = shots.at_gain(choice.gain).values
        precision = ExactPrecision(None, keys, values, beta=choice.beta, noise=choice.noise)
        mean, variance = precision.leave_out(sets)
        logits = fuse(zero_shot, mean, None, alpha=choice.alpha, gain=choice.gain)
        some = bool(counted.any())
        temperature = fit_temperature(logits[counted], numbers[counted]) if some else 1.0
        return cls(
            classes,
            numbers,
            sets,
            counted,
            logits / temperature,
            variance[:, 0],
            precision,
            choice.alpha / temperature,
        )

    @property
    def can_remove(self) -> bool:
        """Whether `removal_gains` is affordable."""
        return int(self.counted.sum()) * self.logits.numel() <= MOST_REMOVALS

    def removal_gains(self) -> Tensor:
        """Nats (n,) by which the held-out loss of the other rows falls when a row is taken away.

        The map and the numbers stay. With a set T left out, B = (P_TT)⁻¹, M = B A_T and U = B P_T:,
        taking j away too moves the means of T by U_j (A_j − P_jT M) / (P_jj − P_jT U_j): the Schur
        complement of T and j together, in O(n² c) for all rows instead of a refit for each.
        """
        precision = self.precision
        covariance = lifted(gram(precision.keys, precision.beta), precision.noise)
        inverse = torch.cholesky_inverse(cholesky(covariance))
        solved, own = precision.solved_values, inverse.diagonal()
        gains = torch.zeros_like(own)
        for number in torch.unique(self.sets[self.counted]):
            members = torch.nonzero(self.sets == number).flatten()
            edge = inverse[members]
            factor = cholesky(edge[:, members])
            reach = solve(factor, edge)
            pull = self.scale * (solved - edge.mT @ solve(factor, solved[members]))
            left = own - (edge * reach).sum(0)
            # What is left out already cannot be taken away.
            reach[:, members], left[members] = 0.0, 1.0
            judged = self.counted[members]
            most = max(1, BATCH_ELEMENTS // pull.numel())
            some, shifts = members[judged], (reach / left)[judged]
            for rows, moved in zip(torch.split(some, most), torch.split(shifts, most), strict=True):
                before = self.logits[rows, None]
                after = before + moved[..., None] * pull
                column = self.labels[rows, None]
                gains += (_loss(before, column) - _loss(after, column)).sum(0)
        return gains


def countable(labels: Tensor, sets: Tensor) -> Tensor:
    """Rows (n,) whose class has a row in another set."""
    pairs = torch.unique(torch.stack([labels, sets], 1), dim=0)
    return torch.bincount(pairs[:, 0], minlength=int(labels.max()) + 1)[labels] > 1


def _choose(shots: Shots, keys: Tensor, sets: Tensor, counted: Tensor) -> Choice:
    """β, noise, α and the trust in the text of the least held-out loss."""
    present = len(torch.unique(shots.labels))
    # Rows know nothing of what the text is worth for classes that they do not have.
    judges_text = shots.zero_shot is not None and present == shots.n_classes
    settings = SearchOptions(eta=0.0, gain="auto" if judges_text else 1.0, residual=True)
    if present < 2 or not bool(counted.any()):
        return shipped(settings, with_text=shots.zero_shot is not None)
    zero_shot = None if shots.zero_shot is None else shots.zero_shot[counted]

    def evaluate(beta: float, noises: Sequence[float], gain: float) -> list[CacheOutputs]:
        values = shots.at_gain(gain).values
        found = []
        for noise in noises:
            precision = ExactPrecision(None, keys, values, beta=beta, noise=noise)
            mean = precision.leave_out(sets).mean[counted]
            found.append(CacheOutputs(mean, None, zero_shot, shots.labels[counted]))
        return found

    return search(evaluate, settings, shots=shots.per_class, uses_noise=True)[0]


def _loss(logits: Tensor, column: Tensor) -> Tensor:
    """−log softmax of logits (..., c) at column (...)."""
    at_label = logits.gather(-1, column.expand(logits.shape[:-1])[..., None])[..., 0]
    return logits.logsumexp(-1) - at_label
