"""A fitted cache in the state of a saved model, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.explicit import ExplicitPrecision
from gpcache.gp.feature_maps import FeatureMap
from gpcache.methods.base import State, add_tensors
from gpcache.methods.cache import explicit, softmax
from gpcache.methods.cache.explicit import Streamed
from gpcache.methods.cache.fitted import Fitted
from gpcache.methods.cache.held_out import HeldOutReport
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.recipe import Task
from gpcache.methods.cache.search import Choice
from gpcache.methods.cache.shots import LabelWeights, Shots
from gpcache.methods.cache.training import Trainer
from gpcache.metrics import Calibration

Tensors = Callable[[str], Tensor | None]


def write_cache(fitted: Fitted, state: State) -> None:
    """Add shots, model, held-out figures and training to a state."""
    settings, arrays = state
    # The space was chosen by the shots of the fit, which may have changed since.
    settings["space"] = fitted.recipe.space.name
    settings["choice"] = fitted.choice.as_settings()
    settings["changed"], settings["validated"] = fitted.changed, fitted.validated
    fitted.report.write(fitted.search, settings, arrays)
    arrays["held_out_novelty"] = fitted.novelty
    fitted.shots.write(arrays)
    model, streamed = fitted.model, fitted.streamed
    add_tensors(arrays, map_mean=model.feature_map.mean, map_matrix=model.feature_map.matrix)
    if streamed is None:
        add_tensors(arrays, keys=model.precision.keys, coefficients=model.coefficients)
    else:
        assert isinstance(model.precision, ExplicitPrecision)
        settings["explicit"] = {"n_rows": streamed.n_rows, "n_part": streamed.n_part}
        add_tensors(
            arrays,
            landmarks=model.precision.keys,
            landmark_coefficients=model.coefficients,
            landmark_products=streamed.products.float(),
            variance_root=model.precision.root,
            class_counts=streamed.counts,
            class_means=streamed.means,
        )
    if fitted.trained_at is not None:
        settings["epochs"], settings["training_loss"] = fitted.epochs, fitted.losses
        settings["trained_at"] = fitted.trained_at.as_settings()
        add_tensors(arrays, trained_text=model.text)


def saved_shots(shots: Shots, choice: Choice, tensors: Tensors) -> Shots:
    """The shots of a saved model with their views and row weights."""
    weights, labels = tensors("belief_weights"), tensors("belief_labels")
    label_weights = None if weights is None or labels is None else LabelWeights(weights, labels)
    return replace(
        shots.at_gain(choice.gain),
        views=tensors("views"),
        label_weights=label_weights,
        sample_weight=tensors("sample_weight"),
    )


def read_cache(
    state: State, tensors: Tensors, task: Task, calibration: Calibration, trainer: Trainer | None
) -> Fitted:
    """The fitted cache that `write_cache` wrote; `tensors` finds an array by its name."""
    saved: dict[str, Any] = state.settings
    shots, recipe, text = task.shots, task.recipe, task.text
    choice = Choice.from_settings(saved["choice"])
    recipe = replace(recipe, space=replace(recipe.space, name=saved["space"]))
    if recipe.is_softmax:
        recipe = recipe.at(choice.shrinkage, choice.diagonal)
    feature_map = FeatureMap(recipe.space.projection, tensors("map_mean"), tensors("map_matrix"))
    keys, trained_text, streamed = tensors("keys"), tensors("trained_text"), None
    if "explicit" in saved:
        model, streamed = _read_explicit(saved["explicit"], tensors, feature_map, text, choice)
    else:
        assert keys is not None
        model = CacheModel(
            feature_map,
            recipe.condition(shots, keys, choice),
            text if trained_text is None else trained_text,
            choice,
            tensors("coefficients"),
        )
        model = replace(model, discriminant=softmax.discriminant_of(model, shots))
    report, search = HeldOutReport.read(*state)
    fitted = Fitted(
        shots,
        recipe,
        text,
        model,
        task.settings,
        calibration,
        search,
        known_report=report,
        known_novelty=state.arrays["held_out_novelty"],
        changed=saved.get("changed", 0),
        validated=saved.get("validated", False),
        streamed=streamed,
    )
    if trainer is None:
        return fitted
    # Older models do not say at which choice they were trained: use the chosen one.
    trained_at = Choice.from_settings(saved.get("trained_at", saved["choice"]))
    epochs, losses = saved["epochs"], saved["training_loss"]
    return replace(fitted, trainer=trainer, trained_at=trained_at, epochs=epochs, losses=losses)


def _read_explicit(
    facts: dict[str, int],
    tensors: Tensors,
    feature_map: FeatureMap,
    text: Tensor | None,
    choice: Choice,
) -> tuple[CacheModel, Streamed]:
    """The model in explicit features, and what it knows of its rows."""
    names = ("landmarks", "landmark_coefficients", "landmark_products", "variance_root")
    landmarks, coefficients, products, root = (_require(tensors, name) for name in names)
    counts, means = _require(tensors, "class_counts"), _require(tensors, "class_means")
    n_classes = coefficients.shape[1]
    if not len(counts) or len(counts) % n_classes:
        raise DataError(f"the array 'class_counts' has the shape {tuple(counts.shape)}")
    streamed = Streamed(
        facts["n_rows"], facts["n_part"], products.double(), counts, means, len(counts) // n_classes
    )
    precision = ExplicitPrecision.restored(landmarks, choice.beta, choice.noise, root, n_classes)
    model = explicit.built(feature_map, precision, coefficients, streamed, text, choice)
    return model, streamed


def _require(tensors: Tensors, name: str) -> Tensor:
    if (tensor := tensors(name)) is None:
        raise DataError(f"the array {name!r} is missing")
    return tensor
