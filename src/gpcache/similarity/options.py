"""ProjectionOptions: how a similarity projection is learned; the defaults are the paper's."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from gpcache.errors import DataError
from gpcache.support.checks import positive, whole

_LEAST = {"bottleneck": 1, "neighbours": 2, "epochs": 1, "batch_size": 1, "seed": 0}


@dataclass(frozen=True)
class ProjectionOptions:
    """What the paper leaves open is set as docs/similarity.md explains.

    Parameters
    ----------
    bottleneck : 1 learns a full matrix P (d, d); q > 1 a product through d/q columns.
    residual : normalise(P f + f) as in the paper, or normalise(P f).
    hard_mining : contrast each anchor's nearest images, or as many random ones.
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
                whole(field.name, value, least=_LEAST[field.name])
            elif isinstance(field.default, float):
                positive(field.name, value, allow_zero=field.name in ("momentum", "weight_decay"))
        if self.momentum >= 1:
            raise DataError(f"momentum must be below one, got {self.momentum!r}.")
        if self.reduction not in ("sum", "mean"):
            raise DataError(f"reduction must be 'sum' or 'mean', got {self.reduction!r}.")
