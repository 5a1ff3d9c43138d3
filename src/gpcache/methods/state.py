"""A fitted method as plain numbers and arrays, to be written to disk and made again elsewhere.

What can be computed again cheaply, such as a factorisation, is not kept: a model that was fitted
on a GPU comes back on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gpcache.errors import DataError
from gpcache.gp.feature_maps import FeatureMap
from gpcache.methods.additive import AdditiveClassifier
from gpcache.methods.base import FeatureClassifier
from gpcache.methods.cache.estimator import CacheClassifier
from gpcache.methods.cache.model import CacheModel, HeldOutReport
from gpcache.methods.cache.search import Choice
from gpcache.methods.cache.shots import Belief, Recipe, Shots
from gpcache.methods.cache.softmax import discriminant_of
from gpcache.methods.cache.training import TrainedCacheMixin
from gpcache.methods.calip import CALIPClassifier
from gpcache.methods.gp_cache import GPCacheClassifier
from gpcache.methods.registry import find_method, name_of
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.timo import TIMOClassifier
from gpcache.methods.trained_head import TrainedHeadClassifier
from gpcache.similarity import ProjectionFacts, SimilarityProjection
from gpcache.support.checks import to_numpy
from gpcache.support.devices import resolve_device, resolve_dtype

# Options that are arrays or belong to a machine, not to the model.
_NOT_OPTIONS = ("text_prior", "prompt_vectors", "encoder", "projection", "device", "dtype")


class State(NamedTuple):
    """`settings` as JSON holds them, and the arrays by name."""

    settings: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def state_of(model: FeatureClassifier) -> State:
    """Everything that a fitted model needs to answer, be updated and report."""
    options = model.get_params(deep=False)
    settings: dict[str, Any] = {
        "method": name_of(model),
        "options": {
            # numpy's numbers are welcome as options, but JSON has none of them.
            key: value.item() if isinstance(value, np.generic) else value
            for key, value in options.items()
            if key not in _NOT_OPTIONS
        },
        "classes": model.classes_.tolist(),
        "width": int(model.n_features_in_),
        "temperature": float(model.temperature_),
        "entropy_slope": float(model.entropy_slope_),
    }
    arrays: dict[str, NDArray[Any]] = {}
    prior = model.text_prior
    if prior is not None:
        names = np.asarray(prior.class_names).tolist()
        settings["text"] = {"classes": names, "scale": prior.logit_scale}
        arrays["text"] = np.asarray(prior.vectors)
    if isinstance(model, TIMOClassifier):
        arrays["prompts"], arrays["prompt_owners"] = (
            part.cpu().numpy() for part in model._prompts()
        )
    _add_projection(options.get("projection"), settings, arrays)
    if isinstance(model, CacheClassifier):
        _add_cache(model, settings, arrays)
    elif isinstance(model, AdditiveClassifier):
        settings["numbers"] = model._numbers
        _add_shots(model._shots, arrays)
        _add_evidence(model.loo_, model.search_, settings, arrays)
    elif isinstance(model, CALIPClassifier):
        settings["numbers"] = model._numbers
        _add_evidence(model.loo_, {}, settings, arrays)
    elif isinstance(model, TrainedHeadClassifier):
        _add_tensors(arrays, **{f"parameter{i}": one for i, one in enumerate(model.parameters_)})
        settings["training_loss"] = model.training_loss_
        _add_evidence(model.loo_, {}, settings, arrays)
    return State(settings, arrays)


def _add_projection(
    projection: Any, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> None:
    """The matrix, and where it came from if it says so."""
    if projection is None:
        return
    facts = None
    if isinstance(projection, SimilarityProjection):
        projection, facts = projection.matrix, projection.facts
    elif callable(projection):
        raise DataError("A projection that is a function cannot be saved: give its matrix instead.")
    arrays["projection"] = np.asarray(to_numpy(projection))
    settings["projection"] = None if facts is None else asdict(facts)


def _add_cache(
    model: CacheClassifier, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> None:
    # Which space was taken depends on the shots of the fit, which may since have come and gone.
    settings["space"] = model._recipe.space.name
    settings["choice"] = _choice_settings(model._choice)
    _add_evidence(model.loo_, model.search_, settings, arrays)
    arrays["held_out_novelty"] = model.held_out_novelty_
    fitted = model._model
    _add_tensors(
        arrays,
        keys=fitted.precision.keys,
        map_mean=fitted.feature_map.mean,
        map_matrix=fitted.feature_map.matrix,
        coefficients=fitted.coefficients,
    )
    if isinstance(model, TrainedCacheMixin):
        settings["epochs"], settings["training_loss"] = model.epochs_, model.training_loss_
        settings["trained_at"] = _choice_settings(model._trained_at)
        _add_tensors(arrays, trained_text=fitted.text)
    _add_shots(model._shots, arrays)


def _choice_settings(choice: Choice) -> dict[str, Any]:
    numbers = asdict(choice)
    del numbers["losses"]
    return {key: _or_none(value) for key, value in numbers.items()}


def _choice_from(settings: dict[str, Any]) -> Choice:
    numbers: dict[str, Any] = {key: _or_nan(value) for key, value in settings.items()}
    return Choice(**numbers)


def _add_shots(shots: Shots, arrays: dict[str, NDArray[Any]]) -> None:
    _add_tensors(
        arrays,
        features=shots.features,
        labels=shots.labels,
        views=shots.views,
    )
    if shots.belief is not None:
        _add_tensors(arrays, belief_weights=shots.belief.weights, belief_labels=shots.belief.labels)


def _add_tensors(arrays: dict[str, NDArray[Any]], **tensors: torch.Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None:
            arrays[name] = tensor.detach().cpu().numpy()


def _add_evidence(
    report: HeldOutReport,
    search: dict[str, NDArray[Any]],
    settings: dict[str, Any],
    arrays: dict[str, NDArray[Any]],
) -> None:
    """What held-out rows said, and every setting that was looked at."""
    settings["held_out"] = {
        "accuracy": _or_none(report.accuracy),
        "nll": _or_none(report.nll),
        "ece": _or_none(report.ece),
        "protocol": report.protocol,
    }
    arrays["held_out_logits"], arrays["held_out_counted"] = report.logits, report.counted
    arrays["held_out_probabilities"] = report.probabilities
    arrays["held_out_labels"] = report.labels
    settings["search"] = {
        name: [_or_none(value) for value in column.tolist()] for name, column in search.items()
    }


def restore(state: State, *, device: str | torch.device = "auto") -> FeatureClassifier:
    """The fitted model, on `device`."""
    settings, arrays = state
    constructor = find_method(settings["method"]).constructor
    prior = None
    if "text" in settings:
        text = settings["text"]
        prior = TextPrior(text["classes"], arrays["text"], text["scale"])
        # They have length one already; to scale them again would move their last bits.
        object.__setattr__(prior, "vectors", arrays["text"])
    options = dict(settings["options"])
    if constructor is GPCacheClassifier:
        # Models of version 0.1 know regression alone, and do not say so.
        options.setdefault("likelihood", "gaussian")
    if "projection" in arrays:
        told = settings.get("projection")
        facts = None if told is None else ProjectionFacts(**told)
        matrix = torch.from_numpy(arrays["projection"])
        options["projection"] = SimilarityProjection((matrix,), facts=facts)
    if "prompts" in arrays:
        owners = arrays["prompt_owners"]
        options["prompt_vectors"] = {
            name: arrays["prompts"][owners == row] for row, name in enumerate(settings["classes"])
        }
    model = constructor(**options, text_prior=prior, device=device)
    model._device = resolve_device(device)
    model._dtype = resolve_dtype("auto", model._device)
    model.classes_ = np.array(settings["classes"])
    model.n_features_in_ = settings["width"]
    model.temperature_ = settings["temperature"]
    model.entropy_slope_ = settings["entropy_slope"]
    model._text = model._text_vectors()
    if isinstance(model, CacheClassifier):
        _restore_cache(model, state)
    elif isinstance(model, AdditiveClassifier):
        model.restored(_read_shots(model, arrays), settings["numbers"])
        model.loo_, model.search_ = _read_evidence(state)
    elif isinstance(model, CALIPClassifier):
        model.restored(settings["numbers"])
        model.loo_, _ = _read_evidence(state)
    elif isinstance(model, TrainedHeadClassifier):
        tensor = _reader(model, arrays)
        numbered = (tensor(f"parameter{i}") for i in range(len(arrays)))
        model.restored([one for one in numbered if one is not None])
        model.training_loss_ = settings["training_loss"]
        model.loo_, _ = _read_evidence(state)
    return model


def _restore_cache(model: CacheClassifier, state: State) -> None:
    settings, arrays = state
    tensor = _reader(model, arrays)
    keys = tensor("keys")
    if keys is None:
        raise DataError("The saved model lacks its shots.")
    choice = _choice_from(settings["choice"])
    model._shots = _read_shots(model, arrays)
    space = replace(model._kernel_space(), name=settings["space"])
    model._recipe = Recipe(space, *model._precision())
    model._accept([choice])
    feature_map = FeatureMap(space.projection, tensor("map_mean"), tensor("map_matrix"))
    precision = model._condition(model._shots, keys)
    text = tensor("trained_text")
    restored = CacheModel(
        feature_map,
        precision,
        model._text if text is None else text,
        choice,
        tensor("coefficients"),
    )
    model._model = replace(restored, discriminant=discriminant_of(restored, model._shots))
    if isinstance(model, TrainedCacheMixin):
        model.epochs_, model.training_loss_ = settings["epochs"], settings["training_loss"]
        # Not every saved model says: then it was trained at what it chose.
        model._trained_at = _choice_from(settings.get("trained_at", settings["choice"]))
    model._report, model.search_ = _read_evidence(state)
    model._novelty = arrays["held_out_novelty"]


def _reader(
    model: FeatureClassifier, arrays: dict[str, NDArray[Any]]
) -> Callable[[str], torch.Tensor | None]:
    """A look-up of arrays as tensors where and how the model computes."""

    def tensor(name: str) -> torch.Tensor | None:
        if name not in arrays:
            return None
        found = torch.as_tensor(arrays[name], device=model._device)
        return found.to(model._dtype) if found.is_floating_point() else found

    return tensor


def _read_shots(
    model: CacheClassifier | AdditiveClassifier, arrays: dict[str, NDArray[Any]]
) -> Shots:
    tensor = _reader(model, arrays)
    features, labels = tensor("features"), tensor("labels")
    if features is None or labels is None:
        raise DataError("The saved model lacks its shots.")
    shots = model._make_shots(features, labels)
    weights, believed = tensor("belief_weights"), tensor("belief_labels")
    belief = None if weights is None or believed is None else Belief(weights, believed)
    return replace(shots, views=tensor("views"), belief=belief)


def _read_evidence(state: State) -> tuple[HeldOutReport, dict[str, NDArray[Any]]]:
    settings, arrays = state
    held_out = settings["held_out"]
    accuracy, nll, ece = (_or_nan(held_out[name]) for name in ("accuracy", "nll", "ece"))
    report = HeldOutReport(
        arrays["held_out_logits"],
        arrays["held_out_probabilities"],
        arrays["held_out_counted"],
        arrays["held_out_labels"],
        accuracy,
        nll,
        ece,
        held_out["protocol"],
    )
    search = {
        name: np.array([_or_nan(value) for value in column])
        for name, column in settings["search"].items()
    }
    return report, search


def _or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else value


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
