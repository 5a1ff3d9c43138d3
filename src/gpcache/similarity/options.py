"""ProjectionOptions: how a similarity projection is learned; the defaults are the paper's."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from gpcache.errors import DataError

_LEAST = {"bottleneck": 1, "neighbours": 2, "epochs": 1, "batch_size": 1, "seed": 0}


@dataclass(frozen=True)
class ProjectionOptions:
    """What the paper leaves open is set as docs/similarity.md explains.

    Parameters
    ----------
    bottleneck : 1 learns a full matrix P (d, d); q > 1 a product through d/q columns.
    residual : normalise(P f + f) as in the paper, or normalise(P f).
    hard_mining : contrast each anchor's nearest images, or so many random ones.
    neighbours : how many images are contrasted with each other, the anchor among them (r).
    temperature : what cosines are divided by (τ).
    reduction : "sum" over the images of an anchor, as printed in the paper, or their "mean".
    epochs, batch_size, learning_rate, momentum, weight_decay :
        SGD, with the learning rate falling to zero along a cosine.
    seed : of the order, the views and the random images.
    """

    bottleneck: int = 1
    residual: bool = True
    hard_mining: bool = True
    neighbours: int = 128
    temperature: float = 0.07
    reduction: Literal["sum", "mean"] = "sum"
    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-2
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _LEAST:
                _check_whole(field.name, value, _LEAST[field.name])
            elif isinstance(field.default, float):
                _check_number(field.name, value, zero=field.name in ("momentum", "weight_decay"))
        if self.momentum >= 1:
            raise DataError(f"momentum must be below one, got {self.momentum!r}.")
        if self.reduction not in ("sum", "mean"):
            raise DataError(f"reduction must be 'sum' or 'mean', got {self.reduction!r}.")


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"{name} must be a whole number of {least} or more, got {value!r}.")


def _check_number(name: str, value: Any, *, zero: bool) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0 or (value == 0 and not zero):
        bound = "of zero or more" if zero else "above zero"
        raise DataError(f"{name} must be a number {bound}, got {value!r}.")
