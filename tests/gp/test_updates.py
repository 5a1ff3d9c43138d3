"""Rows that come, go or change their value: always what a fresh factorisation would say."""

import math

import pytest
import torch

from gpcache.gp import ExactPrecision
from gpcache.gp.exact import drift_tolerance


def fresh(precision):
    return ExactPrecision(
        None, precision.keys, precision.values, beta=precision.beta, noise=precision.noise
    )


def is_updated(precision):
    """Whether P was carried along, rather than computed anew."""
    return precision._holds_inverse


def revalued(precision, rows, values):
    """The precision with other values for these rows."""
    changed = precision.values.clone()
    changed[rows] = values
    return precision.with_values(changed)


def with_columns(precision, source):
    """The precision with other classes: old column `source[j]`, zeros where −1."""
    values = precision.values[:, source.clamp(min=0)]
    return precision.with_values(torch.where(source >= 0, values, 0.0))


@pytest.fixture
def assert_same(problem, tools):
    """Everything that a precision can say, beside what another says."""

    def check(actual, expected, **tolerance):
        queries = problem.queries
        assert len(actual.keys) == len(expected.keys)
        for pair in (
            *zip(actual.posterior(queries), expected.posterior(queries), strict=True),
            *zip(actual.leave_one_out(), expected.leave_one_out(), strict=True),
            (actual.mean(queries), expected.mean(queries)),
            (actual.weights(queries), expected.weights(queries)),
            (actual.weights(queries) @ actual.weighted_values, expected.mean(queries)),
            (actual.log_marginal_likelihood(), expected.log_marginal_likelihood()),
        ):
            tools.close(*pair, **tolerance)

    return check


@pytest.fixture
def extra(problem, tools):
    """Rows to add, of another draw."""
    keys = problem.keys
    return tools.make_problem(
        shots=(2, 1, 0, 1, 0, 0, 2), seed=5, device=keys.device, dtype=keys.dtype
    )


@pytest.mark.parametrize("count", [0, 1, 6])
def test_add_is_a_fresh_factorisation_of_the_union(count, problem, extra, tools, assert_same):
    added = tools.build("exact", problem).add(extra.keys[:count], extra.values[:count])
    assert is_updated(added)
    assert torch.equal(added.keys, torch.cat([problem.keys, extra.keys[:count]]))
    assert torch.equal(added.values, torch.cat([problem.values, extra.values[:count]]))
    assert_same(added, fresh(added))


@pytest.mark.parametrize("rows", [[], [0], [3, 17, 5], list(range(27))])
def test_remove_is_a_fresh_factorisation_of_the_rest(rows, problem, tools, assert_same):
    gone = torch.tensor(rows, dtype=torch.long, device=problem.keys.device)
    removed = tools.build("exact", problem).remove(gone)
    assert is_updated(removed)
    rest = problem.rows([row for row in range(len(problem.keys)) if row not in rows])
    assert torch.equal(removed.keys, rest.keys)
    assert torch.equal(removed.values, rest.values)
    assert_same(removed, tools.build("exact", rest))


def test_other_values_are_a_fresh_factorisation_with_them(problem, tools, assert_same):
    rows = torch.tensor([9, 0, 4], device=problem.keys.device)
    values = problem.values[[1, 2, 3]] * 2
    before = problem.values.clone()
    changed = revalued(tools.build("exact", problem), rows, values)
    assert is_updated(changed)
    assert torch.equal(changed.values[rows], values)
    assert torch.equal(problem.values, before)
    assert_same(changed, fresh(changed))


def test_classes_can_be_reordered_dropped_and_added(problem, tools, assert_same):
    source = torch.tensor([6, -1, 0, 2], device=problem.keys.device)
    wider = with_columns(tools.build("exact", problem), source)
    silent = torch.zeros_like(problem.values[:, 0])
    expected = torch.stack([problem.values[:, 6], silent, *problem.values[:, [0, 2]].mT], 1)
    assert torch.equal(wider.values, expected)
    assert_same(wider, fresh(wider))


def test_add_then_remove_is_unchanged(problem, extra, tools, assert_same):
    precision = tools.build("exact", problem)
    n = len(problem.keys)
    there = precision.add(extra.keys, extra.values)
    back = there.remove(torch.arange(n, len(there.keys), device=problem.keys.device))
    assert torch.equal(back.keys, problem.keys)
    assert_same(back, precision)
    with pytest.raises(AssertionError):  # the detour did change something
        assert_same(there.remove(torch.arange(len(extra.keys))), precision)


def test_an_updated_posterior_can_be_updated_again(problem, extra, tools, assert_same):
    rows = torch.tensor([2, 30], device=problem.keys.device)
    added = tools.build("exact", problem).add(extra.keys[:4], extra.values[:4])
    changed = revalued(added, rows, problem.values[:2])
    chained = changed.remove(rows[:1]).add(extra.keys[4:], extra.values[4:])
    assert is_updated(chained)
    assert_same(chained, fresh(chained))


def test_all_rows_go_and_come_back(problem, tools, assert_same):
    precision = tools.build("exact", problem)
    nothing = precision.remove(torch.arange(len(problem.keys), device=problem.keys.device))
    prior = nothing.posterior(problem.queries)
    assert torch.equal(prior.mean, torch.zeros_like(prior.mean))
    assert torch.equal(prior.variance, torch.ones_like(prior.variance))
    assert_same(nothing.add(problem.keys, problem.values), precision)


def test_a_row_that_is_there_already_can_be_added(problem, tools, assert_same):
    precision = tools.build("exact", problem)
    doubled = precision.add(problem.keys[3:5], problem.values[3:5])
    assert is_updated(doubled)
    assert_same(doubled, fresh(doubled))
    at_row = problem.keys[3:4]
    assert doubled.posterior(at_row).variance < precision.posterior(at_row).variance


def test_a_posterior_is_not_changed_by_its_updates(problem, extra, tools):
    precision, untouched = tools.build("exact", problem), tools.build("exact", problem)
    precision.add(extra.keys, extra.values)
    precision.remove(torch.tensor([1, 2]))
    revalued(precision, torch.tensor([0]), problem.values[5:6])
    for name in ("keys", "values", "solved_values", "covariance", "_inverse"):
        assert torch.equal(getattr(precision, name), getattr(untouched, name)), name


def test_a_chain_of_200_updates_stays_within_1e_8(device, tools):
    problem = tools.make_problem(device=device)
    pool = tools.make_problem(shots=(60,) * 7, seed=3, device=device)
    generator = torch.Generator().manual_seed(0)

    def draw(limit, count):
        return torch.randperm(limit, generator=generator)[:count].to(device)

    precision, refactored = tools.build("exact", problem), 0
    for step in range(200):
        count = 1 + step % 3
        growing = torch.rand((), generator=generator) < 0.5
        if len(precision.keys) < 15 or (growing and len(precision.keys) < 45):
            rows = draw(len(pool.keys), count)
            precision = precision.add(pool.keys[rows], pool.values[rows])
        else:
            precision = precision.remove(draw(len(precision.keys), count))
        refactored += not is_updated(precision)
    assert refactored == 0
    expected = fresh(precision)
    for pair in (
        *zip(precision.posterior(pool.keys), expected.posterior(pool.keys), strict=True),
        *zip(precision.leave_one_out(), expected.leave_one_out(), strict=True),
        (precision.weights(pool.keys), expected.weights(pool.keys)),
        (precision.solved_values, expected.solved_values),
    ):
        tools.close(*pair, rtol=0, atol=1e-8)


def updated_by(update, precision, extra, rows):
    """Any of the updates, with other rows or with two row numbers (two classes)."""
    return {
        "add": lambda: precision.add(extra.keys, extra.values),
        "remove": lambda: precision.remove(rows),
        "values": lambda: revalued(precision, rows, extra.values[:2]),
        "classes": lambda: with_columns(precision, rows),
    }[update]()


@pytest.mark.parametrize("update", ["add", "remove", "values", "classes"])
@pytest.mark.parametrize("part", ["_inverse", "_solved"])
def test_what_is_corrupt_is_noticed_and_computed_anew(
    part, update, problem, extra, tools, assert_same
):
    """P itself, and P times the values."""
    precision = tools.build("exact", problem)
    tolerance = drift_tolerance(problem.keys.dtype)
    assert precision.drift() < tolerance / 5
    setattr(precision, part, getattr(precision, part) * (1 + 30 * tolerance))
    assert precision.drift() > tolerance
    rows = torch.tensor([0, 6], device=problem.keys.device)
    updated = updated_by(update, precision, extra, rows)
    assert type(updated) is ExactPrecision
    assert_same(updated, fresh(updated))
    assert updated.drift() < tolerance / 5


@pytest.mark.parametrize("update", ["remove", "values", "classes"])
@pytest.mark.parametrize("part", ["_inverse", "_solved"])
def test_nan_is_noticed_and_computed_anew(part, update, problem, extra, tools, assert_same):
    """Although no comparison with NaN holds; one entry, far from the rows of the update."""
    precision = tools.build("exact", problem)
    poisoned = getattr(precision, part).clone()
    poisoned[11, 3] = float("nan")
    setattr(precision, part, poisoned)
    assert math.isnan(precision.drift())
    rows = torch.tensor([0, 3], device=problem.keys.device)
    updated = updated_by(update, precision, extra, rows)
    assert type(updated) is ExactPrecision
    assert_same(updated, fresh(updated))


def test_float64_is_held_to_1e_8():
    assert drift_tolerance(torch.float64) == 1e-8
