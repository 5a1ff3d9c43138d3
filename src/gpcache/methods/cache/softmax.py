"""GPCache with the softmax likelihood: the model of shots at given hyper-parameters.

    logits = alpha · k(x) A + discriminant · linear discriminant(x) + gain · zero_shot(x)

A is the posterior mode of `gpcache.gp.softmax`; its prior mean is the text, scaled by a gain.
`gpcache.methods.cache.softmax_search` chooses the hyper-parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gpcache.gp import ExactPrecision, Precision
from gpcache.gp.discriminant import Discriminant
from gpcache.gp.precision import BATCH_ELEMENTS
from gpcache.gp.products import symmetric_matmul
from gpcache.gp.softmax import Coefficients, Product, softmax_map, solve_rows
from gpcache.methods.cache.held_out import HeldOutLogits, folds_protocol
from gpcache.methods.cache.model import CacheModel
from gpcache.methods.cache.recipe import Recipe
from gpcache.methods.cache.search import Choice
from gpcache.methods.cache.shots import Shots
from gpcache.support.progress import progress_bar

# Iterations that a solver takes, most often: what a progress bar expects.
TYPICAL = 30
# Rows from which on a product in float32 saves time.
ROUGH_ROWS = 1_000
# Shots near a removed one that are solved first. With 64 of 1,600 (Caltech, UCF101) the solver then
# takes 19 to 26 iterations, as for an added shot, instead of 25 to 83.
NEAR_ROWS = 64
# Below this number of runs of rows that stay, whole blocks are copied: it is faster.
MOST_RUNS = 8


def build(
    recipe: Recipe,
    shots: Shots,
    text: Tensor | None,
    choice: Choice,
    start: Tensor | None = None,
) -> CacheModel:
    """The model of these shots at a choice; the solver may `start` from coefficients (n, c)."""
    feature_map = recipe.at(choice.shrinkage, choice.diagonal).feature_map(shots)
    precision = recipe.condition(shots, feature_map(shots.features), choice)
    return _solved(CacheModel(feature_map, precision, text, choice), shots, start)


def updated(
    model: CacheModel,
    precision: Precision,
    shots: Shots,
    rows: Tensor | None,
    columns: Tensor | None,
) -> CacheModel:
    """The model of changed shots at the same choice and feature map, by a warm start.

    `rows` (n,) and `columns` (c,) are the old numbers of shots and classes, −1 for new ones; None
    where all stayed. The optimum is unique: this is the model that a solve from scratch finds.
    """
    assert model.coefficients is not None
    values, products, near = model.coefficients, model.products, None
    if columns is not None:
        source = columns.clamp(min=0)
        values = torch.where(columns >= 0, values[:, source], 0.0)
        products = None if products is None else torch.where(columns >= 0, products[:, source], 0.0)
    exact = isinstance(precision, ExactPrecision)
    if exact:
        before = model.precision.prior
        precision.prior = before if rows is None else _bordered(before, precision, rows)
    if not exact or values.dtype != torch.float64:
        # An approximation may have changed everywhere; in float32 errors of updates would add up.
        products = None
    if rows is not None:
        known = rows >= 0
        kept = rows[known]
        removed = _removed(len(values), kept)
        if exact and len(removed):
            near = _nearest(before, removed, kept)
        if products is not None:
            products = (products - before[:, removed] @ values[removed])[kept]
            fresh = precision.prior[~known][:, known] @ values[kept]
            products = torch.cat([products, fresh])
        values = torch.where(known[:, None], values[rows.clamp(min=0)], 0.0)
    return _solved(replace(model, precision=precision), shots, values, products, near)


def _removed(n: int, kept: Tensor) -> Tensor:
    """The numbers below n that are not among those kept (k,)."""
    gone = torch.ones(n, dtype=torch.bool, device=kept.device)
    gone[kept] = False
    return torch.nonzero(gone).flatten()


def _nearest(prior: Tensor, removed: Tensor, kept: Tensor) -> Tensor:
    """The rows, among those kept (k,), that the removed ones had most influence on.

    `prior` (n, n) is the covariance before.
    """
    influence = prior[removed].amax(0)[kept]
    return influence.topk(min(NEAR_ROWS, len(kept))).indices


def _bordered(prior: Tensor, precision: Precision, rows: Tensor) -> Tensor:
    """The prior's covariance (n, n) of the keys: the old block, and rows for new keys."""
    n, fresh = len(rows), torch.nonzero(rows < 0).flatten()
    known = rows[rows >= 0]
    if len(known) < len(prior):
        prior = _submatrix(prior, known)
    if not len(fresh):
        return prior
    assert bool((fresh >= n - len(fresh)).all()), "new rows come last"
    border = precision.prior_rows(precision.keys[fresh])
    grown = prior.new_empty(n, n)
    grown[: len(prior), : len(prior)] = prior
    grown[fresh], grown[:, fresh] = border, border.mT
    return grown


def _submatrix(matrix: Tensor, kept: Tensor) -> Tensor:
    """The rows and columns (k,) of a matrix (n, n), in ascending order."""
    ends = [0, *(1 + torch.nonzero(kept.diff() != 1).flatten()).tolist(), len(kept)]
    if not len(kept) or len(ends) > MOST_RUNS:
        return matrix[kept][:, kept]
    found = matrix.new_empty(len(kept), len(kept))
    runs = [(slice(*run), kept[slice(*run)]) for run in itertools.pairwise(ends)]
    for there, rows in runs:
        for there_too, columns in runs:
            block = matrix[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            found[there, there_too] = block
    return found


def _solved(
    model: CacheModel,
    shots: Shots,
    start: Tensor | None,
    products: Tensor | None = None,
    near: Tensor | None = None,
) -> CacheModel:
    """The model with the coefficients, solved from a start (n, c), and the discriminant.

    `products` (n, c) are the prior's covariance times the start, if they are known. The rows `near`
    (k,) of a start are solved by themselves first.
    """
    choice = model.choice
    offset = prior_mean(masked_text(shots), choice.offset, class_frequency(shots))
    targets = weighted_labels(shots)
    with progress_bar("solving", total=TYPICAL, unit="iteration") as bar:

        def product(right: Tensor) -> Tensor:
            bar.update()
            return model.precision.prior_product(right)

        rough, begin = _rough_product(model.precision, bar.update), None
        if start is not None:
            values = start.to(shots.features)
            products = product(values) if products is None else products
            if near is not None:
                prior = model.precision.prior
                moved = solve_rows(prior, offset, targets, choice.tau, values, near)
                products = products + prior[:, near] @ (moved - values)[near]
                values = moved
            begin = Coefficients(values, products)
        solution = softmax_map(product, offset, targets, choice.tau, start=begin, rough=rough)
    return replace(
        model,
        coefficients=solution.values,
        discriminant=discriminant_of(model, shots),
        products=solution.products,
    )


def _rough_product(precision: Precision, look: Callable[[], object]) -> Product | None:
    """The product with the prior's covariance in float32, for an exact posterior in float64.

    It takes less than half the time where there are many rows; None elsewhere. `look` is called
    before each product.
    """
    is_exact = isinstance(precision, ExactPrecision) and precision.keys.dtype == torch.float64
    if not is_exact or len(precision.keys) < ROUGH_ROWS:
        return None
    prior = precision.prior.float()

    def product(right: Tensor) -> Tensor:
        look()
        return symmetric_matmul(prior, right)

    return product


def discriminant_of(model: CacheModel, shots: Shots) -> Discriminant | None:
    """The discriminant of these shots in the model's space; None if its weight is 0."""
    if not model.choice.discriminant:
        return None
    return Discriminant.of(
        shots.features, shots.labels, shots.n_classes, model.feature_map, shots.weights
    )


def held_out_logits(
    recipe: Recipe,
    shots: Shots,
    text: Tensor | None,
    choice: Choice,
    folds: Sequence[tuple[Tensor, Tensor]],
) -> HeldOutLogits:
    """Logits of held-out rows at a choice, in float32, from models that did not see them."""
    if not folds:
        return HeldOutLogits.none(shots, "no class has two shots")
    recipe = recipe.to(torch.float32, given=shots.features.dtype)
    shots = shots.to(torch.float32)
    text = None if text is None else text.to(torch.float32)
    logits = [
        build(recipe, shots[train], text, choice).logits(shots.features[held])
        for train, held in folds
    ]
    rows = torch.cat([held for _, held in folds])
    return HeldOutLogits(torch.cat(logits), rows, folds_protocol(len(folds)))


def left_out_alone(model: CacheModel, shots: Shots, rows: Tensor) -> Tensor:
    """Logits (k, c) of shots that are the only ones of their class, each left out by itself.

    Without the shot, its class is known by its text, or not at all.
    """
    assert model.coefficients is not None
    choice, targets = model.choice, weighted_labels(shots)
    offset = prior_mean(masked_text(shots), choice.offset, class_frequency(shots))
    products = []
    for some in torch.split(rows, max(1, BATCH_ELEMENTS // (8 * targets.numel()))):
        alone = torch.zeros(len(some), len(shots), dtype=torch.bool, device=rows.device)
        alone[torch.arange(len(some)), some] = True
        gone = alone[..., None]
        own = targets[some][:, None, :] > 0
        values = torch.where(gone | own, 0.0, model.coefficients)
        solved = softmax_map(
            model.precision.prior_product,
            torch.where(own, -torch.inf, offset),
            torch.where(gone, 0.0, targets),
            choice.tau,
            start=Coefficients(values, model.precision.prior_product(values)),
        )
        products.append(solved.products[alone])
    features = shots.features[rows]
    logits = model.fused(model.zero_shot(features), torch.cat(products), None)
    scores = model.discriminant_logits(model.feature_map.unscaled(features))
    return logits if scores is None else logits + torch.where(targets[rows] > 0, 0.0, scores)


def weighted_labels(shots: Shots) -> Tensor:
    """One-hot labels (n, c), multiplied by the row weights."""
    targets = shots.one_hot
    return targets if shots.weights is None else targets * shots.weights[:, None]


def prior_mean(text: Tensor, gain: float, frequency: Tensor) -> Tensor:
    """Logits (..., n, c) before the shots are seen; −inf stays.

    Classes are assumed to be equally frequent, whatever their number of shots. The log frequency
    of the shots is therefore part of the prior mean, but not of the answer.
    """
    return torch.where(text.isinf(), text, text * gain) + frequency


def prior_logits(
    rows: Tensor, text: Tensor | None, absent: Tensor, gain: float, frequency: Tensor
) -> Tensor:
    """The same (b or 1, c) for rows (b, d) and text (c, d); −inf for the classes `absent` (c,)."""
    said = frequency.new_zeros(1, len(frequency)) if text is None else rows @ text.mT
    return prior_mean(said.masked_fill(absent, -torch.inf), gain, frequency)


def class_frequency(shots: Shots) -> Tensor:
    """log of the number of shots (c,) relative to the mean; 0 for a class that has none."""
    weights = shots.sample_weight
    counts = torch.bincount(shots.labels, weights, shots.n_classes).to(shots.features)
    mean = counts[counts > 0].mean()
    return torch.where(counts > 0, (counts / mean).clamp(min=1e-6).log(), 0.0)


def degrees_of_freedom(shots: Shots) -> float:
    """Degrees of freedom of the scatter within classes: shots minus their classes, at least 1."""
    weights = shots.sample_weight
    total = len(shots) if weights is None else float(weights.sum())
    return max(1.0, total - len(torch.unique(shots.labels)))


def masked_text(shots: Shots) -> Tensor:
    """Text logits (n, c), zeros without text; −inf for classes that have no shot.

    Such a class takes no part in the likelihood: its missing images are no evidence against it.
    """
    text = shots.zero_shot if shots.zero_shot is not None else torch.zeros_like(shots.values)
    return text.masked_fill(shots.absent, -torch.inf)
