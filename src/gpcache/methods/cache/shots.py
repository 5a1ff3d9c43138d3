"""The labelled rows of a cache model, and which of them are held out when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpcache.gp import ExactPrecision, Precision
from gpcache.gp.feature_maps import CastProjection, KernelSpace, ResidualProjection
from gpcache.gp.nystrom import rank_within
from gpcache.gp.sweep import Sweep, SweepPoint
from gpcache.methods.cache.search import Choice, HeldOut, Place, Settings
from gpcache.support.devices import free_memory


class Belief(NamedTuple):
    """How far the labels (n,) that a fit saw are believed, from 0 to 1: `weights` (n,).

    Labels are class numbers, −1 where a class is gone.
    """

    weights: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Shots:
    """Unit rows (n, d), class numbers (n,), values to regress on (n, c), text logits (n, c).

    The values are one-hot labels; with `residual`, less what gain · zero_shot already says. Of a
    class known by its text alone they say nothing: that no shot is of it means that none was given.
    `views` (n, v, d) are augmented views of the rows, for methods that train. `belief` says how
    far each label is believed; all alike by default.
    """

    features: Tensor
    labels: Tensor
    values: Tensor
    zero_shot: Tensor | None
    residual: bool = False
    views: Tensor | None = None
    belief: Belief | None = None

    @classmethod
    def make(
        cls,
        features: Tensor,
        labels: Tensor,
        zero_shot: Tensor | None,
        *,
        classes: int,
        residual: bool,
    ) -> Shots:
        """Shots whose values are those of gain 1."""
        values = torch.nn.functional.one_hot(labels, classes).to(features)
        return cls(features, labels, values, zero_shot, residual).at_gain(1.0)

    def at_gain(self, gain: float) -> Shots:
        """The same shots with the values that belong to another gain."""
        if not self.residual or self.zero_shot is None:
            return self
        values = torch.nn.functional.one_hot(self.labels, self.n_classes).to(self.features)
        values = values - (gain * self.zero_shot).softmax(-1)
        return replace(self, values=values.masked_fill(self.absent, 0))

    @property
    def weights(self) -> Tensor | None:
        """How much each label (n,) counts. One that was given after the fit counts in full."""
        if self.belief is None:
            return None
        return torch.where(self.labels == self.belief.labels, self.belief.weights, 1.0)

    @property
    def absent(self) -> Tensor:
        """Classes (c,) without a shot: known by their text alone."""
        return torch.bincount(self.labels, minlength=self.n_classes) == 0

    def __getitem__(self, rows: Tensor) -> Shots:
        zero_shot = None if self.zero_shot is None else self.zero_shot[rows]
        views = None if self.views is None else self.views[rows]
        return replace(
            self,
            features=self.features[rows],
            labels=self.labels[rows],
            values=self.values[rows],
            zero_shot=zero_shot,
            views=views,
            belief=None
            if self.belief is None
            else Belief(self.belief.weights[rows], self.belief.labels[rows]),
        )

    def to(self, dtype: torch.dtype) -> Shots:
        """The same shots in another precision of numbers."""
        zero_shot = None if self.zero_shot is None else self.zero_shot.to(dtype)
        return replace(
            self,
            features=self.features.to(dtype),
            values=self.values.to(dtype),
            zero_shot=zero_shot,
            belief=None
            if self.belief is None
            else self.belief._replace(weights=self.belief.weights.to(dtype)),
        )

    def with_views(self, views: Tensor) -> Shots:
        """The same shots with augmented views (n, v, d) of them."""
        return replace(self, views=views)

    def samples(self) -> tuple[Tensor, Tensor]:
        """The views as samples (N, d) of their own with labels (N,); without views, the shots."""
        if self.views is None:
            return self.features, self.labels
        return self.views.flatten(0, 1), self.labels.repeat_interleave(self.views.shape[1])

    def __len__(self) -> int:
        return len(self.features)

    @property
    def n_classes(self) -> int:
        return self.values.shape[1]

    @property
    def per_class(self) -> float:
        """Mean shots of the classes that have any."""
        return len(self) / max(1, len(torch.unique(self.labels)))

    def with_company(self) -> Tensor:
        """Rows (n,) whose class has another shot: only their absence leaves the class its keys."""
        return torch.bincount(self.labels, minlength=self.n_classes)[self.labels] > 1

    def can_be_held_out(self) -> bool:
        """Whether held-out rows can speak for the whole: at least half of the classes have two.

        A few rows of a few classes would tell of those alone, and anything at all by chance.
        """
        counts = torch.bincount(self.labels)
        return int((counts > 1).sum()) * 2 >= int((counts > 0).sum())

    def content_order(self, seed: int) -> Tensor:
        """A random order of the rows that depends on what they are, not on where they stand."""
        generator = torch.Generator().manual_seed(seed)
        direction = torch.randn(self.features.shape[1], generator=generator, dtype=torch.float64)
        return torch.argsort(self.features @ direction.to(self.features))

    def folds(self, n_folds: int, seed: int) -> Tensor:
        """Fold (n,) of each row, −1 for rows without company: those are never held out.

        A class's shots go to different folds as far as they can, so a fold takes about the same
        share of every class and leaves each of them keys.
        """
        rank = rank_within(self.labels, self.content_order(seed))
        most = int(torch.bincount(self.labels).max())
        return torch.where(self.with_company(), rank % max(2, min(n_folds, most)), -1)

    def folds_of_sets(self, sets: Tensor, n_folds: int, seed: int = 0) -> Tensor:
        """As `folds`, with all rows of a set (n,) in one fold.

        Rows whose class has no row in another set are never held out (−1).
        """
        order = self.content_order(seed)
        _, member = torch.unique(sets, return_inverse=True)
        position = torch.empty_like(order)
        position[order] = torch.arange(len(order), device=order.device)
        first = torch.full((int(member.max()) + 1,), len(order), device=order.device)
        first.scatter_reduce_(0, member, position, "amin")
        leaders = order[first]  # the first row of each set
        rank = rank_within(self.labels[leaders], torch.argsort(first))
        pairs = torch.unique(torch.stack([self.labels, member], 1), dim=0)
        counts = torch.bincount(pairs[:, 0], minlength=self.n_classes)
        fold = rank[member] % max(2, min(n_folds, int(counts.max())))
        return torch.where(counts[self.labels] > 1, fold, -1)


class Recipe(NamedTuple):
    """What turns shots into a posterior, hyper-parameters apart."""

    space: KernelSpace
    precision: type[Precision]
    options: dict[str, Any]

    def at(self, shrinkage: float, diagonal: float) -> Recipe:
        """The same with this shrinkage of the space, towards this share of the diagonal."""
        return self._replace(space=replace(self.space, shrinkage=shrinkage, diagonal=diagonal))

    def to(self, dtype: torch.dtype, *, given: torch.dtype) -> Recipe:
        """The same for features of another dtype than the `given` one.

        A projection that is a function of the user's still gets rows of the given one.
        """
        projection = self.space.projection
        if isinstance(projection, ResidualProjection):
            projection = ResidualProjection(projection.matrix.to(dtype))
        elif projection is not None:
            projection = CastProjection(projection, given)
        return self._replace(space=replace(self.space, projection=projection))

    def plan(self, shots: Shots) -> Any:
        """The plan of the precision for these shots."""
        return self.precision.plan(
            shots.labels,
            shots.n_classes,
            width=shots.features.shape[1],
            dtype=shots.features.dtype,
            order=shots.content_order(self.options.get("seed", 0)),
            **self.options,
        )


class Part:
    """Keys, and queries that they have not seen; without queries, the keys left out one by one."""

    def __init__(
        self,
        recipe: Recipe,
        shots: Shots,
        queries: Tensor | None = None,
        *,
        trained: Any = None,
        counted: Tensor | None = None,
        siblings: int = 1,
    ) -> None:
        """Map and keys are those of a `trained` model, if there is one.

        `counted` are the row numbers to answer about when keys are left out; all by default.
        `siblings` is how many parts there will be, which share the memory.
        """
        self._counted = slice(None) if counted is None else counted
        self._shots = shots
        if trained is None:
            feature_map = recipe.space.fit(shots.features, shots.labels)
            self._keys = feature_map(shots.features)
        else:
            feature_map, self._keys = trained.feature_map, trained.precision.keys
        self._queries = None if queries is None else feature_map(queries)
        self._precision = recipe.precision
        self._plan = recipe.plan(shots)
        # The exact posterior is what default fits sweep: similarities are computed once.
        self._sweep = (
            Sweep(self._keys, self._queries, keep=self._fits(siblings))
            if recipe.precision is ExactPrecision
            else None
        )

    def _fits(self, siblings: int) -> bool:
        """Whether the similarities of all parts take no more than a quarter of the free memory."""
        n = len(self._keys) + (0 if self._queries is None else len(self._queries))
        required = siblings * len(self._keys) * n * self._keys.element_size()
        return required <= free_memory(self._keys.device) // 4

    def at(
        self, beta: float, noises: Sequence[float], gain: float, *, with_variance: bool
    ) -> list[SweepPoint]:
        """Mean (m, c), variance (m, c) or (m, 1), and log marginal likelihood for each noise."""
        values = self._shots.at_gain(gain).values
        if self._sweep is not None:
            points = self._sweep.at(values, beta, noises, with_variance=with_variance)
        else:
            points = [self._one(values, beta, noise) for noise in noises]
        rows = self._counted
        return [
            SweepPoint(
                point.mean[rows],
                None if point.variance is None else point.variance[rows],
                point.log_marginal_likelihood,
            )
            for point in points
        ]

    def _one(self, values: Tensor, beta: float, noise: float) -> SweepPoint:
        precision = self._precision(self._plan, self._keys, values, beta=beta, noise=noise)
        if self._queries is None:
            mean, variance = precision.leave_one_out()
        else:
            mean, variance = precision.posterior(self._queries)
        likelihood = (
            float(precision.log_marginal_likelihood()) if precision.uses_noise else float("nan")
        )
        return SweepPoint(mean, precision.variance_of_classes(variance), likelihood)


class Trail(NamedTuple):
    """Every setting (v) that was looked at: its place, and what each of n shots said of it.

    `losses` (v, n) are those of held-out rows, `penalties` (v,) what the place costs beside them.
    """

    settings: Settings
    places: list[Place]
    losses: Tensor
    penalties: Tensor

    @classmethod
    def of(cls, seen: Sequence[Choice], settings: Settings, rows: Tensor, n: int) -> Trail:
        """The trail of choices that were scored on these rows (k,)."""
        stated = torch.stack([one.losses for one in seen if one.losses is not None])
        losses = stated.new_zeros(len(seen), n)
        losses[:, rows] = stated
        scores = stated.new_tensor([one.score for one in seen])
        places = [(one.beta, one.noise, one.gain) for one in seen]
        return cls(settings, places, losses, scores - stated.mean(1))


class Evidence:
    """What a cache model says about rows it has not seen, at any (β, noise, gain)."""

    def __init__(
        self,
        parts: Sequence[Part],
        shots: Shots,
        rows: Tensor,
        *,
        with_variance: bool,
        protocol: str,
    ) -> None:
        """The parts together answer about `shots[rows]`, in that order; `protocol` says how."""
        self._parts = parts
        self._with_variance = with_variance
        self._shots = shots[rows]
        self.rows = rows
        self.protocol = protocol
        #: What was looked at on the way to the choice, for figures that were not optimised.
        self.trail: Trail | None = None
        self._last: tuple[tuple[float, Sequence[float], float], list[HeldOut]] | None = None

    def __call__(self, beta: float, noises: Sequence[float], gain: float) -> list[HeldOut]:
        """One answer for each noise. The last ones are kept: a report asks for them again."""
        place = (beta, noises, gain)
        if self._last is None or self._last[0] != place:
            self._last = (place, self._evaluate(*place))
        return self._last[1]

    def _evaluate(self, beta: float, noises: Sequence[float], gain: float) -> list[HeldOut]:
        by_part = [
            part.at(beta, noises, gain, with_variance=self._with_variance) for part in self._parts
        ]
        found = []
        for points in zip(*by_part, strict=True):
            mean = torch.cat([point.mean for point in points])
            variances = [point.variance for point in points if point.variance is not None]
            variance = torch.cat(variances) if self._with_variance else None
            likelihood = sum(point.log_marginal_likelihood for point in points)
            rows = self._shots
            found.append(HeldOut(mean, variance, rows.zero_shot, rows.labels, likelihood))
        return found
