"""ProjectionOptions: how a similarity projection is learned; the defaults are the paper's."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from gpcache.errors import DataError
from gpcache.support.checks import positive, whole

_LEAST = {"bottleneck": 1, "neighbours": 2, "epochs": 1, "batch_size": 1, "seed": 0}


@dataclass(frozen=True)
class ProjectionOptions:
    """How a similarity projection is learned; the defaults are those of the paper.

    The page *Similarity learned from unlabelled images* says how the values that the paper leaves
    open were set.

    Parameters
    ----------
    bottleneck : int, default=1
        1 learns a full matrix P (d, d); q > 1 learns a product through d/q columns.
    residual : bool, default=True
        normalise(P f + f) as in the paper, or normalise(P f).
    hard_mining : bool, default=True
        Contrast the nearest images of each anchor, or as many random ones.
    neighbours : int, default=128
        Number of images that are contrasted with each other, the anchor among them.
    temperature : float, default=0.07
        Divides the cosines.
    reduction : {"sum", "mean"}, default="sum"
        Sum over the images of an anchor, as in the paper, or their mean.
    epochs : int, default=10
        Number of epochs.
    batch_size : int, default=256
        Number of anchors in a step.
    learning_rate : float, default=0.01
        Initial learning rate of SGD; it falls to zero along a cosine.
    momentum : float, default=0.9
        Momentum of SGD.
    weight_decay : float, default=0.05
        Weight decay of SGD.
    seed : int, default=0
        Seed of the order, the views and the random images.

    Raises
    ------
    DataError
        If a value is out of range.

    Examples
    --------
    >>> from gpcache.similarity import ProjectionOptions
    >>> ProjectionOptions(epochs=3).neighbours
    128
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
