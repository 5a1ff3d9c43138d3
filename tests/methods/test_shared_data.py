"""The default estimator on real CLIP features (DTD, ViT-B/32), without a validation set.

The data lie beside the project and are not part of it: ../shared, or GPCACHE_DEV_DATA.
"""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpcache import GPCacheClassifier, TextPrior, metrics
from gpcache.methods import ZeroShotClassifier

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("GPCACHE_DEV_DATA", ROOT.parent / "shared"))
FILE = DATA / "features" / "dtd_vitb32.npz"

pytestmark = pytest.mark.skipif(
    not FILE.exists(), reason=f"{FILE} is absent: set GPCACHE_DEV_DATA to the development data"
)


@pytest.fixture(scope="module")
def dtd():
    stored = np.load(FILE)
    names = stored["classnames"]
    prior = TextPrior(names, stored["text"])
    validation, test = (
        (stored[f"{part}_x"], names[stored[f"{part}_y"]]) for part in ("val", "test")
    )
    return SimpleNamespace(names=names, prior=prior, validation=validation, test=test)


@pytest.fixture(scope="module")
def fitted(dtd):
    """The default estimator on k shots a class, drawn from val as DATA.md says; each draw once."""
    known = {}

    def fit(shots, seed=0):
        if (shots, seed) not in known:
            X, y = dtd.validation
            rows = drawn(y, dtd.names, shots, seed)
            known[shots, seed] = GPCacheClassifier.from_options(text_prior=dtd.prior).fit(
                X[rows], y[rows]
            )
        return known[shots, seed]

    return fit


def drawn(y, names, shots, seed=0):
    generator = np.random.default_rng(seed)
    return np.concatenate(
        [generator.choice(np.flatnonzero(y == name), shots, replace=False) for name in names]
    )


@pytest.mark.parametrize(("shots", "least"), [(1, 0.49), (4, 0.585)])
def test_accuracy_on_test(shots, least, dtd, fitted):
    """Of five draws on average; one draw is off by two points."""
    text = ZeroShotClassifier(text_prior=dtd.prior).fit(*dtd.test).score(*dtd.test)
    found = [fitted(shots, seed).score(*dtd.test) for seed in range(5)]
    assert np.mean(found) >= least
    assert min(found) > text


@pytest.mark.parametrize("shots", [1, 4, 16])
def test_probabilities_are_calibrated(shots, dtd, fitted):
    estimator = fitted(shots)
    labels = np.searchsorted(estimator.classes_, dtd.test[1])
    assert metrics.ece(estimator.predict_proba(dtd.test[0]), labels) <= 0.08


def test_held_out_shots_foretell_the_test(dtd, fitted):
    estimator = fitted(16)
    assert estimator.loo_.counted.all()
    assert abs(estimator.loo_.accuracy - estimator.score(*dtd.test)) <= 0.05


def test_classes_without_shots_are_found_by_their_text(dtd):
    """Ten classes of which only the name is known, beside 37 with eight shots."""
    X, y = dtd.validation
    unseen = dtd.names[::5]
    rows = drawn(y, np.setdiff1d(dtd.names, unseen), 8)
    estimator = GPCacheClassifier.from_options(text_prior=dtd.prior).fit(X[rows], y[rows])
    right = estimator.predict(dtd.test[0]) == dtd.test[1]
    of_unseen = np.isin(dtd.test[1], unseen)
    assert right[of_unseen].mean() > 0.25  # chance is 0.02
    assert right[~of_unseen].mean() > 0.6
