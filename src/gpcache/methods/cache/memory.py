"""Estimates the memory of a fit; one that needs too much is refused before it starts.

The constants below count the arrays that a fit holds at its peak. They come from the code and from
measurements; `benchmarks/memory.py` compares them with the real peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from gpcache.gp import (
    ClassMeanPrecision,
    ExactPrecision,
    FourierPrecision,
    GroupedPrecision,
    NystromPrecision,
    Precision,
    Unweighted,
)
from gpcache.gp.precision import SMALL_BATCH_ELEMENTS
from gpcache.methods.cache.recipe import Recipe
from gpcache.methods.cache.shots import Shots
from gpcache.support.devices import ensure_memory, explained_memory_errors, free_memory
from gpcache.support.threads import limited_threads

Way = Literal["softmax", "folds", "loo", "training"]

# Bytes of the smallest fit (buffers of torch and LAPACK), and what a training step adds.
LEAST, STEP = 10_000_000, 40_000_000
REMEDY = "Use fewer shots, approximation='explicit' (softmax) or approximation='nystrom'."


# Numbers of arrays (n, c) and (n, d) that a kind of fit holds.
HELD: dict[Way, tuple[float, float]] = {
    "softmax": (29, 6),
    "folds": (9, 24),
    "loo": (4, 4),
    "training": (12, 23),
}
# For "softmax", arrays (n, d) and matrices where the search whitens by products: `Differences`.
FEW_SOFTMAX = 9, 7
# Copies of the posterior's matrices, see `_elements`.
MATRICES: dict[type[Precision], dict[Way, float]] = {
    ExactPrecision: {"softmax": 3.5, "folds": 2.8, "loo": 5.3, "training": 3.5},
    GroupedPrecision: {"softmax": 3, "folds": 5.5, "loo": 1, "training": 14.5},
    NystromPrecision: {"softmax": 8.5, "folds": 4, "loo": 3, "training": 6.5},
    FourierPrecision: {"softmax": 6.4, "folds": 3.7, "loo": 3, "training": 5.6},
    ClassMeanPrecision: {"softmax": 1.4, "folds": 0.3, "loo": 1, "training": 0},
    Unweighted: {"softmax": 1, "folds": 1, "loo": 0, "training": 1},
}


@contextmanager
def fitting(shots: Shots, further: int = 0) -> Iterator[None]:
    """Run torch with as many threads as a fit can use now, and explain its memory errors.

    `further` rows are to be added to the shots.
    """
    n, d, c = further + len(shots), shots.features.shape[1], shots.n_classes
    what, device = f"A fit of {n:,} shots of {c:,} classes", shots.features.device
    threads = limited_threads(n * max(n * c, n * n, d * d), device)
    with explained_memory_errors(what, REMEDY), threads:
        yield


def ensure_fit_memory(recipe: Recipe, shots: Shots, n_held: int, *, trained: bool) -> None:
    """Raise NumericalError if a fit needs more than the device has free; see `fit_bytes`."""
    ensure_memory(
        fit_bytes(recipe, shots, n_held, trained=trained),
        shots.features.device,
        what=f"A fit of {len(shots):,} shots of {shots.n_classes:,} classes",
        remedy=REMEDY,
    )


def fit_bytes(recipe: Recipe, shots: Shots, n_held: int = 0, *, trained: bool) -> int:
    """Bytes that a fit of these shots takes at its peak, with `n_held` rows for validation."""
    n, d = shots.features.shape
    kind: Way = "loo" if recipe.uses_loo else "folds"
    if recipe.is_softmax or trained:
        kind = "softmax" if recipe.is_softmax else "training"
    of_classes, of_features = HELD[kind]
    copies = MATRICES[recipe.precision][kind]
    folds, is_whitened = recipe.n_folds // 2, recipe.space.name == "whitened"
    is_exact_softmax = kind == "softmax" and recipe.precision is ExactPrecision
    if is_exact_softmax and is_whitened and not n_held and n * (folds - 1) <= d * folds:
        of_features, copies = FEW_SOFTMAX
    n_rows = n + n_held if kind == "softmax" else n
    small = of_classes * n_rows * shots.n_classes + of_features * n_rows * d
    elements = copies * _elements(recipe, shots) + is_whitened * d * d
    if is_exact_softmax:
        elements += 2 * n * n_held
    size = shots.features.element_size()
    kept_bytes = 0
    if kind == "softmax":
        size = 8  # the search is in float32, whatever the model is in
    elif recipe.precision is ExactPrecision:
        # Similarities that a search keeps if they take at most a quarter of the memory.
        kept_bytes = size * n * n * (1 if recipe.uses_loo else recipe.n_folds - 1)
        kept_bytes = kept_bytes if kept_bytes <= free_memory(shots.features.device) // 4 else 0
    elif kind == "loo" and recipe.precision is not ClassMeanPrecision:
        # Kernel rows of the keys that are left out at once.
        rows_held = 8 if recipe.precision is GroupedPrecision else 6
        elements += rows_held * min(n * n, SMALL_BATCH_ELEMENTS)
    least = LEAST + STEP if kind == "training" else LEAST
    return least + kept_bytes + int(size * (elements + small))


def softmax_bytes(n: int, width: int, n_classes: int) -> int:
    """Bytes that an exact fit of rows (n, width) takes at its peak, with the softmax likelihood."""
    (of_classes, of_features), matrices = HELD["softmax"], MATRICES[ExactPrecision]["softmax"]
    return LEAST + int(8 * n * (matrices * n + of_classes * n_classes + of_features * width))


def _elements(recipe: Recipe, shots: Shots) -> int:
    """Elements of the posterior's matrices."""
    n, c = len(shots), shots.n_classes
    options = recipe.options
    if recipe.precision is GroupedPrecision:
        return n * n // min(int(options["n_groups"]), c)
    if recipe.precision is FourierPrecision:
        rank = options["n_features"]
        return int(rank * (n + rank))
    if recipe.precision is NystromPrecision:
        rank = min(n, max(c, options["n_landmarks"] or c))
        return int(rank * (n + rank))
    if recipe.precision is ClassMeanPrecision and not recipe.is_softmax:
        return n * (8 * c + 2 * (c + shots.features.shape[1]))
    return n * n
