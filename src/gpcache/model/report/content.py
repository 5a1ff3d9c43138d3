"""The content of a report: evaluations, images with their evidence, features, settings, facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpcache.model.advice import Advice
from gpcache.model.evaluation import Evaluation


@dataclass(frozen=True, eq=False)
class Evidence:
    """A training image and its share of a class's logit; a positive share supports the class."""

    image: bytes | None
    label: str
    weight: float


@dataclass(frozen=True, eq=False)
class Case:
    """An image, its label, the model's answer, and the training images behind the answer.

    `image` and the images of the evidence are small JPEG or PNG files. The evidence concerns
    `answer`. Its weights, `others` (the sum of the weights that are not listed), `average` (the
    part of the class mean) and `text` (the part of the class name) sum to the logit of the answer.
    """

    image: bytes
    caption: str
    truth: str
    answer: str
    probability: float
    evidence: Sequence[Evidence] = ()
    others: float = 0.0
    text: float | None = None
    average: float | None = None

    @property
    def logit(self) -> float:
        """The sum of all weights, the average and the text."""
        weights = sum(one.weight for one in self.evidence) + self.others
        return weights + (self.average or 0.0) + (self.text or 0.0)


@dataclass(frozen=True, eq=False)
class Embedding:
    """Features (n, d) of images with class numbers (n,), and the same in the kernel's space.

    `data` names the images. `mapped` (n, d') is None if the kernel uses the features themselves.
    """

    data: str
    class_names: Sequence[str]
    labels: NDArray[np.int64]
    features: NDArray[Any]
    mapped: NDArray[Any] | None = None

    def spaces(self) -> dict[str, NDArray[Any]]:
        """The features by the name of their space."""
        by_space = {"features": self.features}
        return by_space if self.mapped is None else by_space | {"kernel": self.mapped}


@dataclass(frozen=True, eq=False)
class Report:
    """The content of a report; the page leaves out missing parts.

    `test` evaluates test photos, `held_out` the training photos, each held out. `cases` are lists
    of images by heading. `search` holds the columns of an estimator's `search_`, and `chosen` the
    hyper-parameters in use. `facts` are lines such as encoder, method and versions. `refused` are
    files that could not be read, each with its reason. `advice` says what to fix.
    """

    title: str
    test: Evaluation | None = None
    held_out: Evaluation | None = None
    cases: Mapping[str, Sequence[Case]] = field(default_factory=dict)
    embedding: Embedding | None = None
    search: Mapping[str, NDArray[Any]] | None = None
    chosen: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    refused: Sequence[tuple[str, str]] = ()
    advice: Sequence[Advice] = ()

    @property
    def main(self) -> Evaluation | None:
        """The evaluation that the details show: the test photos if there are any."""
        return self.held_out if self.test is None else self.test
