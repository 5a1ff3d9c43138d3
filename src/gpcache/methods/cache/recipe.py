"""The recipe that makes a cache model from shots, and the task of a fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gpcache.gp import Precision
from gpcache.gp.feature_maps import CastProjection, FeatureMap, KernelSpace, ResidualProjection
from gpcache.methods.cache.search import Choice, SearchOptions
from gpcache.methods.cache.shots import Shots, fold_rows

Likelihood = Literal["softmax", "gaussian"]
Selection = Literal["auto", "loo", "folds", "validation"]


@dataclass(frozen=True)
class Recipe:
    """The space of the kernel, the posterior with its options, and how shots are held out."""

    space: KernelSpace
    precision: type[Precision]
    options: dict[str, Any]
    likelihood: Likelihood = "gaussian"
    selection: Selection = "auto"
    n_folds: int = 8
    seed: int = 0

    @property
    def is_softmax(self) -> bool:
        """Whether the likelihood is softmax instead of regression."""
        return self.likelihood == "softmax"

    @property
    def uses_loo(self) -> bool:
        """Whether shots are left out one by one, in closed form, instead of in folds."""
        learns = self.space.sees_labels
        return self.selection == "loo" or (self.selection != "folds" and not learns)

    def at(self, shrinkage: float, diagonal: float) -> Recipe:
        """The same with this shrinkage of the space, towards this share of the diagonal."""
        return replace(self, space=replace(self.space, shrinkage=shrinkage, diagonal=diagonal))

    def to(self, dtype: torch.dtype, *, given: torch.dtype) -> Recipe:
        """The same for features of another dtype than the `given` one.

        A projection that is a function still gets rows of the given dtype.
        """
        projection = self.space.projection
        if isinstance(projection, ResidualProjection):
            projection = ResidualProjection(projection.matrix.to(dtype))
        elif projection is not None:
            projection = CastProjection(projection, given)
        return replace(self, space=replace(self.space, projection=projection))

    def feature_map(self, shots: Shots) -> FeatureMap:
        """The map into the space of the kernel, made from these shots."""
        return self.space.fit(shots.features, shots.labels, shots.sample_weight)

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

    def condition(self, shots: Shots, keys: Tensor, choice: Choice) -> Precision:
        """The posterior of these shots, with keys in the kernel's space, at a choice."""
        values = shots.at_gain(choice.gain).values
        return self.precision(self.plan(shots), keys, values, beta=choice.beta, noise=choice.noise)

    def folds(self, shots: Shots, n_folds: int | None = None) -> list[tuple[Tensor, Tensor]]:
        """(rows to learn from, rows held out) of each fold of the shots."""
        return fold_rows(shots.folds(n_folds or self.n_folds, self.seed))


@dataclass(frozen=True, eq=False)
class Task:
    """What a fit starts from: shots, the recipe, the text of the classes, and what to choose.

    Choices are made on the `validation` set if there is one. Progress bars show the `name`.
    """

    shots: Shots
    recipe: Recipe
    text: Tensor | None
    settings: SearchOptions
    validation: Shots | None = None
    name: str = "fit"
