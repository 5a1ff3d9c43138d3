"""Explicit features: against the kernel's solution, scikit-learn, and the exact posterior."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from gpcache.errors import NumericalError
from gpcache.gp import ExactPrecision
from gpcache.gp.explicit import (
    Batch,
    ExplicitPrecision,
    Loss,
    Prior,
    core_of,
    explicit_map,
    loss_of,
    products_of,
)
from gpcache.gp.feature_maps import KernelSpace, Moments
from gpcache.gp.kernels import gram, kernel, unit_rows
from gpcache.gp.softmax import softmax_map

N, D, C, BETA, TAU = 90, 12, 5, 0.7, 8.0


@pytest.fixture
def rows() -> tuple[Tensor, Tensor]:
    """Unit rows (n, d) around class means, and their class numbers (n,)."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(N) % C
    means = torch.randn(C, D, generator=generator, dtype=torch.float64)
    noise = torch.randn(N, D, generator=generator, dtype=torch.float64)
    return unit_rows(means[labels] + noise), labels


def loss_at(landmarks: Tensor, rows: Tensor, labels: Tensor, offset: Tensor) -> Loss:
    def loss(values: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip(rows.split(20), labels.split(20), strict=True)
        batches = [Batch(part, offset, own) for part, own in parts]
        return loss_of(batches, landmarks, BETA, values)

    return loss


def solved(rows: Tensor, labels: Tensor, landmarks: Tensor, tau: float = TAU, **options) -> Tensor:
    offset = torch.linspace(-1, 1, C, dtype=rows.dtype)[None]
    start = options.pop("start", landmarks.new_zeros(len(landmarks), C))
    return explicit_map(
        loss_at(landmarks, rows, labels, offset),
        options.pop("prior", None) or Prior.of(core_of(landmarks, BETA), tau, start),
        products_of(rows.split(20), landmarks, BETA),
        n_rows=len(rows),
        start=start,
        **options,
    ).values


def test_with_every_row_a_landmark_it_is_the_solution_in_the_kernel(rows) -> None:
    features, labels = rows
    covariance = gram(features, BETA)
    offset = torch.linspace(-1, 1, C, dtype=torch.float64).expand(N, C)
    targets = torch.nn.functional.one_hot(labels, C).double()
    exact = softmax_map(covariance.matmul, offset, targets, TAU, tolerance=1e-9)
    found = covariance @ solved(features, labels, features)
    assert float((found - exact.products).abs().max()) < 1e-6
    # Further landmarks change nothing: the solution lies in the span of the rows.
    more = torch.cat([torch.eye(D, dtype=torch.float64), features])
    found = kernel(features, more, BETA) @ solved(features, labels, more)
    assert float((found - exact.products).abs().max()) < 1e-6


def test_it_is_logistic_regression_on_the_features(rows) -> None:
    features, labels = rows
    landmarks = torch.cat([torch.eye(D, dtype=torch.float64), features[:9]])
    values, vectors = torch.linalg.eigh(core_of(landmarks, BETA))
    explicit = kernel(features, landmarks, BETA) @ (vectors / values.sqrt()) @ vectors.mT
    oracle = LogisticRegression(C=TAU, fit_intercept=False, tol=1e-10, max_iter=5_000)
    start = landmarks.new_zeros(len(landmarks), C)
    found = explicit_map(
        loss_at(landmarks, features, labels, torch.zeros(1, C, dtype=torch.float64)),
        Prior.of(core_of(landmarks, BETA), TAU, start),
        products_of([features], landmarks, BETA),
        n_rows=N,
        start=start,
    )
    logits = kernel(features, landmarks, BETA) @ found.values
    expected = oracle.fit(explicit.numpy(), labels.numpy()).predict_proba(explicit.numpy())
    assert np.abs(logits.softmax(1).numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("tau", [1e-2, 1.0, 1e4])
def test_any_start_and_any_batches_lead_to_the_same_optimum(rows, tau: float) -> None:
    features, labels = rows
    landmarks = features[:30]
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(30, C, generator=generator, dtype=torch.float64)
    one, other = (
        solved(features, labels, landmarks, tau),
        solved(features.flip(0), labels.flip(0), landmarks, tau, start=start),
    )
    seen = kernel(features, landmarks, BETA)
    difference = (seen @ one).softmax(1) - (seen @ other).softmax(1)
    assert float(difference.abs().max()) < 1e-5


def test_rounding_of_the_objective_does_not_stop_it(rows) -> None:
    features, labels = rows
    landmarks = features[:30]
    start = landmarks.new_zeros(30, C)
    exact = loss_at(landmarks, features, labels, start.new_zeros(1, C))
    generator = torch.Generator().manual_seed(1)

    def rounded(values: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = exact(values)
        error = 1e-11 * torch.randn((), generator=generator, dtype=torch.float64)
        return loss * (1 + error), gradient

    prior = Prior.of(core_of(landmarks, BETA), TAU, start)
    products = products_of([features], landmarks, BETA)
    one, other = (
        explicit_map(loss, prior, products, n_rows=N, start=start) for loss in (exact, rounded)
    )
    assert other.passes <= one.passes + 2
    assert float((one.values - other.values).abs().max()) < 1e-5


def test_float32_is_near_float64(rows) -> None:
    features, labels = rows
    landmarks = features[:30]
    one, other = (
        solved(features, labels, landmarks),
        solved(features.float(), labels, landmarks.float()),
    )
    difference = kernel(features, landmarks, BETA) @ (one - other.double())
    assert float(difference.abs().max()) < 2e-2


def test_an_absent_class_takes_no_part(rows) -> None:
    features, labels = rows
    offset = torch.zeros(1, C + 1, dtype=torch.float64)
    offset[0, C] = -torch.inf
    landmarks = features[:20]
    start = landmarks.new_zeros(20, C + 1)
    found = explicit_map(
        loss_at(landmarks, features, labels, offset),
        Prior.of(core_of(landmarks, BETA), TAU, start),
        products_of([features], landmarks, BETA), n_rows=N, start=start,
    )  # fmt: skip
    assert float(found.values[:, C].abs().max()) == 0


def test_the_posterior_is_a_prior_of_further_rows(rows) -> None:
    """Old rows are remembered: their answers stay nearer than without them."""
    features, labels = rows
    landmarks = torch.cat([torch.eye(D, dtype=torch.float64), features[:20]])
    old, new = slice(0, 70), slice(70, N)
    first = solved(features[old], labels[old], landmarks)
    prior = Prior.of(core_of(landmarks, BETA), TAU, first)
    after = prior.after(products_of([features[old]], landmarks, BETA), first)
    added = solved(features[new], labels[new], landmarks, start=first, prior=after)
    joint = solved(features, labels, landmarks)
    seen = kernel(features, landmarks, BETA)

    def distance(values: Tensor) -> float:
        return float((seen @ (values - joint)).square().mean().sqrt())

    assert distance(added) < distance(first)


def test_the_variance_is_that_of_the_exact_posterior(rows) -> None:
    features, _ = rows
    generator = torch.Generator().manual_seed(2)
    queries = unit_rows(torch.randn(7, D, generator=generator, dtype=torch.float64))
    values = torch.zeros(N, C, dtype=torch.float64)
    exact = ExactPrecision(None, features, values, beta=BETA, noise=0.5)
    products = products_of(features.split(20), features, BETA)
    explicit = ExplicitPrecision.of(features, BETA, 0.5, products, C)
    torch.testing.assert_close(
        explicit.variance(queries), exact.variance(queries), atol=1e-6, rtol=0
    )
    fewer = ExplicitPrecision.of(
        features[:20], BETA, 0.5, products_of([features], features[:20], BETA), C
    )
    # What the features cannot tell counts as unknown.
    assert bool((fewer.variance(queries) >= exact.variance(queries) - 1e-6).all())


def test_what_is_not_finite_and_what_does_not_converge_is_said(rows, monkeypatch) -> None:
    features, labels = rows
    landmarks = features[:9]
    with pytest.raises(NumericalError, match="not finite"):
        solved(features, labels, landmarks, start=torch.full((9, C), torch.nan).double())
    monkeypatch.setattr("gpcache.gp.explicit.MAX_PASSES", 2)
    with pytest.raises(NumericalError, match="did not converge in 2 passes"):
        solved(features, labels, landmarks)


@pytest.mark.parametrize("name", ["raw", "centred", "whitened", "decorrelated"])
@pytest.mark.parametrize("diagonal", [0.0, 0.5])
def test_moments_give_the_space_of_all_rows(rows, name, diagonal: float) -> None:
    features, labels = rows
    space = KernelSpace(name, 2.0, None, diagonal)
    parts = zip(features.split(20), labels.split(20), strict=True)
    moments = Moments.of(parts, C)
    one, other = space.fit(features, labels), space.fit_moments(moments, torch.float64)
    torch.testing.assert_close(gram(one(features), BETA), gram(other(features), BETA))
    left = moments.without(Moments.of([(features[:10], labels[:10])], C))
    other = space.fit_moments(left, torch.float64)
    one = space.fit(features[10:], labels[10:])
    torch.testing.assert_close(gram(one(features), BETA), gram(other(features), BETA))
