"""Prediction: one type for every answer, whatever the input was."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Neighbour(NamedTuple):
    """A training image and its signed share of the answer's logit: above zero speaks for it."""

    name: str
    label: str
    weight: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of one image.

    `uncertainty` is how unlike all training images it is (0: like one of them, 1: like none).
    `familiarity` is the share of held-out training images that were at least as unlike: an image
    is `rejected` where it falls below the rate that was asked for. NaN where none could be held
    out. `neighbours` are the training images that drove the answer, if they were asked for.
    """

    name: str
    classes: NDArray[Any]
    distribution: NDArray[np.float64]
    uncertainty: float
    familiarity: float
    rejected: bool
    neighbours: tuple[Neighbour, ...] = ()

    @cached_property
    def _best(self) -> int:
        return int(self.distribution.argmax())

    @property
    def label(self) -> str:
        """The most probable class, also where it is rejected."""
        return str(self.classes[self._best])

    @property
    def probability(self) -> float:
        """The probability of the label."""
        return float(self.distribution[self._best])

    @property
    def probabilities(self) -> dict[str, float]:
        """Every class and its probability."""
        return dict(zip(map(str, self.classes), self.distribution.tolist(), strict=True))

    def top(self, count: int) -> list[tuple[str, float]]:
        """The most probable classes and their probabilities, best first."""
        order = np.argsort(-self.distribution, kind="stable")[:count]
        return [(str(self.classes[i]), float(self.distribution[i])) for i in order]

    def as_dict(self, top: int = 1) -> dict[str, Any]:
        """The answer as JSON holds it, with the `top` classes."""
        unknown = np.isnan(self.familiarity)
        found: dict[str, Any] = {
            "image": self.name,
            "label": self.label,
            "probability": self.probability,
            "uncertainty": self.uncertainty,
            "familiarity": None if unknown else self.familiarity,
            "rejected": self.rejected,
        }
        if top > 1:
            found["top"] = [{"label": name, "probability": p} for name, p in self.top(top)]
        if self.neighbours:
            found["why"] = [neighbour._asdict() for neighbour in self.neighbours]
        return found
