"""The probability that a label is wrong, from a mixture of right labels and random ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

# Beta prior of the share of wrong labels, most probable at 2.6 %: few rows say little about it.
PRIOR = (1.5, 20.0)
# The start of the search, as log-odds of the share.
START = -3.0


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
