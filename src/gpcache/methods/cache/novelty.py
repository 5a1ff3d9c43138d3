"""Held-out novelty of the shots after a few of many have changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gpcache.gp import Precision
from gpcache.methods.cache import regression
from gpcache.methods.cache.recipe import Recipe
from gpcache.methods.cache.search import Choice
from gpcache.methods.cache.shots import Shots

# Up to this number of shots, novelty is computed again after every change.
FEW = 200


@dataclass(frozen=True, eq=False)
class NoveltyBefore:
    """The novelty of a model before its shots changed, and its posterior then.

    Held-out novelty fits the feature space again for every fold, which takes seconds where shots
    are many. A few changed shots hardly change the space, but a copy of a shot makes that shot far
    less novel. So novelty is multiplied by what the change does to the leave-one-out variance in
    the space of the model. A shot that came later had no part in that space: its variance there
    is its novelty.
    """

    recipe: Recipe
    shots: Shots
    keys: Tensor
    choice: Choice
    known: NDArray[np.float64] | None

    def after(self, precision: Precision, shots: Shots, rows: Tensor) -> NDArray[np.float64]:
        """The novelty of shots that were these rows (n,), −1 if new; NaN if alone in a class."""
        novelty = _leave_one_out(precision)
        is_old = (rows >= 0).cpu().numpy()
        novelty[is_old] *= self._share[rows[rows >= 0].cpu().numpy()]
        novelty[~shots.with_company().cpu().numpy()] = np.nan
        return novelty.clip(0, 1)

    @cached_property
    def _share(self) -> NDArray[np.float64]:
        """Held-out novelty (n,) by the leave-one-out variance; 1 where it is unknown."""
        held_out = self.known
        if held_out is None:
            held_out = regression.held_out_variance(self.recipe, self.shots, self.choice)
        own = _leave_one_out(self.recipe.condition(self.shots, self.keys, self.choice))
        return np.nan_to_num(held_out / own, nan=1.0)


def _leave_one_out(precision: Precision) -> NDArray[np.float64]:
    """The variance (n,) of each key without itself."""
    return precision.leave_one_out().variance[:, 0].double().cpu().numpy()
