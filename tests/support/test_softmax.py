"""Softmax of short rows: torch's, to rounding, and with its gradients where they are asked for."""

import pytest
import torch

from gpcache.support.softmax import SHORT, log_softmax, softmax

PAIRS = [(softmax, torch.softmax), (log_softmax, torch.log_softmax)]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("shape", [(5, 1), (7, 3), (2, 3, 15), (4, 47), (4, 48), (0, 3), (3, 0)])
def test_it_is_that_of_torch(ours, theirs, dtype, shape):
    logits = 30 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    before = logits.clone()
    torch.testing.assert_close(ours(logits), theirs(logits, -1))
    assert torch.equal(logits, before)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["softmax", "log_softmax"])
def test_large_logits_do_not_overflow(ours, theirs):
    logits = torch.tensor([[1e4, -1e4, 0.0], [3e38, 3e38, -3e38]])
    torch.testing.assert_close(ours(logits), theirs(logits, -1))


@pytest.mark.parametrize("ours", [softmax, log_softmax])
def test_it_has_gradients(ours):
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ours, logits)
