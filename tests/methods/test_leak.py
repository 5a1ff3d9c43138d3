"""No signal, no accuracy: on random labels the held-out figures stay at chance.

A whitening has seen the label of every shot. Leaving shots out in its fixed space looks far better
than chance on labels that mean nothing, which is why everything is learned anew in folds.
"""

import math

import numpy as np
import pytest

from gpcache import GPCacheClassifier, GPCacheFClassifier

CLASSES, SHOTS, WIDTH, SEEDS = 10, 4, 128, 12
CHANCE = 1 / CLASSES
ROWS = CLASSES * SHOTS


def deviation(rows):
    """Of a share of `rows` guesses."""
    return math.sqrt(CHANCE * (1 - CHANCE) / rows)


@pytest.fixture(scope="module")
def draws():
    """Features and labels that know nothing of each other."""
    generators = [np.random.default_rng(seed) for seed in range(SEEDS)]
    labels = np.repeat(np.arange(CLASSES), SHOTS)
    return [(g.normal(size=(ROWS, WIDTH)), g.permutation(labels)) for g in generators]


def mean_accuracy(draws, make):
    return np.mean([make(X, y).loo_.accuracy for X, y in draws])


def test_leaving_out_in_a_fixed_whitening_leaks(draws, tools):
    """The figure that is never shown: it finds a signal where there is none."""
    numbers = {"likelihood": "gaussian", "alpha": 10.0, "beta": 1.0, "noise": 1.0}

    def naive(X, y):
        phi = tools.feature_map("whitened", X, y)
        return GPCacheClassifier.from_options(kernel_space="raw", selection="loo", **numbers).fit(
            phi(X), y
        )

    def honest(X, y):
        return GPCacheClassifier.from_options(**numbers).fit(X, y)

    bound = 4 * deviation(SEEDS * ROWS)
    assert mean_accuracy(draws, naive) > CHANCE + bound
    assert abs(mean_accuracy(draws, honest) - CHANCE) < bound


def test_a_chosen_estimator_is_at_chance(draws, likelihood):
    """α ≥ 0 is chosen on the same rows: half of one draw's deviation may come of that."""
    found = mean_accuracy(
        draws, lambda X, y: GPCacheClassifier.from_options(likelihood=likelihood).fit(X, y)
    )
    assert found < CHANCE + 0.5 * deviation(ROWS) + 3 * deviation(SEEDS * ROWS)


def test_trained_keys_are_at_chance(draws):
    """On their own shots they are not: that is what a fold must not see."""
    options = {"alpha": 10.0, "beta": 1.0, "noise": 1.0, "epochs": 5, "learning_rate": 0.05}
    fitted = [GPCacheFClassifier.from_options(**options).fit(X, y) for X, y in draws]
    seen = np.mean([e.score(X, y) for e, (X, y) in zip(fitted, draws, strict=True)])
    assert seen > 0.9
    found = np.mean([e.loo_.accuracy for e in fitted])
    assert abs(found - CHANCE) < 4 * deviation(SEEDS * ROWS)


def test_the_probabilities_of_no_signal_are_near_uniform(draws, likelihood):
    """The temperature comes of held-out rows: confidence is not what the shots' own fit says."""
    for X, y in draws[:3]:
        estimator = GPCacheClassifier.from_options(likelihood=likelihood).fit(X, y)
        queries = np.random.default_rng(99).normal(size=(50, WIDTH))
        assert estimator.predict_proba(queries).max(1).mean() < 3 * CHANCE
        assert estimator.loo_.nll > math.log(CLASSES) - 0.15
