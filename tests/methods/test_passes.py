"""Passes over rows: the sums over parts add up to the sum over all, however rows are divided."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp.feature_maps import FeatureMap, ResidualProjection
from gpcache.gp.kernels import kernel, unit_rows
from gpcache.methods.cache.passes import LossPass, MomentsPass, Pass, ProductsPass
from gpcache.methods.cache.row_stream import RowStream

N, WIDTH, CLASSES, BETA = 50, 6, 3, 0.8


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ROWS, LABELS = drawn(N, WIDTH, seed=1).numpy(), torch.arange(N) % CLASSES
SPACE = ProductsPass(FeatureMap(mean=drawn(WIDTH) / 9), unit_rows(drawn(8, WIDTH, seed=2)), BETA)
PRIOR = (drawn(CLASSES, WIDTH, seed=3), torch.zeros(CLASSES, dtype=torch.bool), 0.5)
PASSES: list[Pass] = [
    MomentsPass(ResidualProjection(drawn(WIDTH, WIDTH, seed=5)), CLASSES),
    SPACE,
    LossPass(SPACE, drawn(8, CLASSES, seed=4), *PRIOR, torch.zeros(CLASSES)),
]


def stream(first: int, last: int) -> RowStream:
    part = slice(first, last)
    return RowStream(ROWS[part], LABELS[part], CLASSES, None, torch.float64, first=first)


@given(
    st.sampled_from(PASSES),
    st.integers(1, N - 1),
    st.integers(1, N),
    st.sets(st.integers(0, N - 1)),
)
def test_parts_add_up(step: Pass, middle: int, size: int, held: set[int]) -> None:
    left_out = torch.tensor(sorted(held), dtype=torch.long)
    expected = stream(0, N).total(step, 7, left_out)
    first, second = (
        left_out[left_out < middle],
        left_out[left_out >= middle] - middle,
    )
    sent: Pass = pickle.loads(pickle.dumps(step))
    one = stream(0, middle).total(sent, size, first)
    other = stream(middle, N).total(sent, size, second)
    for whole, *parts in zip(expected, one, other, strict=True):
        np.testing.assert_allclose(sum(parts), whole, atol=1e-9)


def test_the_gradient_is_that_of_the_loss() -> None:
    step = PASSES[2]
    assert isinstance(step, LossPass)
    values = step.values.clone().requires_grad_()
    seen = unit_rows(torch.from_numpy(ROWS))
    logits = step.gain * seen @ PRIOR[0].mT
    logits = logits + kernel(SPACE.feature_map(seen), SPACE.landmarks, BETA) @ values
    expected = torch.nn.functional.cross_entropy(logits, LABELS, reduction="sum")
    expected.backward()
    expected = expected.detach()
    loss, gradient = stream(0, N).total(step, 20)
    assert float(loss) == pytest.approx(float(expected))
    torch.testing.assert_close(gradient, values.grad)


def test_a_wrong_row_of_a_part_has_its_number_among_all() -> None:
    rows = ROWS.copy()
    rows[33] = 0
    part = RowStream(rows[20:], LABELS[20:], CLASSES, None, torch.float64, first=20)
    with pytest.raises(DataError, match="Row 33 of X is all zeros"):
        part.total(SPACE, 4)
