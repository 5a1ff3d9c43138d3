"""Models of the softmax likelihood in all folds at once, at any setting of the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.gp import ExactPrecision
from gpcache.gp.discriminant import Discriminant
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.kernels import kernel_of
from gpcache.gp.softmax import SEARCH_TOLERANCE, Coefficients, softmax_map
from gpcache.gp.whitened_products import WhitenedProducts
from gpcache.methods.cache.recipe import Recipe
from gpcache.methods.cache.shots import Shots
from gpcache.methods.cache.softmax import (
    class_frequency,
    degrees_of_freedom,
    masked_text,
    prior_mean,
)

# Up to this number of rows what every shrinkage shares is kept for each diagonal: 10 MB.
FEW_ROWS = 200


class SoftmaxSetting(NamedTuple):
    """A point of the search.

    `trust` is the share of the text's gain in the prior mean, `diagonal` that of the diagonal in
    the target of the shrinkage.
    """

    shrinkage: float
    beta: float
    theta: float
    trust: float
    diagonal: float

    @property
    def tau(self) -> float:
        """The variance of the prior."""
        return self.theta / min(self.beta, 1.0)


class Fold(NamedTuple):
    """Rows to learn from, and held-out rows to predict.

    `rows` and `held_rows` are the numbers of both among all shots.
    """

    shots: Shots
    held_out: Shots
    rows: Tensor
    held_rows: Tensor


class Folds:
    """Predictions for the held-out rows of each fold, at any setting."""

    def __init__(self, recipe: Recipe, folds: Sequence[Fold], gain: float, *, scores: bool) -> None:
        """`gain` is that of the text; `scores` says whether there is a discriminant."""
        self._recipe, self._folds, self._gain, self._scores = recipe, folds, gain, scores
        self._exact = recipe.precision is ExactPrecision
        size = max(len(fold.shots) for fold in folds)
        self._targets = torch.stack([_padded(fold.shots.one_hot, size) for fold in folds])
        texts = [masked_text(fold.shots) for fold in folds]
        self._text = torch.stack([_padded(text, size) for text in texts])
        self._frequency = torch.stack([class_frequency(fold.shots) for fold in folds])[:, None]
        self.labels = torch.cat([fold.held_out.labels for fold in folds])
        self._spaces: tuple[tuple[float, float], list[_Space]] | None = None
        self._products: dict[float, list[WhitenedProducts | None]] = {}
        self._start: Tensor | None = None

    def parts(self, setting: SoftmaxSetting) -> Tensor:
        """Cache, discriminant (if any) and text (if any) of the held-out rows: (k, r, c)."""
        spaces = self._at(setting.shrinkage, setting.diagonal)
        product, rows = self._kernels(spaces, setting.beta)
        last = self._start
        start = None if last is None else Coefficients(last, product(last))
        offset = prior_mean(self._text, setting.trust * self._gain, self._frequency)
        solved = softmax_map(
            product, offset, self._targets, setting.tau, start=start, tolerance=SEARCH_TOLERANCE
        )
        self._start = solved.values
        cache = [
            near(solved.values[i, : len(fold.shots)])
            for i, (fold, near) in enumerate(zip(self._folds, rows, strict=True))
        ]
        parts = [torch.cat(cache)]
        if self._scores:
            parts.append(torch.cat([space.scores for space in spaces]))
        texts = [fold.held_out.zero_shot for fold in self._folds]
        if texts[0] is not None:
            parts.append(torch.cat([text for text in texts if text is not None]))
        # A constant added to a row does not change its softmax. Without it, the scales of all
        # parts are comparable.
        return torch.stack([part - part.mean(1, keepdim=True) for part in parts])

    def start(self, n: int) -> Tensor:
        """Coefficients (n, c) of all shots to start from: the mean of those of the folds."""
        assert self._start is not None
        total = self._start.new_zeros(n, self._start.shape[-1])
        count = self._start.new_zeros(n, 1)
        for fold, values in zip(self._folds, self._start, strict=True):
            total.index_add_(0, fold.rows, values[: len(fold.rows)])
            count.index_add_(0, fold.rows, torch.ones_like(count[: len(fold.rows)]))
        return total / count.clamp(min=1)

    def _at(self, shrinkage: float, diagonal: float) -> list[_Space]:
        if self._spaces is None or self._spaces[0] != (shrinkage, diagonal):
            self._spaces = None  # free the old similarities before the new ones are computed
            recipe = self._recipe.at(shrinkage, diagonal)
            products = self._products_at(recipe) if self._exact else [None] * len(self._folds)
            spaces = [
                _Space(recipe, fold, self._exact, one)
                for fold, one in zip(self._folds, products, strict=True)
            ]
            self._spaces = ((shrinkage, diagonal), spaces)
        return self._spaces[1]

    def _products_at(self, recipe: Recipe) -> Sequence[WhitenedProducts | None]:
        """What the folds have in common at every shrinkage."""
        diagonal = recipe.space.diagonal
        if diagonal not in self._products:
            if self._targets.shape[1] > FEW_ROWS:
                self._products.clear()  # the old ones go before the new ones come
            shots = [fold.shots for fold in self._folds]
            self._products[diagonal] = [
                WhitenedProducts.of(
                    recipe.space, one.features, one.labels, one.n_classes, fold.held_out.features
                )
                for fold, one in zip(self._folds, shots, strict=True)
            ]
        return self._products[diagonal]

    def _kernels(
        self, spaces: Sequence[_Space], beta: float
    ) -> tuple[Callable[[Tensor], Tensor], list[Callable[[Tensor], Tensor]]]:
        """The product of all folds' kernels with (f, n, c), and each fold's answers."""
        if self._exact:
            size = self._targets.shape[1]
            stacked = torch.stack(
                [_padded(kernel_of(s.similarity, beta), size, both=True) for s in spaces]
            )
            crosses = [kernel_of(s.cross, beta) for s in spaces]
            return stacked.matmul, [cross.matmul for cross in crosses]
        precisions = [
            self._recipe.precision(
                self._recipe.plan(fold.shots), space.keys, fold.shots.values, beta=beta, noise=1.0
            )
            for fold, space in zip(self._folds, spaces, strict=True)
        ]

        def product(right: Tensor) -> Tensor:
            products = torch.zeros_like(right)
            for i, precision in enumerate(precisions):
                n = len(precision.keys)
                products[i, :n] = precision.prior_product(right[i, :n])
            return products

        answers: list[Callable[[Tensor], Tensor]] = [
            lambda a, one=one, at=space.queries: one.prior_rows(at) @ one.prior_coefficients(a)  # type: ignore[misc]
            for one, space in zip(precisions, spaces, strict=True)
        ]
        return product, answers


class _Space:
    """One fold in the space of a recipe, fitted without the held-out rows."""

    def __init__(
        self, recipe: Recipe, fold: Fold, exact: bool, products: WhitenedProducts | None
    ) -> None:
        shots, held_out = fold.shots, fold.held_out
        freedom = degrees_of_freedom(shots)
        if products is not None:
            similarities = products.at(recipe.space.shrinkage, shots.features.dtype)
            self.similarity, self.cross, self.scores = (
                similarities.own,
                similarities.cross,
                similarities.scores * freedom,
            )
            return
        feature_map = recipe.space.fit(shots.features, shots.labels)
        known = feature_map.unscaled(shots.features)
        queries = feature_map.unscaled(held_out.features)
        self.keys, self.queries = _unit(known), _unit(queries)
        discriminant = Discriminant.of(shots.features, shots.labels, shots.n_classes, feature_map)
        self.scores = discriminant.scores(queries) * freedom
        if exact:
            self.similarity = self.keys @ self.keys.mT
            self.cross = self.queries @ self.keys.mT


def _padded(rows: Tensor, size: int, *, both: bool = False) -> Tensor:
    """Zeros below (and beside) a matrix, up to `size`."""
    missing = size - len(rows)
    return torch.nn.functional.pad(rows, (0, missing if both else 0, 0, missing))


def _unit(rows: Tensor) -> Tensor:
    return FeatureMap()(rows)
