"""Roofline tasks of the softmax likelihood: its solvers, its search, and one query.

Formulas stand beside the tasks: n keys of width d in c classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from roofline_machine import Task
from roofline_posterior import Rows
from torch import Tensor

from gpcache import GPCacheClassifier
from gpcache.gp.explicit import Batch, Prior, core_of, explicit_map, loss_of, products_of
from gpcache.gp.kernels import gram, kernel, unit_rows
from gpcache.gp.softmax import softmax_map
from gpcache.methods.cache import softmax, softmax_search
from gpcache.methods.cache.fitted import Fitted

BETA, TAU = 0.5, 6.0
LANDMARKS, EXPLICIT_TOLERANCE = 1024, 1e-5
LEAST_PRODUCTS = 2  # with the kernel of a fold at one setting: of the start, and of one step


def solver_tasks(rows: Rows) -> Iterator[Task]:
    """The posterior mode of one model, beside L-BFGS on the same coefficients."""
    prior = gram(rows.keys, BETA)
    offset = torch.zeros_like(rows.values)
    products = 0

    def ours() -> Tensor:
        nonlocal products
        found = softmax_map(prior.matmul, offset, rows.values, TAU)
        products = found.iterations + 2
        return found.products

    yield rows.task(
        "softmax solver",
        ours,
        lambda: prior @ lbfgs(prior, prior / TAU, rows.values),
        # One product with the kernel an iteration; nothing else is of that order.
        lambda: products * 2 * rows.n**2 * rows.classes,
        bytes=lambda: products * rows.number_bytes * (rows.n**2 / 2 + 2 * rows.n * rows.classes),
    )


def lbfgs(features: Tensor, precision: Tensor, targets: Tensor) -> Tensor:
    """Coefficients (k, c) of features (n, k) at the mode under a prior (k, k), by L-BFGS."""
    a = features.new_zeros(features.shape[1], targets.shape[1], requires_grad=True)
    solver = torch.optim.LBFGS(
        [a], max_iter=300, tolerance_grad=1e-6, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = -(targets * (features @ a).log_softmax(1)).sum() + (a * (precision @ a)).sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    return a.detach()


def softmax_search_tasks(rows: Rows) -> Iterator[Task]:
    """The walk over the settings, beside a fit of every fold from nothing at each of them."""
    fitted: Fitted = _estimator(rows, approximation="exact").fitted_
    recipe, shots, settings = fitted.recipe, fitted.shots, fitted.settings
    folds = recipe.folds(shots, recipe.n_folds // 2)
    n, c, d = rows.n, rows.classes, rows.width
    seen = fitted.search

    def ours() -> object:
        return softmax_search.choose(recipe, shots, settings, None, name="search")

    def naive() -> None:
        choice = fitted.choice
        for train, held in folds:
            softmax.build(recipe, shots[train], fitted.text, choice).logits(shots.features[held])

    looked = len(seen["beta"])
    kept, held = 3 * n / 4, n / 4
    once = kept**2 * d + 2 * kept * held * d
    step = LEAST_PRODUCTS * 2 * kept**2 * c + 2 * kept * held * c
    yield rows.task(
        "softmax search",
        ours,
        naive,
        # Similarities of the rows of a fold once, then products with its kernel.
        4 * (once + looked * step),
        further=f"; {looked} settings",
        bytes=4 * looked * 4 * (kept**2 + kept * held),
        dtype="float32",
        naive_parts=looked,
        comparable=False,
    )


def explicit_tasks(rows: Rows) -> Iterator[Task]:
    """The posterior mode in explicit features, beside L-BFGS without their metric."""
    n, c, d = rows.n, rows.classes, rows.width
    landmarks = torch.cat([torch.eye(d).to(rows.keys), rows.keys[:: max(1, n // LANDMARKS)]])
    size = len(landmarks)
    products = products_of([rows.keys], landmarks, BETA)
    zero = landmarks.new_zeros(size, c)
    prior = Prior.of(core_of(landmarks, BETA), TAU, zero)
    offset = zero[:1]
    passes = 0

    def ours() -> Tensor:
        nonlocal passes
        batches = [Batch(rows.keys, offset, rows.labels)]
        found = explicit_map(
            lambda values: loss_of(batches, landmarks, BETA, values), prior, products,
            n_rows=n, start=zero, tolerance=EXPLICIT_TOLERANCE,
        )  # fmt: skip
        passes = found.passes
        return kernel(rows.keys, landmarks, BETA) @ found.values

    def naive() -> Tensor:
        features = kernel(rows.keys, landmarks, BETA)
        return features @ lbfgs(features, prior.precision.to(features), rows.values)

    yield rows.task(
        "softmax solver, explicit features",
        ours,
        naive,
        # A pass: kernel rows, logits and gradient.
        lambda: passes * 2 * n * size * (d + 2 * c),
        further=f"; {size:,} features",
        bytes=lambda: passes * rows.number_bytes * (n * d + size * d + 2 * size * c),
        comparable=False,
    )


def query_tasks(rows: Rows) -> Iterator[Task]:
    """One row through the estimator, beside the bare products of its answer."""
    model = _estimator(rows)
    cache, choice = model.fitted_.model, model.fitted_.choice
    n, c, d = rows.n, rows.classes, rows.width
    query = rows.queries(1)
    array = query.cpu().numpy()
    matrix, mean = cache.feature_map.matrix, cache.feature_map.mean

    def naive() -> Tensor:
        unscaled = (query - mean) @ matrix
        row = kernel(unit_rows(unscaled), cache.precision.keys, choice.beta)
        logits = choice.alpha * row @ cache.coefficients + choice.gain * query @ cache.text.mT
        if cache.discriminant is not None:
            logits = logits + choice.discriminant * cache.discriminant.scores(unscaled)
        return logits.argmax(1)

    yield rows.task(
        "one query, `predict`",
        lambda: model.predict(array),
        naive,
        2 * d**2 + 2 * n * d + 4 * c * d + 2 * n * c,
        bytes=rows.number_bytes * (d**2 + n * d + 2 * c * d + n * c),
        comparable=False,
    )


def _estimator(rows: Rows, **options: Any) -> GPCacheClassifier:
    features, labels, prior = rows.arrays()
    return GPCacheClassifier(text_prior=prior, device=rows.device, **options).fit(features, labels)
