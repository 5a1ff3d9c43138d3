"""What to label next: each choice is the best that a literal Gaussian process can find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from gpcache import GPCacheClassifier, NumericalError
from gpcache.methods import TipAdapterClassifier
from gpcache.model.suggest import suggest


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make(count, width=6, seed=0):
    return np.random.default_rng(seed).normal(size=(count, width)) + 0.5


def total_variance(pool, labelled, beta, noise):
    """The summed posterior variance of the pool, by scikit-learn."""
    if not len(labelled):
        return float(len(pool))
    # On unit rows exp(−β(1 − xᵀy)) is the RBF kernel of length scale 1/√β.
    process = GaussianProcessRegressor(RBF(beta**-0.5), alpha=noise, optimizer=None)
    process.fit(labelled, np.zeros(len(labelled)))
    return float(np.sum(process.predict(pool, return_std=True)[1] ** 2))


def brute_force(pool, keys, count, beta, noise):
    """Try every row at every step."""
    chosen, reductions = [], []
    for _ in range(count):
        before = total_variance(pool, np.concatenate([keys, pool[chosen]]), beta, noise)
        after = {
            row: total_variance(pool, np.concatenate([keys, pool[[*chosen, row]]]), beta, noise)
            for row in range(len(pool))
            if row not in chosen
        }
        best = min(after, key=after.__getitem__)
        chosen.append(best)
        reductions.append(before - after[best])
    return chosen, reductions


@pytest.mark.parametrize("space", ["raw", "centred"])
@pytest.mark.parametrize(("beta", "noise"), [(1.0, 0.01), (3.0, 0.5)])
def test_without_labels_every_choice_is_the_best_one(space, beta, noise):
    pool = make(15)
    found = suggest(pool, 6, beta=beta, noise=noise, space=space)
    rows = unit(pool)
    mapped = rows if space == "raw" else unit(rows - rows.mean(0))
    chosen, reductions = brute_force(mapped, mapped[:0], 6, beta, noise)
    assert found.rows.tolist() == chosen
    np.testing.assert_allclose(found.scores, reductions, atol=1e-7)


@pytest.mark.parametrize("space", ["raw", "centred", "whitened"])
def test_with_a_model_the_choice_starts_from_what_it_knows(space):
    shots, pool = make(12, seed=1), make(14, seed=2)
    labels = np.arange(12) % 3
    model = GPCacheClassifier.from_options(kernel_space=space, device="cpu").fit(shots, labels)
    found = suggest(pool, 5, model=model, noise=0.1)
    feature_map = model.fitted_.model.feature_map
    keys, mapped = (feature_map(model._read_queries(rows)).numpy() for rows in (shots, pool))
    chosen, reductions = brute_force(mapped, keys, 5, model.beta_, 0.1)
    assert found.rows.tolist() == chosen
    np.testing.assert_allclose(found.scores, reductions, atol=1e-7)


def test_what_the_model_knows_is_not_asked_for_again():
    shots = make(6, width=20, seed=1)
    pool = np.concatenate([shots, make(3, width=20, seed=2)])
    model = TipAdapterClassifier.from_options(device="cpu").fit(shots, [0, 1, 2, 0, 1, 2])
    assert set(suggest(pool, 3, model=model).rows) == {6, 7, 8}


def test_a_copy_is_not_chosen_while_there_is_something_else():
    distinct = make(5, width=20)
    pool = np.repeat(distinct, 4, axis=0)
    chosen = suggest(pool, 20).rows
    assert sorted(chosen[:5] // 4) == [0, 1, 2, 3, 4]
    assert sorted(chosen) == list(range(20))


@given(
    m=st.integers(2, 20),
    seed=st.integers(0, 1000),
    beta=st.floats(0.1, 10),
    noise=st.floats(0.001, 2),
)
def test_every_label_takes_variance_away_and_together_they_take_what_they_say(m, seed, beta, noise):
    pool = make(m, seed=seed)
    found = suggest(pool, m, beta=beta, noise=noise)
    assert sorted(found.rows) == list(range(m))
    assert (found.scores > 0).all()
    rows = unit(pool)
    mapped = unit(rows - rows.mean(0))
    for count in (1, m // 2, m):
        left = total_variance(mapped, mapped[found.rows[:count]], beta, noise)
        assert found.scores[:count].sum() == pytest.approx(m - left, abs=1e-5 * m)


@given(m=st.integers(3, 20), seed=st.integers(0, 1000))
def test_fewer_rows_are_a_part_of_more(m, seed):
    pool = make(m, seed=seed)
    assert suggest(pool, m // 2 + 1).rows.tolist() == suggest(pool, m).rows.tolist()[: m // 2 + 1]


def test_the_defaults_are_those_that_are_documented():
    pool = make(15)
    assert suggest(pool, 5).rows.tolist() == (
        suggest(pool, 5, beta=1.0, noise=0.01, space="centred").rows.tolist()
    )
    assert suggest(np.float32(pool), 5).rows.tolist() == suggest(pool, 5).rows.tolist()
    assert suggest(make(1), 1).rows.tolist() == [0]


def test_a_pool_beyond_the_memory_is_refused():
    with pytest.raises(NumericalError, match=r"2,000,000 images needs 64\.0 TB"):
        suggest(np.ones((2_000_000, 2)) + np.eye(2)[np.arange(2_000_000) % 2], 5)
