"""The Cholesky policy: untouched where it can be, lifted where it must be, one error at the end."""

import warnings

import numpy as np
import pytest
import torch

from gpcache.errors import NumericalError
from gpcache.gp.cholesky import (
    JitterWarning,
    cholesky,
    jitter_of,
    log_determinant,
    quadratic,
    solve,
)

SIZE = 6


@pytest.fixture
def healthy(device, dtype):
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(3, SIZE, SIZE, generator=generator, dtype=torch.float64)
    matrix = half @ half.mT / SIZE + torch.eye(SIZE, dtype=torch.float64)
    return matrix.to(device, dtype)


@pytest.fixture
def singular(device, dtype):
    """Identical keys without noise: a matrix of ones."""
    return torch.ones(SIZE, SIZE, device=device, dtype=dtype)


def below_zero(amount, like):
    """A unit diagonal but for one entry, −amount of the diagonal's mean."""
    diagonal = torch.ones(SIZE, dtype=torch.float64)
    diagonal[-1] = -amount
    return torch.diag(diagonal).to(like)


def lift_of(matrix, factor):
    """How much of the mean diagonal was added, the same for every entry of the diagonal."""
    added = (factor.double() @ factor.double().mT - matrix.double()).diagonal()
    return (added / matrix.double().diagonal().mean()).cpu().numpy()


def test_nothing_is_added_where_nothing_is_needed(healthy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(cholesky(healthy), torch.linalg.cholesky(healthy))
        assert torch.equal(cholesky(healthy[0]), torch.linalg.cholesky(healthy[0]))


def test_only_the_failing_member_of_a_batch_is_lifted(healthy, singular):
    batch = healthy.clone()
    batch[1] = singular
    with pytest.warns(JitterWarning):
        factor = cholesky(batch)
    # Factors of one batch, so that the same routine made both.
    untouched = torch.linalg.cholesky_ex(batch)[0]
    assert torch.equal(factor[0], untouched[0])
    assert torch.equal(factor[2], untouched[2])
    jitter = jitter_of(batch.dtype)
    np.testing.assert_allclose(lift_of(singular, factor[1]), jitter, rtol=0.02)


def test_the_warning_says_how_much(singular):
    amount = f"{jitter_of(singular.dtype):.0e}"
    with pytest.warns(JitterWarning, match=rf"{amount} of its mean diagonal.*noise") as caught:
        cholesky(singular)
    assert len(caught) == 1


def test_jitter_is_the_root_of_epsilon_and_grows_tenfold(healthy):
    """A member that needs 10 × the jitter takes along the one that needed only 1 ×."""
    jitter = jitter_of(healthy.dtype)
    assert jitter == pytest.approx(np.sqrt(torch.finfo(healthy.dtype).eps))
    batch = torch.stack(
        [below_zero(0.3 * jitter, healthy), healthy[0], below_zero(3 * jitter, healthy)]
    )
    with pytest.warns(JitterWarning, match=f"{10 * jitter:.0e} of its mean diagonal") as caught:
        factor = cholesky(batch)
    assert len(caught) == 1
    assert torch.equal(factor[1], torch.linalg.cholesky_ex(batch)[0][1])
    for member in (0, 2):
        np.testing.assert_allclose(lift_of(batch[member], factor[member]), 10 * jitter, rtol=0.02)


def test_the_lift_is_relative_to_the_diagonal(singular):
    with pytest.warns(JitterWarning):
        factor = cholesky(100 * singular)
    np.testing.assert_allclose(
        lift_of(100 * singular, factor), jitter_of(singular.dtype), rtol=0.02
    )


@pytest.mark.parametrize(
    ("entry", "poison"),
    [((2, 2), np.nan), ((4, 1), np.inf), ((0, 0), np.inf), ((3, 3), np.inf), ((5, 5), -np.inf)],
)
def test_nan_is_reported_as_nan(healthy, entry, poison):
    healthy[1][entry] = healthy[1].mT[entry] = poison
    with pytest.raises(NumericalError, match=r"holds NaN or Inf: check the features"):
        cholesky(healthy)
    with pytest.raises(NumericalError, match=r"holds NaN or Inf: check the features"):
        cholesky(healthy[1])


def test_a_hopeless_matrix_names_the_remedy(healthy):
    with pytest.raises(NumericalError) as caught:
        cholesky(below_zero(1.0, healthy))
    message = str(caught.value)
    assert f"of {SIZE} keys is not positive definite" in message
    assert f"{1000 * jitter_of(healthy.dtype):.0e} of its mean diagonal" in message
    assert message.endswith("raise `noise`, or use float64.")


def test_one_hopeless_member_is_enough(healthy):
    healthy[2] = below_zero(1.0, healthy)
    with pytest.raises(NumericalError, match="not positive definite"):
        cholesky(healthy)


def test_solve_quadratic_and_determinant(healthy, tools):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(3, 4, SIZE, generator=generator, dtype=torch.float64).to(healthy)
    before = rows.clone()
    factor = cholesky(healthy)
    inverse, points = np.linalg.inv(tools.numpy64(healthy)), tools.numpy64(rows)
    tools.close(solve(factor, rows.mT), inverse @ points.transpose(0, 2, 1))
    tools.close(quadratic(factor, rows), np.einsum("bmi,bij,bmj->bm", points, inverse, points))
    tools.close(log_determinant(factor), np.linalg.slogdet(tools.numpy64(healthy))[1])
    tools.close(log_determinant(factor[0]), np.linalg.slogdet(tools.numpy64(healthy[0]))[1])
    assert torch.equal(rows, before)
