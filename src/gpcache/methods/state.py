"""Fitted methods as plain numbers and arrays, found again by the name of their method."""

from __future__ import annotations

import torch

from gpcache.methods.base import FeatureClassifier, State
from gpcache.methods.registry import find_method, name_of


def state_of(model: FeatureClassifier) -> State:
    """Everything that a fitted model needs to answer, be updated and report."""
    name = name_of(model)
    settings, arrays = model.state()
    return State({"method": name, **settings}, arrays)


def restore(state: State, *, device: str | torch.device = "auto") -> FeatureClassifier:
    """The fitted model, on `device`."""
    constructor = find_method(state.settings["method"]).constructor
    return constructor.from_state(state, device=device)
