"""A fitted cache model: feature map, posterior and fusion, and what it can say about a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache import metrics
from gpcache.gp import ExactPrecision, Posterior, Precision
from gpcache.gp.discriminant import Discriminant
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.fusion import fuse, scaled_mean
from gpcache.gp.kernels import unit_rows
from gpcache.gp.precision import BATCH_ELEMENTS
from gpcache.methods.cache.nested import cross_fitted
from gpcache.methods.cache.search import Choice


@dataclass(frozen=True, eq=False)
class HeldOutReport:
    """What the model says of its own shots, each as if it had not been seen.

    Rows whose class has no other shot are not counted (their logits are NaN): leaving them out
    leaves their class without a key. `labels` (n,) are class numbers, −1 where not counted.
    `protocol` says how rows were left out. `logits` are at the
    numbers that were chosen in the end; `probabilities`, and the figures, at numbers and with a
    calibration that were chosen on the other folds, so that nothing is shown that was optimised.
    """

    logits: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    counted: NDArray[np.bool_]
    labels: NDArray[np.int64]
    accuracy: float
    nll: float
    ece: float
    protocol: str

    @classmethod
    def empty(cls, n: int, c: int, protocol: str) -> HeldOutReport:
        """Nothing counted yet."""
        nothing = np.full((n, c), np.nan)
        counted, labels = np.zeros(n, dtype=bool), np.full(n, -1)
        return cls(nothing, nothing.copy(), counted, labels, np.nan, np.nan, np.nan, protocol)

    @classmethod
    def of(
        cls,
        logits: Tensor,
        labels: Tensor,
        rows: Tensor,
        fold: Tensor,
        n: int,
        protocol: str,
        probabilities: Tensor | None = None,
    ) -> HeldOutReport:
        """The figures of held-out logits (k, c) with labels (k,): rows (k,) among n shots.

        `fold` (k,) says which rows are judged together by what the others chose; without
        `probabilities` that is the calibration alone.
        """
        report = cls.empty(n, logits.shape[1], protocol)
        if not len(rows):
            return report
        if probabilities is None:
            same = dict.fromkeys(torch.unique(fold).tolist(), 0)
            probabilities = cross_fitted(lambda *_: logits, same, fold, labels)
        numbers, truth = rows.cpu().numpy(), labels.cpu().numpy()
        found = probabilities.double().cpu().numpy()
        report.logits[numbers] = logits.double().cpu().numpy()
        report.probabilities[numbers] = found
        report.counted[numbers], report.labels[numbers] = True, truth
        return replace(
            report,
            accuracy=metrics.accuracy(found, truth),
            nll=metrics.nll(found, truth),
            ece=metrics.ece(found, truth),
        )


class Explanation(NamedTuple):
    """Why each row (m) got its label: shots (m, top) by size of their signed share of the logit.

    All shares of a row sum to `cache_logit`; the sum of `cache_logit`, `text_logit` and
    `discriminant_logit` is the class's logit.
    """

    labels: NDArray[Any]
    shots: NDArray[np.int64]
    shares: NDArray[np.float64]
    cache_logit: NDArray[np.float64]
    text_logit: NDArray[np.float64]
    discriminant_logit: NDArray[np.float64]


@dataclass(frozen=True)
class CacheModel:
    """A fitted cache: feature map, posterior, text and the chosen hyper-parameters.

    With `coefficients` (n, c) the likelihood is softmax: the mean is that of the posterior mode,
    and a `discriminant` may add to it. Without, it is Gaussian, and the precision gives the mean.
    """

    feature_map: FeatureMap
    precision: Precision
    text: Tensor | None
    choice: Choice
    coefficients: Tensor | None = None
    discriminant: Discriminant | None = None

    def logits(self, features: Tensor) -> Tensor:
        """(m, c), in batches that keep the kernel rows small."""
        return torch.cat([self._logits(batch) for batch in self._batches(features)])

    def posterior(self, features: Tensor) -> Posterior:
        """Mean (m, c) and variance (m, g) of the cache, in the same batches."""
        found = [self._posterior(self.feature_map(batch)) for batch in self._batches(features)]
        return Posterior(torch.cat([f.mean for f in found]), torch.cat([f.variance for f in found]))

    def variance(self, features: Tensor, *, quick: bool = False) -> Tensor:
        """The variance (m, g) of the cache alone, in the same batches."""
        batches = self._batches(features)
        return torch.cat(
            [self.precision.variance(self.feature_map(batch), quick=quick) for batch in batches]
        )

    def _batches(self, features: Tensor) -> Sequence[Tensor]:
        size = max(64, BATCH_ELEMENTS // max(1, len(self.precision.keys)))
        return torch.split(features, size)

    def _logits(self, features: Tensor) -> Tensor:
        if self.choice.eta != 0:
            return self.answer(features)
        rows = self.feature_map.unscaled(features)
        fused = self.fused(self.zero_shot(features), self._mean(unit_rows(rows)), None)
        scores = self.discriminant_logits(rows)
        return fused if scores is None else fused + scores

    def _mean(self, mapped: Tensor) -> Tensor:
        if self.coefficients is None:
            return self.precision.mean(mapped)
        rows, values = self.shares(mapped)
        return rows @ values

    def _posterior(self, mapped: Tensor) -> Posterior:
        if self.coefficients is None:
            return self.precision.posterior(mapped)
        return Posterior(self._mean(mapped), self.precision.variance(mapped))

    def shares(self, mapped: Tensor) -> tuple[Tensor, Tensor]:
        """Two matrices (m, n) and (n, c) whose product is the mean: what each shot adds to it."""
        if self.coefficients is None:
            return self.precision.weights(mapped), self.precision.weighted_values
        values = self.precision.prior_coefficients(self.coefficients)
        return self.precision.prior_rows(mapped), values

    def discriminant_logits(self, rows: Tensor) -> Tensor | None:
        """(m, c) of rows (m, d') that were mapped but not scaled."""
        if self.discriminant is None:
            return None
        return self.choice.discriminant * self.discriminant.scores(rows)

    def answer(
        self, features: Tensor, *, mapped: Tensor | None = None, without: Tensor | None = None
    ) -> Tensor:
        """Logits (m, c) with their gradient; `without` (m,) names a key that each row must not see.

        That is the loss of leave-one-out, for rows that need not be keys themselves. `mapped` are
        the rows in the kernel's space, where they are known already.
        """
        mapped = self.feature_map(features) if mapped is None else mapped
        if without is None:
            found = self.precision.posterior(mapped)
        else:
            assert isinstance(self.precision, ExactPrecision)
            found = self.precision.posterior_without(mapped, without)
        return self.fused(self.zero_shot(features), *found)

    def zero_shot(self, features: Tensor) -> Tensor | None:
        """What the text says of rows (m, d)."""
        return None if self.text is None else features @ self.text.mT

    def fused(self, zero_shot: Tensor | None, mean: Tensor, variance: Tensor | None) -> Tensor:
        """Logits (m, c) from the posterior at the chosen numbers; variance has g columns."""
        choice = self.choice
        spread = None if variance is None else self.precision.variance_of_classes(variance)
        return fuse(zero_shot, mean, spread, alpha=choice.alpha, eta=choice.eta, gain=choice.gain)

    def cache_factor(self, variance: Tensor) -> Tensor:
        """What the mean is multiplied by, α / variance^η: (m, c) or (m, 1)."""
        spread = self.precision.variance_of_classes(variance)
        return self.choice.alpha * scaled_mean(torch.ones_like(spread), spread, self.choice.eta)
