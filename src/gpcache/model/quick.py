"""A saved model that answers without torch and scikit-learn: for the default method on a CPU.

`gpcache predict` waits for one photo no longer than the photo takes. The numbers of the answer are
those of `ImageClassifier`; what this head cannot answer is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from gpcache.encoders.lite_graph import LiteGraph, is_cpu, read_graph
from gpcache.encoders.lite_recipes import RECIPES, current_name
from gpcache.errors import GPCacheError, NumericalError
from gpcache.images.records import Refused, Source
from gpcache.metrics.checks import Floats
from gpcache.model.predictions import HeldOutScores, Prediction, predictions
from gpcache.model.schema import check_config
from gpcache.support.array_folders import load_folder
from gpcache.support.saved_arrays import check_arrays

if TYPE_CHECKING:
    from gpcache.encoders import Encoder

# Beyond this many training images their covariance takes longer than to import torch.
MOST_SHOTS = 2000
# The arrays that an answer reads.
KNOWN = frozenset(["coefficients", "keys", "features", "labels", "map_mean", "map_matrix", "text"])
KNOWN |= {"belief_weights", "belief_labels", "sample_weight"}


class QuickAnswers(NamedTuple):
    """What is read of `RowAnswers`, for m rows."""

    logits: Floats
    probabilities: Floats
    novelty: Floats
    explanation: None = None
    sets: None = None


@dataclass(frozen=True, eq=False)
class QuickModel:
    """The exact cache of the softmax likelihood in numpy, from the state of a saved model."""

    settings: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    encoder: LiteGraph
    examples: tuple[()] = ()

    @property
    def model(self) -> QuickModel:
        """What answers about features: this."""
        return self

    @property
    def classes_(self) -> NDArray[Any]:
        """Class names in order, as an array."""
        return np.array(self.settings["classes"])

    @property
    def classes(self) -> list[str]:
        """Class names in order, as a list."""
        return [str(name) for name in self.classes_]

    @property
    def temperature_(self) -> float:
        """The temperature of the answers."""
        return float(self.settings["temperature"])

    @property
    def held_out_scores(self) -> HeldOutScores:
        """The scores of held-out training images."""
        counted = self.arrays["held_out_counted"]
        logits, novelty = self.arrays["held_out_logits"], self.arrays["held_out_novelty"]
        return HeldOutScores.from_logits(logits[counted], novelty[counted], self.temperature_)

    def predict_stream(
        self, source: Source, *, reject: float, refused: list[Refused]
    ) -> Iterator[Prediction]:
        """Predict images one by one, as `ImageClassifier.predict_stream` does."""
        encoder = cast("Encoder", self.encoder)  # all of an encoder that images need
        answers = predictions(self, encoder, source, refused=refused, reject=reject)
        return (answer for _, answer in answers)

    def answer(self, features: NDArray[Any], **_: Any) -> QuickAnswers:
        """What `FeatureClassifier.answer` gives of rows (m, d): logits, probabilities, novelty."""
        choice, unit = self.settings["choice"], _unit_rows(features.astype(np.float64))
        mapped = self._mapped(unit)
        rows = self._kernel(_unit_rows(mapped))
        logits = choice["alpha"] * (rows @ self.arrays["coefficients"])
        if choice["discriminant"]:
            means = self._class_means
            scores = mapped @ means.T - 0.5 * np.square(means).sum(1)
            logits = logits + choice["discriminant"] * scores
        if "text" in self.arrays:
            text = self.settings["text"]
            order = [text["classes"].index(name) for name in self.settings["classes"]]
            scale = choice["gain"] * text["scale"]
            logits = logits + scale * (unit @ self.arrays["text"][order].T)
        form = (rows * np.linalg.solve(self._covariance, rows.T).T).sum(1)
        novelty = np.clip(1 - form, np.finfo(np.float64).eps, 1.0)
        return QuickAnswers(logits, self._probabilities(logits), novelty)

    def _mapped(self, rows: Floats) -> Floats:
        """`FeatureMap.unscaled`."""
        rows = rows - self.arrays.get("map_mean", 0.0)
        return rows @ self.arrays["map_matrix"] if "map_matrix" in self.arrays else rows

    def _kernel(self, rows: Floats) -> Floats:
        beta: float = self.settings["choice"]["beta"]
        values: Floats = np.exp(beta * (rows @ self.arrays["keys"].T) - beta)
        return values

    @cached_property
    def _covariance(self) -> Floats:
        keys, noise = self.arrays["keys"], float(self.settings["choice"]["noise"])
        return self._kernel(keys) + noise * np.eye(len(keys))

    @cached_property
    def _class_means(self) -> Floats:
        """The class means (c, d') of `Discriminant.of`; zero for a class without a shot."""
        labels, arrays = self.arrays["labels"], self.arrays
        weights = arrays.get("sample_weight", np.ones(len(labels)))
        if "belief_weights" in arrays:
            right = np.where(labels == arrays["belief_labels"], arrays["belief_weights"], 1.0)
            weights = weights * right
        member = (labels == np.arange(len(self.settings["classes"]))[:, None]) * weights
        counts = member.sum(1, keepdims=True)
        means = self._mapped(member @ arrays["features"] / np.where(counts > 0, counts, 1.0))
        return np.where(counts > 0, means, 0.0)

    def _probabilities(self, logits: Floats) -> Floats:
        """`Calibration.probabilities`."""
        scaled, slope = logits / self.temperature_, self.settings["entropy_slope"]
        if slope and logits.shape[1] > 1:
            probabilities = _softmax(scaled)
            terms = probabilities * np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
            scaled = scaled * np.exp(-slope * terms.sum(1, keepdims=True) / np.log(terms.shape[1]))
        probabilities = _softmax(scaled)
        if not np.isfinite(probabilities).all():
            raise NumericalError("The model gives NaN for a row: its parameters are beyond reason.")
        return probabilities


def open_quick(folder: str | Path, device: str) -> QuickModel | None:
    """Read a model folder that can be answered without torch; None for every other one.

    A damaged folder is an error here as in `ImageClassifier.load`.
    """
    if not is_cpu(device):
        return None
    config, arrays = load_folder(folder)
    try:
        check_config(config, str(folder))
        settings, encoder = config["model"], config["encoder"]
        check_arrays(settings, arrays)
        labels = np.array(settings["classes"])[arrays["labels"]].astype(str).tolist()
        same = labels == [one["label"] for one in config["examples"]]
        recipe = RECIPES.get(current_name(encoder["name"], encoder["fingerprint"]))
        if recipe is None or not (same and _is_default(settings, arrays)):
            return None
        graph = read_graph(recipe)
        if graph is None or graph.fingerprint != encoder["fingerprint"]:
            return None
        for name, array in arrays.items():
            if array.dtype.kind == "f":
                arrays[name] = array.astype(np.float64, copy=False)
        model = QuickModel(settings, arrays, graph)
        model.answer(np.ones((1, settings["width"])))
        return model
    except (GPCacheError, ArithmeticError, LookupError, TypeError, ValueError):
        return None  # `ImageClassifier.load` says what is wrong with it, if anything


def _is_default(settings: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bool:
    """Whether the arrays are all of the model: exact, softmax, no projection, nothing trained."""
    unknown = {name for name in arrays if not name.startswith(("held_out_", "thumbnail "))} - KNOWN
    return (
        settings["method"] == "gpcache"
        and settings["options"]["precision"] in ("exact", "auto")  # with keys, "auto" was exact
        and "coefficients" in arrays
        and not unknown
        and settings["choice"]["eta"] == 0
        and len(arrays["keys"]) <= MOST_SHOTS
    )


def _unit_rows(rows: Floats) -> Floats:
    """`unit_rows` of `gpcache.gp.kernels`."""
    largest = np.abs(rows).max(1, keepdims=True)
    scaled = rows / np.where(largest > 0, largest, 1.0)
    unit: Floats = scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-12)
    return unit


def _softmax(values: Floats) -> Floats:
    powers = np.exp(values - values.max(1, keepdims=True))
    shares: Floats = powers / powers.sum(1, keepdims=True)
    return shares
