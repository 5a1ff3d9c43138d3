"""Bad input and parameters: one clear sentence each, before anything is computed."""

import numpy as np
import pytest

from gpcache import DataError, NumericalError
from gpcache.cluster.grouped import GroupedCache

X = np.random.default_rng(0).normal(size=(6, 3))
Y = ["a", "a", "b", "b", "c", "c"]
NUMBERS = {"alpha": 1.0, "beta": 1.0, "noise": 1.0}


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"engine": "spark"}, r"^engine of GroupedCache must be one of 'local', 'ray'"),
        ({"n_groups": 0}, r"^n_groups must be a whole number above zero, got 0\.$"),
        ({"loo_rows": 0}, r"^loo_rows must be a whole number above zero, got 0\.$"),
        ({"noise": -1}, r"^noise of GroupedCache must be 'auto' or a number above zero, got -1\.$"),
        ({"kernel_space": "whitened"}, r"^kernel_space of GroupedCache must be one of"),
        ({"text_prior": "a photo"}, r"^text_prior must be a TextPrior"),
        ({"dtype": "float16"}, r"^dtype must be"),
    ],
)
def test_parameters(options, phrase):
    with pytest.raises(DataError, match=phrase):
        GroupedCache(**options).fit(X, Y)


@pytest.mark.parametrize(
    ("value", "phrase"),
    [
        (np.nan, r"^X\[65536:\] contains NaN or inf in row 4: remove or fix that row\.$"),
        (0.0, r"^Row 4 of X\[65536:\] is all zeros and has no direction"),
    ],
)
def test_a_bad_row_is_named(value, phrase):
    rows = np.ones((65_600, 2), dtype=np.float32)
    rows[65_540] = value
    with pytest.raises(DataError, match=phrase):
        GroupedCache(**NUMBERS, n_groups=600).fit(rows, np.arange(65_600) % 656)


@pytest.mark.parametrize(
    ("n_classes", "remedy"),
    [(100_000, r"Use n_groups=[\d,]+ or more\.$"), (1, r"Use fewer keys per class")],
)
def test_too_large_a_group_is_refused(n_classes, remedy):
    """Two million keys in one group would need a matrix of 16 TB, three times."""
    n = 2_000_000
    rows = np.broadcast_to(np.ones(2, dtype=np.float32), (n, 2))
    sentence = r"^A cache of 2,000,000 keys in 1 group\(s\) of up to 2,000,000 keys needs 48\.\d TB"
    with pytest.raises(NumericalError, match=sentence) as caught:
        GroupedCache(**NUMBERS, n_groups=1).fit(rows, np.arange(n) % n_classes)
    assert caught.match(remedy)


def test_too_many_sampled_logits_are_refused():
    n = 300_000
    rows = np.broadcast_to(np.ones(2, dtype=np.float32), (n, 2))
    with pytest.raises(NumericalError, match=r"Use fewer loo_rows\.$"):
        GroupedCache(**NUMBERS, n_groups=3_000, loo_rows=n).fit(rows, np.arange(n) % 150_000)
