"""What every implementation of `Precision` must do, against oracles with explicit inverses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpcache.gp import PRECISIONS, Unweighted
from gpcache.gp.precision import padded_sets

SETS = {
    "one by one": lambda problem: torch.arange(len(problem.keys)),
    "folds of unequal size across classes": lambda problem: torch.randint(
        0, 9, (len(problem.keys),), generator=torch.Generator().manual_seed(2)
    ),
    "whole classes": lambda problem: problem.labels,
    "one large set, the others alone": lambda problem: (
        torch.arange(len(problem.keys)).clamp(min=11) * 1000 - 40_000
    ),
    "everything": lambda problem: torch.zeros(len(problem.keys), dtype=torch.long),
}


def test_every_published_precision_is_tested(problem64, tools):
    tested = {type(tools.build(name, problem64)) for name in tools.names}
    assert tested == {*PRECISIONS.values(), Unweighted}


def test_posterior_is_the_dense_one(name, problem, tools):
    precision = tools.build(name, problem)
    everything = torch.ones(len(problem.keys), dtype=torch.bool)
    for queries in (problem.queries, problem.keys):
        mean, variance = tools.dense(name, problem, precision._plan, everything, queries)
        posterior = precision.posterior(queries)
        tools.close(posterior.mean, mean)
        tools.close(posterior.variance, variance)
        tools.close(precision.mean(queries), mean)


def test_weights_add_up_to_the_mean(name, problem, tools):
    precision = tools.build(name, problem)
    weights = precision.weights(problem.queries)
    assert weights.shape == (len(problem.queries), len(problem.keys))
    assert precision.weighted_values.shape == problem.values.shape
    tools.close(weights @ precision.weighted_values, precision.posterior(problem.queries).mean)


def test_weights_know_nothing_of_the_values(name, problem, tools):
    doubled = tools.build(name, replace(problem, values=2 * problem.values))
    plain = tools.build(name, problem)
    tools.close(doubled.weights(problem.queries), plain.weights(problem.queries))
    tools.close(doubled.mean(problem.queries), 2 * plain.mean(problem.queries))


def compare_with_refits(name, left_out, sets, problem, plan, tools):
    for number in sets.unique():
        gone = sets == number
        mean, variance = tools.dense(name, problem, plan, ~gone, problem.keys[gone])
        tools.close(left_out.mean[gone], mean)
        tools.close(left_out.variance[gone], variance)


@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
def test_leave_out_is_what_refits_say(sets, problem, tools):
    precision = tools.build("exact", problem)
    sets = sets(problem).to(problem.keys.device)
    compare_with_refits("exact", precision.leave_out(sets), sets, problem, None, tools)


def test_leave_one_out_is_what_refits_say(name, problem, tools):
    precision = tools.build(name, problem)
    sets = torch.arange(len(problem.keys), device=problem.keys.device)
    left_out = precision.leave_one_out()
    compare_with_refits(name, left_out, sets, problem, precision._plan, tools)


def test_every_class_finds_its_variance(name, problem, tools):
    precision = tools.build(name, problem)
    variance = precision.posterior(problem.queries).variance
    spread = precision.variance_of_classes(variance)
    if name != "grouped":
        assert precision.class_column is None
        assert spread.shape == (len(problem.queries), 1)
        assert torch.equal(spread, variance)
        return
    assert spread.shape == (len(problem.queries), problem.n_classes)
    for label in range(problem.n_classes):
        assert torch.equal(spread[:, label], variance[:, precision._plan.class_group[label]])


def test_results_have_the_dtype_and_device_of_the_keys(name, problem, tools):
    precision = tools.build(name, problem)
    results = [*precision.posterior(problem.queries), *precision.leave_one_out()]
    results += [precision.mean(problem.queries), precision.weights(problem.queries)]
    results += [precision.solved_values, precision.weighted_values]
    if precision.uses_noise:
        results.append(precision.log_marginal_likelihood())
    for result in results:
        assert result.dtype == problem.keys.dtype
        assert result.device == problem.keys.device


def test_the_input_is_left_as_it_was(name, problem, tools):
    before = {key: value.clone() for key, value in vars(problem).items() if torch.is_tensor(value)}
    precision = tools.build(name, problem)
    precision.posterior(problem.queries)
    precision.leave_one_out()
    if name == "exact":
        precision.leave_out(problem.labels)
    precision.weights(problem.queries)
    for key, value in before.items():
        assert torch.equal(getattr(problem, key), value), key


def test_one_query_or_many(name, problem, tools):
    precision = tools.build(name, problem)
    together = precision.posterior(problem.queries)
    for row in range(len(problem.queries)):
        alone = precision.posterior(problem.queries[row : row + 1])
        tools.close(alone.mean, together.mean[row : row + 1])
        tools.close(alone.variance, together.variance[row : row + 1])


@pytest.mark.filterwarnings("ignore::gpcache.gp.cholesky.JitterWarning")
@settings(derandomize=True, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    shots=st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any),
    beta=st.floats(0.01, 60),
    noise=st.floats(-6, 4).map(lambda exponent: 10**exponent),
)
def test_variance_lies_above_zero_and_not_above_one(
    name, dtype, device, tools, seed, shots, beta, noise
):
    problem = tools.make_problem(
        shots=shots, seed=seed, width=3, beta=beta, noise=noise, device=device, dtype=dtype
    )
    precision = tools.build(name, problem, n_features=8)
    sets = [precision.leave_out(problem.labels)] if name == "exact" else []
    for posterior in (
        precision.posterior(problem.queries),
        precision.posterior(problem.keys),
        precision.leave_one_out(),
        *sets,
    ):
        assert ((posterior.variance > 0) & (posterior.variance <= 1)).all()
        assert posterior.mean.isfinite().all()


@settings(derandomize=True)
@given(numbers=st.lists(st.integers(-3, 12), max_size=40), rows_at_once=st.integers(0, 30))
def test_sets_are_batched_whole_and_once(numbers, rows_at_once):
    sets = torch.tensor(numbers, dtype=torch.long)
    widest = max((numbers.count(number) for number in numbers), default=0)
    seen = []
    for rows, present in padded_sets(sets, rows_at_once):
        assert rows.shape == present.shape
        assert rows.numel() <= max(rows_at_once, widest)
        for members, real in zip(rows, present, strict=True):
            inside = members[real].tolist()
            number = numbers[inside[0]]
            assert inside == [row for row, other in enumerate(numbers) if other == number]
            assert {numbers[row] for row in members.tolist()} == {number}
            seen += inside
    assert sorted(seen) == list(range(len(numbers)))


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_are_enough(name, rows, problem, tools):
    few = problem.rows(torch.arange(rows, device=problem.keys.device))
    precision = tools.build(name, few)
    everything = torch.ones(rows, dtype=torch.bool)
    mean, variance = tools.dense(name, few, precision._plan, everything, few.queries)
    tools.close(precision.mean(few.queries), mean)
    tools.close(precision.posterior(few.queries).variance, variance)
    assert np.isfinite(tools.numpy64(precision.leave_one_out().mean)).all()
