"""The model of an audit: an exact Gaussian process, and its predictions for left-out rows.

It uses the centred space, which does not depend on labels, so rows are left out in closed form
without leaking labels. The probability that a label is wrong comes from a mixture of right labels
and random ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from gpcache.gp import ExactPrecision
from gpcache.gp.feature_maps import KernelSpace
from gpcache.gp.precision import BATCH_ELEMENTS, Posterior, padded_sets
from gpcache.methods.text_prior import TextPrior

# A wide kernel and much noise rank planted errors best on the sets for choosing, for any number of
# rows (docs/results/label-errors.md). Without a search, an audit costs one Cholesky factor.
BETA = 0.5
NOISE = 1.0
# Typical weights of the mean and the text in the logits.
TYPICAL_MEAN = 20.0
TYPICAL_TEXT = 0.1
# Beta prior of the share of wrong labels, most probable at 2.6 %: few rows say little about it.
PRIOR = (1.5, 20.0)
# The start of the search, as log-odds of the share.
START = -3.0


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Predictions of labelled rows (n,), each without the rows of its set.

    `counted` (n,) are the rows that can be checked, because their class has a row outside their
    set. `logits` (n, c) are those of the true class, `wrong` (n,) the probability that the label is
    wrong, and `variance` (n,) the novelty of each row.
    """

    classes: NDArray[Any]
    labels: Tensor
    sets: Tensor
    counted: Tensor
    logits: Tensor
    wrong: Tensor
    variance: Tensor


@dataclass(frozen=True, eq=False)
class AuditModel(HeldOutRows):
    """An exact GP over all rows; `scale` is the weight of its mean in the logits.

    `rate` is the estimated share of wrong labels; `zero_shot` (n, c) are the text logits.
    """

    precision: ExactPrecision
    scale: float
    rate: float
    features: Tensor
    zero_shot: Tensor | None

    @classmethod
    def of(
        cls, features: Tensor, labels: NDArray[Any], sets: Tensor, text_prior: TextPrior | None
    ) -> AuditModel:
        """Predict every row without its set, and the probability that its label is wrong."""
        classes = np.unique(labels)
        zero_shot = None
        if text_prior is not None:
            text_prior.aligned(classes)
            classes = text_prior.classes
            vectors = torch.as_tensor(text_prior.aligned(classes))
            zero_shot = text_prior.logit_scale * features @ vectors.mT
        numbers = torch.as_tensor(np.searchsorted(classes, labels))
        ExactPrecision.plan(numbers, len(classes))
        precision = _posterior(features, numbers, len(classes))
        mean, variance = precision.leave_out(sets)
        counted = countable(numbers, sets)
        parts = [mean] if zero_shot is None else [mean, zero_shot]
        typical = (TYPICAL_MEAN, TYPICAL_TEXT)[: len(parts)]
        noise = fit_label_noise(parts, numbers, counted, typical)
        held_out = (classes, numbers, sets, counted, noise.logits, noise.wrong, variance[:, 0])
        return cls(*held_out, precision, noise.weights[0], noise.rate, features, zero_shot)

    def removal_gains(self, removed: Tensor) -> Tensor:
        """Held-out log-likelihood that the other labels gain without each of the rows `removed`.

        Map and hyper-parameters stay. With a set T left out, B = (P_TT)⁻¹, M = B A_T, U = B P_T:,
        removing j as well changes the means of T by U_j (A_j − P_jT M) / (P_jj − P_jT U_j): the
        Schur complement of T and j together, without a refit for each.
        """
        inverse, solved = self.precision._inverse, self.precision.solved_values
        diagonal = inverse.diagonal()[removed]
        gains = torch.zeros(len(removed), dtype=inverse.dtype)
        most = BATCH_ELEMENTS // max(1, len(removed) * self.logits.shape[1])
        for rows, present in padded_sets(self.sets, most):
            pair = present[:, :, None] & present[:, None]
            block = inverse[rows[:, :, None], rows[:, None]]
            block = torch.where(pair, block, torch.eye(rows.shape[1], dtype=block.dtype))
            edge = inverse[rows[:, :, None], removed] * present[:, :, None]
            reach = torch.linalg.solve(block, edge)
            known = torch.linalg.solve(block, solved[rows] * present[:, :, None])
            pull = self.scale * (solved[removed] - edge.mT @ known)
            schur = diagonal - (edge * reach).sum(1)
            # Rows that are left out already cannot be removed.
            out = self.sets[rows[:, :1]] == self.sets[removed]
            moved = torch.where(out[:, None], 0.0, reach / torch.where(out, 1.0, schur)[:, None])
            counted = present & self.counted[rows]
            where, _ = torch.nonzero(counted, as_tuple=True)
            before = self.logits[rows[counted]][:, None]
            column = self.labels[rows[counted]][:, None]
            after = before + moved[counted][..., None] * pull[where]
            gains += (self._fit(after, column) - self._fit(before, column)).sum(0)
        return gains

    def _fit(self, logits: Tensor, column: Tensor) -> Tensor:
        """The log-probability of the given labels (...), right or wrong, at logits (..., c)."""
        at_label = logits.gather(-1, column.expand(logits.shape[:-1])[..., None])[..., 0]
        return given_label((at_label - logits.logsumexp(-1)).exp(), self.rate, logits.shape[-1])


def held_out_means(features: Tensor, labels: Tensor, n_classes: int) -> Posterior:
    """Scores (n, c) of unit rows with class numbers (n,), each left out, and variances (n, 1)."""
    return _posterior(features, labels, n_classes).leave_out(torch.arange(len(labels)))


def _posterior(features: Tensor, labels: Tensor, n_classes: int) -> ExactPrecision:
    keys = KernelSpace("centred").fit(features, labels)(features)
    values = torch.nn.functional.one_hot(labels, n_classes).to(features)
    return ExactPrecision(None, keys, values, beta=BETA, noise=NOISE)


def countable(labels: Tensor, sets: Tensor) -> Tensor:
    """Rows (n,) whose class has a row in another set."""
    pairs = torch.unique(torch.stack([labels, sets], 1), dim=0)
    return torch.bincount(pairs[:, 0], minlength=int(labels.max()) + 1)[labels] > 1


class LabelNoise(NamedTuple):
    """The label noise that held-out scores show.

    `logits` (n, c) of the true class, `wrong` (n,) the probability that the given label is not the
    true one, `rate` the estimated share of wrong labels, `weights` those of the parts.
    """

    logits: Tensor
    wrong: Tensor
    rate: float
    weights: tuple[float, ...]


def fit_label_noise(
    parts: Sequence[Tensor], labels: Tensor, counted: Tensor, typical: Sequence[float]
) -> LabelNoise:
    """Fit the weights of held-out scores (n, c) and the share of wrong labels (n,).

    The true class t has the probability p(t) = softmax(Σ weight · part). The given label is t, or
    with the probability ε any of the others: q(y) = (1 − ε) p(y) + ε (1 − p(y)) / (c − 1). Weights
    and ε maximise q over the `counted` rows, with a log-normal prior of the weights around
    `typical` and a beta prior of ε.
    """
    rows = [part[counted].double() for part in parts]
    column, n_classes = labels[counted, None], parts[0].shape[1]
    middle = torch.tensor([*map(math.log, typical), START], dtype=torch.float64)

    def loss(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        theta = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        right = _sum(rows, theta[:-1].exp()).log_softmax(1).gather(1, column).exp()[:, 0]
        rate = theta[-1].sigmoid()
        log_prior = (PRIOR[0] - 1) * rate.log() + (PRIOR[1] - 1) * (1 - rate).log()
        spread = (theta[:-1] - middle[:-1]).square().sum() / 2
        total = spread - log_prior - given_label(right, rate, n_classes).sum()
        (slope,) = torch.autograd.grad(total, theta)
        return float(total.detach()), slope.numpy()

    point = torch.from_numpy(minimize(loss, middle.numpy(), jac=True, method="L-BFGS-B").x)
    weights, rate = point[:-1].exp(), float(point[-1].sigmoid())
    logits = _sum([part.double() for part in parts], weights)
    right = logits.log_softmax(1).gather(1, labels[:, None])[:, 0].exp()
    kept = math.log1p(-rate) + right.log() - given_label(right, rate, n_classes)
    wrong = (1 - kept.exp()).clamp(0, 1)
    return LabelNoise(logits, wrong, rate, tuple(weights.tolist()))


def given_label(right: Tensor, rate: float | Tensor, n_classes: int) -> Tensor:
    """log q: the log-probability of a given label whose class has the probability `right`."""
    given = (1 - rate) * right + rate * (1 - right) / max(1, n_classes - 1)
    return given.clamp_min(torch.finfo(given.dtype).tiny).log()


def _sum(parts: Sequence[Tensor], weights: Tensor) -> Tensor:
    total = weights[0] * parts[0]
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        total = total + weight * part
    return total
