"""A transductive rule: all test images are predicted together (TransCLIP, Zanella et al., 2024).

Written from the paper. The rows z_i of the test images maximise

    mean_i z_i·log p_i + Σ_ij w_ij z_i·z_j − mean_i (z_i·log z_i − λ z_i·log ŷ_i)
        + γ · the mean of log p over the shots at their labels

with ŷ the probabilities of a method that saw only the shots, p Gaussians of the classes with one
diagonal covariance, and w the cosines to the nearest test images. The blocks are updated in turn: z
by a fixed point, then means and variances in closed form. λ = ½ as in the paper's few-shot setting;
γ, which the paper chooses on validation rows, is fixed. As in the authors' code, log p is divided
by 50 in the step for z, w is symmetric and averages over the neighbours, and means have length one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.gp.kernels import unit_rows

TEXT_WEIGHT = 0.5  # λ
SHOT_WEIGHT = 0.02  # γ, one of the four values that the paper tries
NEIGHBOURS = 3
DENSITY_SCALE = 50.0
ROUNDS, STEPS = 10, 5
_TINY = 1e-12


def predicted_together(
    probabilities: NDArray[np.float64],
    features: NDArray[Any],
    shots: NDArray[Any],
    labels: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Probabilities (m, c) of rows (m, d) that are predicted together.

    Parameters
    ----------
    probabilities : probabilities (m, c) of each row, predicted separately.
    features, shots : unit rows (m, d) to predict, and those of the shots (n, d).
    labels : class numbers (n,) of the shots.
    """
    rows, keys = (torch.as_tensor(one, dtype=torch.float64) for one in (features, shots))
    prior = torch.as_tensor(probabilities, dtype=torch.float64).clamp(min=_TINY).log()
    values = torch.nn.functional.one_hot(torch.as_tensor(labels), prior.shape[1]).double()
    near = _affinities(rows)
    z = prior.exp()
    variance = torch.full((rows.shape[1],), 1 / rows.shape[1], dtype=torch.float64)
    means = _means(z, rows, values, keys)
    for _ in range(ROUNDS):
        fit = _log_density(rows, means, variance) / DENSITY_SCALE
        for _ in range(STEPS):
            z = (fit + near @ z + TEXT_WEIGHT * prior).softmax(1)
        means = _means(z, rows, values, keys)
        variance = _variance(z, rows, values, keys, means)
    predicted: NDArray[np.float64] = z.numpy()
    return predicted


def _affinities(rows: Tensor) -> Tensor:
    """Cosines (m, m) to the nearest other rows, 0 elsewhere."""
    cosines = (rows @ rows.mT).fill_diagonal_(-torch.inf)
    best = cosines.topk(min(NEIGHBOURS, len(rows) - 1), dim=1)
    near = torch.zeros_like(cosines).scatter(1, best.indices, best.values.clamp(min=0))
    return (near + near.mT) / (2 * NEIGHBOURS)


def _weights(z: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of test rows (m, c) and shots (n, c) in the updates."""
    return z / len(z), SHOT_WEIGHT * values / len(values)


def _means(z: Tensor, rows: Tensor, values: Tensor, keys: Tensor) -> Tensor:
    of_rows, of_shots = _weights(z, values)
    return unit_rows(of_rows.mT @ rows + of_shots.mT @ keys)


def _variance(z: Tensor, rows: Tensor, values: Tensor, keys: Tensor, means: Tensor) -> Tensor:
    """Σ over rows and classes of the weight times (f − μ)², for each feature (d,)."""
    total = torch.zeros_like(means[0])
    for weight, points in zip(_weights(z, values), (rows, keys), strict=True):
        cross = ((weight.mT @ points) * means).sum(0)
        total += weight.sum(1) @ points.square() - 2 * cross + weight.sum(0) @ means.square()
    return (total / (1 + SHOT_WEIGHT)).clamp(min=_TINY)


def _log_density(rows: Tensor, means: Tensor, variance: Tensor) -> Tensor:
    """−½ Σ (f − μ)²/σ² (m, c); what all classes share is left out."""
    scaled = means / variance
    return rows @ scaled.mT - (scaled * means).sum(1) / 2
