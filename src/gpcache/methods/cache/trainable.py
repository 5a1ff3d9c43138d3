"""What training moves in a cache model: its keys, its metric, or one residual for each class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.kernels import unit_rows
from gpcache.methods.cache.shots import Shots


class MovedModel(NamedTuple):
    """A model at the present parameters: its map, its keys (n, d') in that space, and its text."""

    feature_map: FeatureMap
    keys: Tensor
    text: Tensor | None


class Move(NamedTuple):
    """The trained parameters, and the model that they give; at step 0 the untrained one."""

    parameters: list[Tensor]
    place: Callable[[], MovedModel]


def move_keys(shots: Shots, feature_map: FeatureMap, text: Tensor | None) -> Move:
    """Every key moves by itself, and φ keeps it on the sphere: n · d parameters (GPCache-F)."""
    rows = shots.features.clone().requires_grad_()
    return Move([rows], lambda: MovedModel(feature_map, feature_map(rows), text))


def move_free_keys(shots: Shots, feature_map: FeatureMap, text: Tensor | None) -> Move:
    """Every key moves by itself and may leave the sphere: n · d parameters (Tip-Adapter-F)."""
    keys = feature_map(shots.features).clone().requires_grad_()
    return Move([keys], lambda: MovedModel(feature_map, keys, text))


def move_metric(
    shots: Shots, feature_map: FeatureMap, text: Tensor | None, *, rank: int, seed: int
) -> Move:
    """Keys and queries move together: normalise(z + z A B) with A (d', r) and B (r, d') = 0."""
    width = feature_map(shots.features[:1]).shape[1]
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(width, rank, generator=generator, dtype=torch.float64) / width**0.5
    down = drawn.to(shots.features).requires_grad_()
    up = shots.features.new_zeros(rank, width).requires_grad_()
    eye = torch.eye(width, dtype=up.dtype, device=up.device)

    def place() -> MovedModel:
        # Scaling to length one cancels the norm that z was divided by, so one matrix does both.
        stretch = eye + down @ up
        matrix = stretch if feature_map.matrix is None else feature_map.matrix @ stretch
        moved = replace(feature_map, matrix=matrix)
        return MovedModel(moved, moved(shots.features), text)

    return Move([down, up], place)


def move_classes(
    shots: Shots, feature_map: FeatureMap, text: Tensor | None, *, logit_scale: float
) -> Move:
    """All keys of a class, and its text, move by one residual: c · d parameters."""
    residual = shots.features.new_zeros(shots.n_classes, shots.features.shape[1]).requires_grad_()

    def place() -> MovedModel:
        keys = feature_map(shots.features + residual[shots.labels])
        if text is None:
            return MovedModel(feature_map, keys, None)
        return MovedModel(feature_map, keys, logit_scale * unit_rows(text / logit_scale + residual))

    return Move([residual], place)
