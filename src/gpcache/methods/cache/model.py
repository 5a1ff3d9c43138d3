"""A fitted cache model: feature map, posterior and fusion, and its answers about a row."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.gp import ExactPrecision, Posterior, Precision
from gpcache.gp.cholesky import cholesky
from gpcache.gp.discriminant import Discriminant
from gpcache.gp.explicit import core_of
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.fusion import fuse, scaled_mean
from gpcache.gp.kernels import unit_rows
from gpcache.gp.precision import BATCH_ELEMENTS
from gpcache.methods.cache.search import Choice
from gpcache.support.threads import limited_threads


class Explanation(NamedTuple):
    """Why each row got its label: shots with their signed share of the logit.

    All shares of a row sum to `cache_logit`. The logit of the class is the sum of `cache_logit`,
    `text_logit` and `discriminant_logit`.

    Parameters
    ----------
    labels : array of shape (m,)
        The labels that are explained.
    shots : array of shape (m, top)
        Row numbers of the shots, the largest share first.
    shares : array of shape (m, top)
        Signed shares; above zero counts for the label.
    cache_logit, text_logit, discriminant_logit : array of shape (m,)
        Parts of the logit.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gpcache import GPCacheClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> why = GPCacheClassifier().fit(X[:60], y[:60]).explain(X[60:61], top=None)
    >>> bool(abs(why.shares.sum() - why.cache_logit[0]) < 1e-6)
    True
    """

    labels: NDArray[Any]
    shots: NDArray[np.int64]
    shares: NDArray[np.float64]
    cache_logit: NDArray[np.float64]
    text_logit: NDArray[np.float64]
    discriminant_logit: NDArray[np.float64]


class Reasons(NamedTuple):
    """The content of an `Explanation` as tensors, for the class `column` (m,)."""

    column: Tensor
    shots: Tensor
    shares: Tensor
    cache_logit: Tensor
    text_logit: Tensor
    discriminant_logit: Tensor


class CacheAnswers(NamedTuple):
    """Logits (m, c), and if requested the variance (m, g) and the reasons."""

    logits: Tensor
    variance: Tensor | None = None
    reasons: Reasons | None = None


@dataclass(frozen=True)
class CacheModel:
    """A fitted cache: feature map, posterior, text and the chosen hyper-parameters.

    With `coefficients` (n, c) the likelihood is softmax: the mean is that of the posterior mode,
    and a `discriminant` may add to it. Without, it is Gaussian, and the precision gives the mean.
    `products` (n, c), the prior's covariance times the coefficients, spare an update its first
    product; a model that was loaded has none.
    """

    feature_map: FeatureMap
    precision: Precision
    text: Tensor | None
    choice: Choice
    coefficients: Tensor | None = None
    discriminant: Discriminant | None = None
    products: Tensor | None = None

    @property
    def is_softmax(self) -> bool:
        """Whether the likelihood is softmax instead of regression."""
        return self.coefficients is not None

    @property
    def closed_form(self) -> ExactPrecision | None:
        """The exact posterior of regression, whose rows can be left out in closed form."""
        exact = isinstance(self.precision, ExactPrecision) and not self.is_softmax
        return self.precision if exact else None  # type: ignore[return-value]

    @cached_property
    def landmark_factor(self) -> Tensor:
        """The factor (D, D) of the kernel of the landmarks, for a model in explicit features."""
        return cholesky(core_of(self.precision.keys, self.choice.beta))

    @torch.no_grad()
    def answer(
        self,
        features: Tensor,
        *,
        variance: bool = False,
        quick: bool = False,
        top: int | None = 0,
        column: Tensor | None = None,
    ) -> CacheAnswers:
        """Logits of rows (m, d), and variance and reasons, from one computation of the kernel rows.

        `top` shots are listed as reasons, the largest share first; None lists all. They explain the
        classes `column` (m,), by default the most probable ones.
        """
        batches = self._batches(features)
        columns = [None] * len(batches) if column is None else self._batches(column)
        parts = zip(batches, columns, strict=True)
        with self._threads(features, variance=variance):
            answers = [self._answered(*part, variance, quick, top) for part in parts]
        logits, spreads, reasons = zip(*answers, strict=True)
        spread = torch.cat(spreads) if variance else None
        if top == 0:
            return CacheAnswers(torch.cat(logits), spread)
        together = Reasons(*(torch.cat(part) for part in zip(*reasons, strict=True)))
        return CacheAnswers(torch.cat(logits), spread, together)

    def _answered(
        self,
        features: Tensor,
        column: Tensor | None,
        with_variance: bool,
        quick: bool,
        top: int | None,
    ) -> CacheAnswers:
        unscaled = self.feature_map.unscaled(features)
        mapped, choice = unit_rows(unscaled), self.choice
        rows = weights = values = None
        if self.is_softmax or top != 0:
            weights, values = self.shares(mapped)
            mean = weights @ values
            # Only then are the weights equal to the kernel rows.
            rows = (
                weights if self.is_softmax and isinstance(self.precision, ExactPrecision) else None
            )
        else:
            mean = self.precision.mean(mapped)
        variance: Tensor | None = None
        factor: float | Tensor = choice.alpha
        if choice.eta != 0:
            variance = self.precision.variance(mapped, rows=rows)
            factor = self.cache_factor(variance)
        elif with_variance:
            variance = self.precision.variance(mapped, quick=quick, rows=rows)
        cache = factor * mean
        zero_shot, scores = self.zero_shot(features), self.discriminant_logits(unscaled)
        text = None if zero_shot is None else choice.gain * zero_shot
        logits = cache
        for part in (text, scores):
            logits = logits if part is None else logits + part
        if top == 0:
            return CacheAnswers(logits, variance)
        assert weights is not None
        assert values is not None
        column = logits.argmax(1) if column is None else column
        index = torch.arange(len(features), device=logits.device), column
        scale = torch.as_tensor(factor, dtype=mean.dtype, device=mean.device).expand_as(mean)[index]
        shares = weights * values.mT[column] * scale[:, None]
        order = shares.abs().argsort(1, descending=True)[:, :top]
        nothing = torch.zeros_like(scale)
        reasons = Reasons(
            column,
            order,
            shares.gather(1, order),
            cache[index],
            nothing if text is None else text[index],
            nothing if scores is None else scores[index],
        )
        return CacheAnswers(logits, variance, reasons)

    def logits(self, features: Tensor) -> Tensor:
        """(m, c), in batches that keep the kernel rows small."""
        return self.answer(features).logits

    def posterior(self, features: Tensor) -> Posterior:
        """Mean (m, c) and variance (m, g) of the cache, in the same batches."""
        with self._threads(features, variance=True):
            parts = [self._posterior(self.feature_map(batch)) for batch in self._batches(features)]
        return Posterior(torch.cat([p.mean for p in parts]), torch.cat([p.variance for p in parts]))

    def variance(self, features: Tensor, *, quick: bool = False) -> Tensor:
        """The variance (m, g) of the cache, in the same batches."""
        with self._threads(features, variance=True):
            return torch.cat(
                [
                    self.precision.variance(self.feature_map(batch), quick=quick)
                    for batch in self._batches(features)
                ]
            )

    def _batches(self, features: Tensor) -> Sequence[Tensor]:
        size = max(64, BATCH_ELEMENTS // max(1, len(self.precision.keys)))
        return torch.split(features, size)

    def _threads(self, features: Tensor, *, variance: bool) -> AbstractContextManager[None]:
        """One thread for few rows: beside other work, several would wait for each other."""
        n, width = self.precision.keys.shape
        each = n * (width + n if variance else width)
        return limited_threads(len(features) * each, features.device)

    def _posterior(self, mapped: Tensor) -> Posterior:
        if not self.is_softmax:
            return self.precision.posterior(mapped)
        rows, values = self.shares(mapped)
        return Posterior(rows @ values, self.precision.variance(mapped))

    def shares(self, mapped: Tensor) -> tuple[Tensor, Tensor]:
        """Two matrices (m, n) and (n, c) whose product is the mean: the share of each shot."""
        if self.coefficients is None:
            return self.precision.weights(mapped), self.precision.weighted_values
        values = self.precision.prior_coefficients(self.coefficients)
        return self.precision.prior_rows(mapped), values

    def discriminant_logits(self, rows: Tensor) -> Tensor | None:
        """(m, c) of rows (m, d') that were mapped but not scaled."""
        if self.discriminant is None:
            return None
        return self.choice.discriminant * self.discriminant.scores(rows)

    def training_logits(
        self, features: Tensor, *, mapped: Tensor | None = None, without: Tensor | None = None
    ) -> Tensor:
        """Logits (m, c) with their gradient; row i does not see key `without[i]`.

        This gives the leave-one-out loss, also for rows that are not keys. Pass `mapped`, the rows
        in the kernel's space, if they are known already.
        """
        mapped = self.feature_map(features) if mapped is None else mapped
        if without is None:
            posterior = self.precision.posterior(mapped)
        else:
            assert isinstance(self.precision, ExactPrecision)
            posterior = self.precision.posterior_without(mapped, without)
        return self.fused(self.zero_shot(features), *posterior)

    def zero_shot(self, features: Tensor) -> Tensor | None:
        """Text logits of rows (m, d)."""
        return None if self.text is None else features @ self.text.mT

    def fused(self, zero_shot: Tensor | None, mean: Tensor, variance: Tensor | None) -> Tensor:
        """Logits (m, c) from the posterior at the chosen hyper-parameters; variance (m, g)."""
        choice = self.choice
        spread = None if variance is None else self.precision.variance_of_classes(variance)
        return fuse(zero_shot, mean, spread, alpha=choice.alpha, eta=choice.eta, gain=choice.gain)

    def cache_factor(self, variance: Tensor) -> Tensor:
        """The factor of the mean, α / variance^η: (m, c) or (m, 1)."""
        spread = self.precision.variance_of_classes(variance)
        return self.choice.alpha * scaled_mean(torch.ones_like(spread), spread, self.choice.eta)
