"""Models of the softmax likelihood in all folds at once, at any setting of the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.gp import ExactPrecision
from gpcache.gp.discriminant import Discriminant
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.kernels import kernel_of
from gpcache.gp.products import matmul, symmetric_matmul
from gpcache.gp.softmax import SEARCH_TOLERANCE, Coefficients, softmax_map
from gpcache.gp.whitened_products import Differences, LabelledRows, WhitenedProducts, padded
from gpcache.methods.cache.recipe import Recipe
from gpcache.methods.cache.shots import Shots
from gpcache.methods.cache.softmax import (
    class_frequency,
    degrees_of_freedom,
    masked_text,
    prior_mean,
    weighted_labels,
)

# Up to this number of rows, and of elements in the answers of all folds, several settings are
# solved at once; what every shrinkage shares is kept for each diagonal, and the cosines of each
# setting: about 20 MB with 160 rows of 50 classes.
FEW_ROWS, FEW_ELEMENTS = 200, 2**17


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
        self._means: dict[float, Tensor] = {}
        self._spaces: dict[tuple[float, float], _Spaces] = {}
        self._products: dict[float, WhitenedProducts] = {}
        self._start: Tensor | None = None

    @property
    def is_small(self) -> bool:
        """Whether several settings at once take little more time than one."""
        n_folds, n_rows, n_classes = self._targets.shape
        answers = n_folds * n_classes * max(n_classes, n_rows + len(self._held))
        return self._exact and n_rows <= FEW_ROWS and answers <= FEW_ELEMENTS

    def parts(self, settings: Sequence[SoftmaxSetting]) -> Tensor:
        """Cache, discriminant (if any) and text (if any) of the held-out rows: (s, k, r, c).

        More than one setting only where `is_small`: they are solved in one batch.
        """
        count, n_folds = len(settings), len(self._folds)
        spaces = [self._at(setting.shrinkage, setting.diagonal) for setting in settings]
        product, answers = self._kernels(spaces, [setting.beta for setting in settings])
        start = None
        if self._start is not None:
            values = _repeated(self._start, count)
            start = Coefficients(values, product(values))
        taus = self._targets.new_tensor([setting.tau for setting in settings])
        solved = softmax_map(
            product,
            self._offsets([setting.trust for setting in settings]),
            _repeated(self._targets, count),
            taus.repeat_interleave(n_folds)[:, None, None],
            start=start,
            tolerance=SEARCH_TOLERANCE,
        )
        self._start = solved.values[-n_folds:]
        found = answers(solved.values)
        pairs = zip(found.view(count, n_folds, *found.shape[1:]), spaces, strict=True)
        return torch.stack([self._stacked(own, space.scores) for own, space in pairs])

    def _stacked(self, answers: Tensor, scores: Tensor) -> Tensor:
        """The parts (k, r, c), from the answers of the cache and the discriminant (f, m, c)."""
        parts = [self._held_rows(answers)]
        if self._scores:
            parts.append(self._held_rows(scores))
        if self._held_text is not None:
            parts.append(self._held_text)
        # A constant added to a row does not change its softmax. Without it, the scales of all
        # parts are comparable.
        stacked = torch.stack(parts)
        return stacked - stacked.mean(2, keepdim=True)

    def _offsets(self, trusts: Sequence[float]) -> Tensor:
        """The prior means (s · f, n, c) at these shares of the text's gain."""
        for trust in set(trusts) - self._means.keys():
            if not self.is_small:
                self._means.clear()  # the old one goes before the new one comes
            self._means[trust] = prior_mean(self._text, trust * self._gain, self._frequency)
        return _joined([self._means[trust] for trust in trusts])

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
            if not self.is_small:
                self._spaces.clear()  # the old similarities go before the new ones come
            recipe = self._recipe.at(shrinkage, diagonal)
            products = self._products_at(diagonal) if self._exact else None
            if products is None:
                spaces = _Spaces.fitted(recipe, self._folds, exact=self._exact)
            else:
                spaces = _Spaces(*products.at(shrinkage, self._targets.dtype))
            spaces = spaces._replace(scores=spaces.scores * self._freedom)
            self._spaces[shrinkage, diagonal] = spaces
        return self._spaces[shrinkage, diagonal]

    def _products_at(self, diagonal: float) -> WhitenedProducts | None:
        """What the folds have in common at every shrinkage; None where it saves nothing."""
        if self._differences is None:
            return None
        if diagonal not in self._products:
            if not self.is_small:
                self._products.clear()  # the old ones go before the new ones come
            self._products[diagonal] = self._differences.products(diagonal)
        return self._products[diagonal]

    @cached_property
    def _differences(self) -> Differences | None:
        problems = [
            LabelledRows(shots.features, shots.labels, held_out.features, shots.sample_weight)
            for shots, held_out, *_ in self._folds
        ]
        return Differences.of(self._recipe.space, problems, self._folds[0].shots.n_classes)

    def _kernels(
        self, spaces: Sequence[_Spaces], betas: Sequence[float]
    ) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """The product of all folds' kernels with (s · f, n, c), and the answers (s · f, m, c)."""
        if self._exact:
            pairs = list(zip(spaces, betas, strict=True))
            own = _joined([kernel_of(space.own, beta) for space, beta in pairs])
            cross = _joined([kernel_of(space.cross, beta) for space, beta in pairs])
            return partial(symmetric_matmul, own), partial(matmul, cross)
        (space,), (beta,) = spaces, betas
        precisions = [
            self._recipe.precision(
                self._recipe.plan(fold.shots), rows, fold.shots.values, beta=beta, noise=1.0
            )
            for fold, rows in zip(self._folds, space.keys, strict=True)
        ]

        def product(right: Tensor) -> Tensor:
            products = torch.zeros_like(right)
            for i, precision in enumerate(precisions):
                n = len(precision.keys)
                products[i, :n] = precision.prior_product(right[i, :n])
            return products

        def answers(values: Tensor) -> Tensor:
            size = space.scores.shape[1]
            groups = zip(precisions, space.queries, values, strict=True)
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


def _repeated(problems: Tensor, count: int) -> Tensor:
    """Problems (f, n, c), `count` times one after the other; a view where that is once."""
    return problems.expand(count, *problems.shape).flatten(0, 1)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Parts one after the other; no copy where there is one."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _unit(rows: Tensor) -> Tensor:
    return FeatureMap()(rows)
