"""Tip-Adapter: logits = s · f W + α · exp(−β(1 − f Fᵀ)) Y."""

import numpy as np
import pytest

from gpcache import GPCacheClassifier
from gpcache.methods import TipAdapterClassifier


def by_hand(problem, tools, *, alpha, beta, gain=1.0, with_text=True, phi=None):
    """The sum over shots, shot by shot."""
    phi = phi or tools.unit
    classes = sorted(problem.prior.class_names) if with_text else sorted(set(problem.y))
    logits = np.zeros((len(problem.queries), len(classes)))
    if with_text:
        logits += gain * tools.zero_shot(problem.prior, problem.queries)
    for i, f in enumerate(phi(problem.queries)):
        for key, name in zip(phi(problem.X), problem.y, strict=True):
            logits[i, classes.index(name)] += alpha * np.exp(-beta * (1 - f @ key))
    return logits


@pytest.mark.parametrize("with_text", [True, False])
@pytest.mark.parametrize("gain", [1.0, 0.4])
def test_logits_are_the_formula(with_text, gain, problem, tools):
    text = problem.prior if with_text else None
    estimator = TipAdapterClassifier.from_options(text_prior=text, alpha=1.7, beta=4.0, gain=gain)
    estimator.set_params(**tools.float64)
    found = estimator.fit(problem.X, problem.y).logits(problem.queries)
    expected = by_hand(problem, tools, alpha=1.7, beta=4.0, gain=gain, with_text=with_text)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("space", ["centred", "whitened"])
def test_other_kernel_spaces_leave_the_text_alone(space, problem, tools):
    estimator = tools.tip_adapter(problem, kernel_space=space).fit(problem.X, problem.y)
    phi = tools.feature_map(space, problem.X, problem.y)
    numbers = {"alpha": 3.0, "beta": 2.5, "gain": 0.8}
    expected = by_hand(problem, tools, phi=phi, **numbers)
    np.testing.assert_allclose(estimator.logits(problem.queries), expected, rtol=1e-9)


def test_float32_agrees_to_five_digits(problem, tools):
    single = tools.tip_adapter(problem, dtype="float32").fit(problem.X, problem.y)
    double = tools.tip_adapter(problem).fit(problem.X, problem.y)
    np.testing.assert_allclose(
        single.logits(problem.queries), double.logits(problem.queries), rtol=1e-5, atol=1e-5
    )


def test_it_is_gpcache_without_precision_weighting(problem, tools):
    numbers = {"alpha": 3.0, "beta": 2.5, "gain": 0.8}
    plain = GPCacheClassifier.from_options(
        text_prior=problem.prior,
        likelihood="gaussian",
        precision_weighting=False,
        prior="zero_shot",
        kernel_space="raw",
        **numbers,
        **tools.float64,
    )
    np.testing.assert_allclose(
        plain.fit(problem.X, problem.y).logits(problem.queries),
        tools.tip_adapter(problem).fit(problem.X, problem.y).logits(problem.queries),
        rtol=1e-12,
    )


def test_its_posterior_has_variance_one(problem, tools):
    mean, variance = tools.tip_adapter(problem).fit(problem.X, problem.y).posterior(problem.queries)
    np.testing.assert_allclose(
        3.0 * mean + 0.8 * tools.zero_shot(problem.prior, problem.queries),
        by_hand(problem, tools, alpha=3.0, beta=2.5, gain=0.8),
        rtol=1e-12,
    )
    np.testing.assert_array_equal(variance, np.ones(len(problem.queries)))


def test_alpha_and_beta_are_chosen_by_leaving_one_out(problem, tools):
    estimator = TipAdapterClassifier.from_options(text_prior=problem.prior, **tools.float64)
    estimator.fit(problem.X, problem.y)
    at_start = TipAdapterClassifier.from_options(
        text_prior=problem.prior, beta=5.5, **tools.float64
    )
    at_start.fit(problem.X, problem.y)
    assert estimator.loo_.protocol == "leave-one-out"
    assert len(np.unique(estimator.search_["beta"])) > 3
    assert estimator.search_["score"][0] <= at_start.search_["score"][0]
    # No noise is looked at: there is none.
    assert len(np.unique(estimator.search_["noise"])) == 1
