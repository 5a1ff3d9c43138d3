"""The plain kernel sum of Tip-Adapter, and the limit of infinite noise that leads to it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gpcache.errors import ProtocolError
from gpcache.gp import PRECISIONS, Unweighted
from gpcache.gp.kernels import unit_rows

NOISE = 1e9
WITH_EXACT_CROSS = ["exact", "grouped", "nystrom-exact", "fourier-exact"]


def test_it_is_a_literal_sum_over_the_keys(problem, tools):
    keys, values = tools.numpy64(problem.keys), tools.numpy64(problem.values)
    expected = np.zeros((len(problem.queries), problem.n_classes))
    for row, query in enumerate(tools.numpy64(problem.queries)):
        for key, value in zip(keys, values, strict=True):
            expected[row] += np.exp(-problem.beta * (1 - query @ key)) * value
    precision = tools.build("unweighted", problem)
    posterior = precision.posterior(problem.queries)
    tools.close(posterior.mean, expected)
    assert torch.equal(posterior.variance, torch.ones_like(posterior.variance))


@pytest.mark.parametrize("name", WITH_EXACT_CROSS)
def test_it_is_the_limit_of_infinite_noise(name, problem64, tools):
    """noise · mean → k Y; grouped, a key counts for the classes of its group alone."""
    loud = tools.build(name, replace(problem64, noise=NOISE))
    plain = tools.build("unweighted", replace(problem64, values=loud.weighted_values))
    for queries in (problem64.queries, problem64.keys):
        tools.close(NOISE * loud.mean(queries), plain.mean(queries), rtol=0, atol=1e-5)
        tools.close(NOISE * loud.weights(queries), plain.weights(queries), rtol=0, atol=1e-5)
        assert (1 - loud.posterior(queries).variance).max() < 1e-7


@pytest.mark.parametrize("name", WITH_EXACT_CROSS)
def test_leave_one_out_has_the_same_limit(name, problem64, tools):
    loud = tools.build(name, replace(problem64, noise=NOISE))
    plain = tools.build("unweighted", replace(problem64, values=loud.weighted_values))
    tools.close(NOISE * loud.leave_one_out().mean, plain.leave_one_out().mean, rtol=0, atol=1e-5)


def test_noise_means_nothing_to_it(problem, tools):
    quiet, loud = (
        tools.build("unweighted", replace(problem, noise=noise)).mean(problem.queries)
        for noise in (0.1, 10.0)
    )
    assert torch.equal(quiet, loud)
    assert not Unweighted.uses_noise
    assert all(kind.uses_noise for kind in PRECISIONS.values())


def test_it_has_no_marginal_likelihood(problem, tools):
    with pytest.raises(ProtocolError, match=r"no marginal likelihood.*criterion='nll'"):
        tools.build("unweighted", problem).log_marginal_likelihood()


def test_leave_one_out_goes_through_several_batches(device):
    """The largest temporary of a batch has 2²⁵ elements: 6,000 rows do not fit into one."""
    generator = torch.Generator().manual_seed(0)
    keys = unit_rows(torch.randn(6000, 3, generator=generator)).to(device)
    values = torch.randn(6000, 2, generator=generator).to(device)
    left_out = Unweighted(None, keys, values, beta=1.0, noise=1.0).leave_one_out()
    for row in (0, 5591, 5592, 5593, 5999):
        weights = torch.exp(-1.0 * (1 - keys.double() @ keys[row].double()))
        weights[row] = 0
        expected = weights @ values.double()
        torch.testing.assert_close(left_out.mean[row].double(), expected, rtol=1e-3, atol=1e-2)
    assert torch.equal(left_out.variance, torch.ones(6000, 1, device=device))
