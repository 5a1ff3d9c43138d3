"""Similarity projections in the state of a saved model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from gpcache.errors import DataError
from gpcache.methods.base import State
from gpcache.similarity import ProjectionFacts, SimilarityProjection
from gpcache.support.checks import to_numpy


def add_projection(projection: Any, state: State) -> None:
    """Add the matrix, and where it came from if it says so."""
    if projection is None:
        return
    facts = None
    if isinstance(projection, SimilarityProjection):
        projection, facts = projection.matrix, projection.facts
    elif callable(projection):
        raise DataError("A projection that is a function cannot be saved: give its matrix instead.")
    state.arrays["projection"] = np.asarray(to_numpy(projection))
    state.settings["projection"] = None if facts is None else asdict(facts)


def saved_projection(state: State) -> dict[str, Any]:
    """The option `projection` of a saved model, if it has one."""
    if "projection" not in state.arrays:
        return {}
    facts = state.settings.get("projection")
    known = None if facts is None else ProjectionFacts(**facts)
    matrix = torch.from_numpy(state.arrays["projection"])
    return {"projection": SimilarityProjection((matrix,), facts=known)}
