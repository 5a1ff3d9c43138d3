"""The share of class names, and what is said where sets serve some classes worse than others."""

import numpy as np
import pytest

from gpcache import GPCacheClassifier, TextPrior
from gpcache.model.answers import name_weights, why_uneven

NAMES = ("sparrow", "finch", "crane", "swan", "owl", "hen", "duck", "gull")


@pytest.fixture(scope="module")
def data():
    """Rows of eight classes; those of the first scatter over all of them."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(len(NAMES), 16))
    labels = np.repeat(np.arange(len(NAMES)), 16)
    rows = centres[labels] + 0.25 * generator.normal(size=(len(labels), 16))
    rows[:16] = centres[0] + 1.6 * generator.normal(size=(16, 16))
    return rows, np.array(NAMES)[labels], centres


def test_a_class_that_sets_miss_is_named(data):
    rows, labels, _ = data
    model = GPCacheClassifier(device="cpu").fit(rows, labels)
    told = why_uneven(model, 0.1)
    assert "of 16 images of 'sparrow', where 90 % are promised on average" in told
    assert told.count(".") == 2
    alike = GPCacheClassifier(device="cpu").fit(rows[16:], labels[16:])
    assert why_uneven(alike, 0.1) == ""
    report = model.loo_
    own = report.labels == list(model.classes_).index("sparrow")
    sizes = [
        model.answer(rows[own], error=0.1, class_conditional=each).sets.sizes.mean()
        for each in (False, True)
    ]
    assert sizes[1] > sizes[0]  # the promise for the class takes larger sets


def test_the_share_of_a_name_is_what_it_says_beyond_the_others(data):
    rows, labels, centres = data
    prior = TextPrior(NAMES, centres, 10.0)
    model = GPCacheClassifier(text_prior=prior, device="cpu").fit(rows, labels)
    shares = name_weights(model, rows[16:])
    assert np.mean(shares > 0) > 0.9
    same = TextPrior(NAMES, np.ones_like(centres), 10.0)
    silent = GPCacheClassifier(text_prior=same, device="cpu").fit(rows, labels)
    np.testing.assert_allclose(name_weights(silent, rows), 0, atol=1e-9)
    assert name_weights(GPCacheClassifier(device="cpu").fit(rows, labels), rows) is None
