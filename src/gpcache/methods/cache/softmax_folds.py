"""Models of the softmax likelihood in all folds at once, at any setting of the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.gp import ExactPrecision
from gpcache.gp.discriminant import Discriminant
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.kernels import kernel_of
from gpcache.gp.products import matmul, symmetric_matmul
from gpcache.gp.softmax import SEARCH_TOLERANCE, Coefficients, softmax_map
from gpcache.gp.whitened_products import WhitenedProducts, padded
from gpcache.methods.cache.recipe import Recipe
from gpcache.methods.cache.shots import Shots
from gpcache.methods.cache.softmax import (
    class_frequency,
    degrees_of_freedom,
    masked_text,
    prior_mean,
    weighted_labels,
)

# Up to this number of rows what every shrinkage shares is kept for each diagonal, and the cosines
# of each setting: 20 MB.
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
    """Predictions for the held-out rows of each fold, at any setting.

    All folds are one batch, filled up with zeros to the size of the largest. Rows without a target
    have no coefficients, so nothing depends on the filling.
    """

    def __init__(self, recipe: Recipe, folds: Sequence[Fold], gain: float, *, scores: bool) -> None:
        """`gain` is that of the text; `scores` says whether there is a discriminant."""
        self._recipe, self._folds, self._gain, self._scores = recipe, folds, gain, scores
        self._exact = recipe.precision is ExactPrecision
        size = max(len(fold.shots) for fold in folds)
        self._targets = torch.stack([padded(weighted_labels(fold.shots), size) for fold in folds])
        texts = [masked_text(fold.shots) for fold in folds]
        self._text = torch.stack([padded(text, size) for text in texts])
        self._frequency = torch.stack([class_frequency(fold.shots) for fold in folds])[:, None]
        self.labels = torch.cat([fold.held_out.labels for fold in folds])
        weights = [fold.held_out.sample_weight for fold in folds]
        self.row_weights = None if weights[0] is None else torch.cat(weights)  # type: ignore[arg-type]
        held_texts = [fold.held_out.zero_shot for fold in folds]
        self._held_text = None
        if held_texts[0] is not None:
            self._held_text = torch.cat([text for text in held_texts if text is not None])
        # Where the rows of all folds lie in a batch that is filled up: see `_held_rows`.
        counts = [len(fold.held_out) for fold in folds]
        places = [torch.arange(count) + k * max(counts) for k, count in enumerate(counts)]
        self._held = torch.cat(places).to(self.labels.device)
        freedom = [degrees_of_freedom(fold.shots) for fold in folds]
        self._freedom = self._text.new_tensor(freedom)[:, None, None]
        self._offset: tuple[float, Tensor] | None = None
        self._spaces: dict[tuple[float, float], _Spaces] = {}
        self._products: dict[float, WhitenedProducts | None] = {}
        self._start: Tensor | None = None

    def parts(self, setting: SoftmaxSetting) -> Tensor:
        """Cache, discriminant (if any) and text (if any) of the held-out rows: (k, r, c)."""
        spaces = self._at(setting.shrinkage, setting.diagonal)
        product, answers = self._kernels(spaces, setting.beta)
        last = self._start
        start = None if last is None else Coefficients(last, product(last))
        if self._offset is None or self._offset[0] != setting.trust:
            mean = prior_mean(self._text, setting.trust * self._gain, self._frequency)
            self._offset = (setting.trust, mean)
        solved = softmax_map(
            product,
            self._offset[1],
            self._targets,
            setting.tau,
            start=start,
            tolerance=SEARCH_TOLERANCE,
        )
        self._start = solved.values
        parts = [self._held_rows(answers(solved.values))]
        if self._scores:
            parts.append(self._held_rows(spaces.scores))
        if self._held_text is not None:
            parts.append(self._held_text)
        # A constant added to a row does not change its softmax. Without it, the scales of all
        # parts are comparable.
        stacked = torch.stack(parts)
        return stacked - stacked.mean(2, keepdim=True)

    def start(self, n: int) -> Tensor:
        """Coefficients (n, c) of all shots to start from: the mean of those of the folds."""
        assert self._start is not None
        total = self._start.new_zeros(n, self._start.shape[-1])
        count = self._start.new_zeros(n, 1)
        for fold, values in zip(self._folds, self._start, strict=True):
            total.index_add_(0, fold.rows, values[: len(fold.rows)])
            count.index_add_(0, fold.rows, torch.ones_like(count[: len(fold.rows)]))
        return total / count.clamp(min=1)

    def _held_rows(self, filled: Tensor) -> Tensor:
        """The held-out rows (r, c) of all folds (f, m, c)."""
        return filled.flatten(0, 1)[self._held]

    def _at(self, shrinkage: float, diagonal: float) -> _Spaces:
        if (shrinkage, diagonal) not in self._spaces:
            if self._targets.shape[1] > FEW_ROWS:
                self._spaces.clear()  # the old similarities go before the new ones come
            recipe = self._recipe.at(shrinkage, diagonal)
            products = self._products_at(recipe) if self._exact else None
            if products is None:
                spaces = _Spaces.fitted(recipe, self._folds, exact=self._exact)
            else:
                spaces = _Spaces(*products.at(shrinkage, self._targets.dtype))
            spaces = spaces._replace(scores=spaces.scores * self._freedom)
            self._spaces[shrinkage, diagonal] = spaces
        return self._spaces[shrinkage, diagonal]

    def _products_at(self, recipe: Recipe) -> WhitenedProducts | None:
        """What the folds have in common at every shrinkage; None where it saves nothing."""
        diagonal = recipe.space.diagonal
        if diagonal not in self._products:
            if self._targets.shape[1] > FEW_ROWS:
                self._products.clear()  # the old ones go before the new ones come
            products = []
            for fold in self._folds:
                shots, others = fold.shots, fold.held_out.features
                one = WhitenedProducts.of(
                    recipe.space,
                    shots.features,
                    shots.labels,
                    shots.n_classes,
                    others,
                    shots.sample_weight,
                )
                if one is not None:
                    products.append(one)
            every = len(products) == len(self._folds)
            self._products[diagonal] = WhitenedProducts.stacked(products) if every else None
        return self._products[diagonal]

    def _kernels(
        self, spaces: _Spaces, beta: float
    ) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """The product of all folds' kernels with (f, n, c), and the answers (f, m, c) for it."""
        if self._exact:
            own, cross = (kernel_of(part, beta) for part in (spaces.own, spaces.cross))
            return partial(symmetric_matmul, own), partial(matmul, cross)
        precisions = [
            self._recipe.precision(
                self._recipe.plan(fold.shots), rows, fold.shots.values, beta=beta, noise=1.0
            )
            for fold, rows in zip(self._folds, spaces.keys, strict=True)
        ]

        def product(right: Tensor) -> Tensor:
            products = torch.zeros_like(right)
            for i, precision in enumerate(precisions):
                n = len(precision.keys)
                products[i, :n] = precision.prior_product(right[i, :n])
            return products

        def answers(values: Tensor) -> Tensor:
            size = spaces.scores.shape[1]
            groups = zip(precisions, spaces.queries, values, strict=True)
            found = [
                one.prior_rows(rows) @ one.prior_coefficients(own[: len(one.keys)])
                for one, rows, own in groups
            ]
            return torch.stack([padded(rows, size) for rows in found])

        return product, answers


class _Spaces(NamedTuple):
    """The folds in the space of a recipe, each fitted without its held-out rows.

    Cosines among the shots (f, n, n) and of the held-out rows (f, m, n), empty without an exact
    kernel; scores of the discriminant (f, m, c). Without an exact kernel also the rows of each
    fold themselves.
    """

    own: Tensor
    cross: Tensor
    scores: Tensor
    keys: Sequence[Tensor] = ()
    queries: Sequence[Tensor] = ()

    @classmethod
    def fitted(cls, recipe: Recipe, folds: Sequence[Fold], *, exact: bool) -> _Spaces:
        """From the whitened rows of each fold."""
        n = max(len(fold.shots) for fold in folds)
        m = max(len(fold.held_out) for fold in folds)
        keys, queries, scores, cosines = [], [], [], []
        for shots, held_out, *_ in folds:
            feature_map = recipe.feature_map(shots)
            rows = feature_map.unscaled(held_out.features)
            discriminant = Discriminant.of(
                shots.features, shots.labels, shots.n_classes, feature_map, shots.sample_weight
            )
            scores.append(padded(discriminant.scores(rows), m))
            keys.append(_unit(feature_map.unscaled(shots.features)))
            queries.append(_unit(rows))
            if exact:
                known = padded(keys.pop(), n)
                others = padded(queries.pop(), m)
                cosines.append((matmul(known, known.mT), matmul(others, known.mT)))
        stacked = torch.stack(scores)
        if not exact:
            return cls(stacked[:0], stacked[:0], stacked, keys, queries)
        own, cross = zip(*cosines, strict=True)
        return cls(torch.stack(own), torch.stack(cross), stacked)


def _unit(rows: Tensor) -> Tensor:
    return FeatureMap()(rows)
