"""Nearest neighbours against a full sort in float64, where ties are in the order of the keys."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpcache.errors import DataError, NumericalError
from gpcache.features.neighbors import nearest


def all_cosines(queries, keys):
    unit = [rows.astype(np.float64) for rows in (queries, keys)]
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in unit]
    return unit[0] @ unit[1].T


def brute_force(queries, keys=None, k=128, exclude_self=False):
    """Indices and cosines by a stable sort of every row, all in float64."""
    cosines = all_cosines(queries, queries if keys is None else keys)
    if exclude_self:
        np.fill_diagonal(cosines, -np.inf)
    count = min(k, cosines.shape[1] - exclude_self)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return order, np.take_along_axis(cosines, order, axis=1)


@pytest.fixture
def gaussian():
    def draw(n, d, seed=0):
        return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)

    return draw


@pytest.fixture
def tied():
    """Rows with four entries of ±1 among 12: every cosine is a multiple of 1/4, without rounding.

    Most rows have duplicates, and every row has many neighbours at the same distance.
    """

    def draw(n, seed=0):
        generator = np.random.default_rng(seed)
        rows = np.zeros((n, 12), dtype=np.float32)
        places = generator.permuted(np.tile(np.arange(12), (n, 1)), axis=1)[:, :4]
        signs = generator.choice([-1.0, 1.0], (n, 4))
        np.put_along_axis(rows, places, signs.astype(np.float32), axis=1)
        return rows

    return draw


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize(("n", "k"), [(3000, 5), (3001, 40), (900, 128), (700, 1)])
def test_neighbours_within_a_set(n, k, exclude_self, gaussian):
    """Places that float32 rounding changes are told by their float64 cosines, which must agree."""
    rows = gaussian(n, 24)
    indices, cosines = nearest(rows, k=k, device="cpu", exclude_self=exclude_self)
    _, expected = brute_force(rows, k=k, exclude_self=exclude_self)
    assert (indices.dtype, cosines.dtype) == (np.int64, np.float32)
    np.testing.assert_allclose(cosines, expected, atol=1e-6)
    true = np.take_along_axis(all_cosines(rows, rows), indices, axis=1)
    np.testing.assert_allclose(true, expected, atol=1e-6)
    assert all(len(set(row)) == k for row in indices.tolist())
    itself = indices == np.arange(n)[:, None]
    assert itself.sum() == itself[:, 0].sum() == (0 if exclude_self else n)


def test_neighbours_among_other_keys(gaussian):
    queries, keys = gaussian(37, 24, seed=1), gaussian(2500, 24, seed=2)
    indices, cosines = nearest(queries, keys, 20, device="cpu", block_bytes=200_000)
    expected, expected_cosines = brute_force(queries, keys, 20)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(cosines, expected_cosines, atol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 16, 200, 1999])
@pytest.mark.parametrize("exclude_self", [False, True])
def test_ties_come_in_the_order_of_the_keys(k, exclude_self, tied):
    rows = tied(2000)
    indices, cosines = nearest(rows, k=k, device="cpu", exclude_self=exclude_self)
    expected, expected_cosines = brute_force(rows, k=k, exclude_self=exclude_self)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(cosines, expected_cosines.astype(np.float32))


@given(
    n=st.integers(1, 90),
    n_keys=st.integers(1, 400),
    k=st.integers(1, 12),
    block_bytes=st.integers(1, 300_000),
    seed=st.integers(0, 9),
)
def test_any_size_and_block(n, n_keys, k, block_bytes, seed):
    generator = np.random.default_rng(seed)
    # Entries of ±1/2 in four columns: unit rows, and exact cosines.
    queries, keys = (generator.choice([-0.5, 0.5], (rows, 4)) for rows in (n, n_keys))
    found = nearest(queries, keys, k, device="cpu", block_bytes=block_bytes)
    expected = brute_force(queries, keys, k)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1].astype(np.float32))


@pytest.mark.parametrize("block_bytes", [1, 50_000, 1_000_000, 2**28])
@pytest.mark.parametrize("exclude_self", [False, True])
def test_the_block_size_changes_nothing(block_bytes, exclude_self, tied):
    rows = tied(1100, seed=3)
    whole = nearest(rows, k=17, device="cpu", exclude_self=exclude_self)
    parts = nearest(rows, k=17, device="cpu", exclude_self=exclude_self, block_bytes=block_bytes)
    np.testing.assert_array_equal(parts[0], whole[0])
    np.testing.assert_array_equal(parts[1], whole[1])


def test_duplicates_are_neighbours_but_not_oneself(gaussian):
    rows = np.tile(gaussian(50, 24), (30, 1))  # row i equals rows i + 50, i + 100, …
    indices, cosines = nearest(rows, k=29, device="cpu", exclude_self=True, block_bytes=10**6)
    for row in range(len(rows)):
        copies = [other for other in range(row % 50, len(rows), 50) if other != row]
        assert indices[row].tolist() == copies
    np.testing.assert_allclose(cosines, 1, atol=1e-6)
    assert cosines.max() <= 1


def test_fewer_keys_than_asked_for(gaussian):
    rows = gaussian(6, 8)
    assert nearest(rows, k=50, device="cpu")[0].shape == (6, 6)
    indices, _ = nearest(rows, k=50, device="cpu", exclude_self=True)
    assert [sorted(found) for found in indices.tolist()] == [
        [other for other in range(6) if other != row] for row in range(6)
    ]
    assert nearest(rows[:1], device="cpu", exclude_self=True)[0].shape == (1, 0)
    assert nearest(rows[:0], rows, 3, device="cpu")[0].shape == (0, 3)
    assert nearest(rows[:0], device="cpu", exclude_self=True)[0].shape == (0, 0)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16", "int8"])
def test_kinds_of_input(dtype, gaussian):
    """The length of a row and its type mean nothing, once its values are what they are."""
    rows = torch.from_numpy(8 * gaussian(400, 24)).to(getattr(torch, dtype))
    expected = nearest(rows.double().numpy(), k=9, device="cpu")
    given = [rows] if dtype == "bfloat16" else [rows, rows.numpy(), np.asfortranarray(rows.numpy())]
    for kind in given:
        indices, cosines = nearest(kind, k=9, device="cpu")
        np.testing.assert_array_equal(indices, expected[0])
        np.testing.assert_array_equal(cosines, expected[1])


def test_input_is_left_as_it_was(gaussian):
    rows = 5 * gaussian(300, 24)
    before = rows.copy()
    nearest(rows, k=4, device="cpu", exclude_self=True)
    np.testing.assert_array_equal(rows, before)
    leaf = torch.from_numpy(rows).requires_grad_()
    assert nearest(leaf, k=4, device="cpu")[0].shape == (300, 4)


def test_what_the_caller_allows_for_their_own_products_has_no_effect(gaussian, monkeypatch):
    """The answer has float32's precision (bfloat16 is off by 1e-3), and no setting is touched."""
    rows = gaussian(600, 64)
    unit = rows.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    expected = nearest(rows, k=30, device="cpu")
    allowed = torch.get_float32_matmul_precision()
    changed = []
    try:
        torch.set_float32_matmul_precision("medium")
        with monkeypatch.context() as patch, torch.autocast("cpu", dtype=torch.bfloat16):
            patch.setattr(torch, "set_float32_matmul_precision", changed.append)
            found = nearest(rows, k=30, device="cpu")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(allowed)
    assert changed == []
    exact = np.einsum("nd,nkd->nk", unit, unit[found[0]])
    np.testing.assert_allclose(found[1], exact, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("row", [0, 777])
@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_row_without_direction(row, value, gaussian):
    rows = gaussian(1000, 8)
    rows[row] = value
    message = f"Row {row} of {{}} is all zeros or holds NaN or inf"
    with pytest.raises(DataError, match=message.format("queries")):
        nearest(rows, device="cpu", block_bytes=20_000)
    with pytest.raises(DataError, match=message.format("keys")):
        nearest(gaussian(5, 8), rows, device="cpu", block_bytes=20_000)
    with pytest.raises(DataError, match=message.format("queries")):
        nearest(rows, gaussian(5, 8), device="cpu", block_bytes=20_000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be a whole number above zero, got 0"),
        ({"k": 2.5}, "k must be a whole number above zero, got 2.5"),
        ({"k": True}, "k must be a whole number"),
        ({"keys": np.ones((4, 3))}, "queries have 8 columns but keys have 3"),
        ({"keys": np.ones((4, 8)), "exclude_self": True}, "leave keys out"),
        ({"keys": np.ones(8)}, r"keys must be of shape \(rows, columns\), got \(8,\)"),
        ({"keys": np.array([["a"] * 8])}, "keys must be numbers"),
        ({"device": "toaster"}, "device must be"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, message, gaussian):
    with pytest.raises(DataError, match=message):
        nearest(gaussian(5, 8), **{"device": "cpu", **arguments})


def test_memory_is_counted_before_it_is_taken():
    """A tensor that repeats one stored row: 4·10¹³ bytes of keys, of which 40 exist."""
    rows = torch.ones(1, 10).expand(10**12, 10)
    with pytest.raises(NumericalError, match=r"128 neighbours among 1,000,000,000,000 keys needs"):
        nearest(rows[:5], rows, device="cpu")
