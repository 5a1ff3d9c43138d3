"""Grouped classes: a loop of scikit-learn's Gaussian processes, one per group of classes."""

import math

import numpy as np
import pytest
import torch

from gpcache.gp import ExactPrecision, GroupedPrecision
from gpcache.gp.exact import FactoredPrecision


def members(plan, labels, group):
    """Rows and classes of a group, from the assignment of classes alone."""
    class_group = np.asarray(plan.class_group.cpu())
    return class_group[np.asarray(labels.cpu())] == group, class_group == group


@pytest.fixture(params=[3, 5, 7, 100])
def grouped(request, problem, tools):
    return tools.build("grouped", problem, n_groups=request.param)


def test_groups_are_a_loop_of_scikit_learn_processes(grouped, problem, tools):
    module = pytest.importorskip("sklearn.gaussian_process")
    keys, values = tools.numpy64(problem.keys), tools.numpy64(problem.values)
    queries, plan = tools.numpy64(problem.queries), grouped._plan
    posterior = grouped.posterior(problem.queries)
    n_groups = int(plan.class_group.max()) + 1
    assert posterior.mean.shape == (len(queries), problem.n_classes)
    assert posterior.variance.shape == (len(queries), n_groups)
    evidence, sizes = 0.0, set()
    for group in range(n_groups):
        rows, classes = members(plan, problem.labels, group)
        sizes.add(rows.sum())
        if not rows.any():  # a class without shots, alone in its group
            tools.close(posterior.mean[:, classes], np.zeros((len(queries), classes.sum())))
            tools.close(posterior.variance[:, group], np.ones(len(queries)))
            continue
        reference = module.GaussianProcessRegressor(
            module.kernels.RBF(1 / np.sqrt(problem.beta)), alpha=problem.noise, optimizer=None
        ).fit(keys[rows], values[rows][:, classes])
        mean, deviation = reference.predict(queries, return_std=True)
        tools.close(posterior.mean[:, classes], mean.reshape(len(queries), -1))
        deviation = deviation.reshape(len(queries), -1)[:, 0]
        tools.close(posterior.variance[:, group], deviation**2)
        evidence += reference.log_marginal_likelihood_value_
    assert len(sizes) > 1  # there was padding
    tools.close(grouped.log_marginal_likelihood(), evidence)


def test_one_group_is_exact(problem, tools):
    grouped, exact = tools.build("grouped", problem, n_groups=1), tools.build("exact", problem)
    for pair in (
        *zip(grouped.posterior(problem.queries), exact.posterior(problem.queries), strict=True),
        *zip(grouped.leave_one_out(), exact.leave_one_out(), strict=True),
        (grouped.mean(problem.queries), exact.mean(problem.queries)),
        (grouped.weights(problem.queries), exact.weights(problem.queries)),
        (grouped.solved_values, exact.solved_values),
        (grouped.log_marginal_likelihood(), exact.log_marginal_likelihood()),
    ):
        assert pair[0].shape == pair[1].shape
        tools.close(*pair)


def test_groups_share_the_factors_and_have_no_updates(grouped):
    """A row that comes could need another padding: `add` would have been wrong in silence."""
    assert isinstance(grouped, FactoredPrecision)
    assert not isinstance(grouped, ExactPrecision)
    for update in ("add", "remove", "with_values", "drift"):
        assert hasattr(ExactPrecision, update)
        assert not hasattr(grouped, update)


def test_padding_contributes_nothing(grouped, problem, tools):
    """However much of it there is: a group beside a large one says what it says alone."""
    assert not grouped._plan.row_present.all()
    posterior = grouped.posterior(problem.queries)
    alone = 0.0
    for group in range(posterior.variance.shape[1]):
        rows, classes = members(grouped._plan, problem.labels, group)
        few = problem.rows(torch.from_numpy(rows).to(problem.keys.device))
        exact = tools.build("exact", few)
        expected = exact.posterior(problem.queries)
        tools.close(posterior.mean[:, classes], expected.mean[:, classes])
        tools.close(posterior.variance[:, group], expected.variance[:, 0])
        values = few.values[:, torch.from_numpy(classes).to(few.values.device)]
        alone += type(exact)(
            None, few.keys, values, beta=problem.beta, noise=problem.noise
        ).log_marginal_likelihood()
    tools.close(grouped.log_marginal_likelihood(), alone)


def test_a_key_weighs_only_on_the_classes_of_its_group(grouped, problem):
    """`weighted_values` and `solved_values` hold zeros for the classes of other groups."""
    class_group = grouped._plan.class_group
    other = class_group[problem.labels][:, None] != class_group[None, :]
    assert other.any()
    assert (grouped.weighted_values[other] == 0).all()
    assert (grouped.solved_values[other] == 0).all()
    assert torch.equal(grouped.weighted_values[~other], problem.values[~other])


def test_more_groups_than_classes_are_as_many_as_classes(problem, tools):
    many, each = (tools.build("grouped", problem, n_groups=n) for n in (1000, problem.n_classes))
    assert many._plan.rows.shape[0] == problem.n_classes
    assert sorted(many._plan.class_group.tolist()) == list(range(problem.n_classes))
    for pair in zip(many.posterior(problem.queries), each.posterior(problem.queries), strict=True):
        assert torch.equal(*pair)


@pytest.mark.parametrize(("n_classes", "n_groups"), [(7, 3), (12, 4), (100, 8), (5, 5), (2, 9)])
def test_numbers_of_classes_differ_by_at_most_one(n_classes, n_groups, device):
    labels = torch.arange(n_classes, device=device).repeat(2)
    plan = GroupedPrecision.plan(labels, n_classes, n_groups=n_groups)
    counts = torch.bincount(plan.class_group)
    assert len(counts) == min(n_groups, n_classes)
    assert counts.max() - counts.min() <= 1
    assert counts.max() == math.ceil(n_classes / len(counts))


def test_the_split_follows_the_seed(problem64):
    def split(seed):
        plan = GroupedPrecision.plan(problem64.labels, 60, n_groups=6, seed=seed)
        return plan.class_group.tolist()

    torch.manual_seed(1)
    first = split(0)
    torch.manual_seed(2)  # the global generator is neither used nor disturbed
    state = torch.random.get_rng_state()
    assert split(0) == first
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len({tuple(split(seed)) for seed in range(10)}) == 10
    assert first != sorted(first)  # neighbouring classes are spread at random


def test_the_split_does_not_depend_on_the_shots(problem64, tools):
    """The plan of left-out rows is the plan of all rows."""
    few = problem64.rows(torch.arange(5, device=problem64.keys.device))
    plans = [tools.build("grouped", p)._plan for p in (problem64, few)]
    assert torch.equal(plans[0].class_group, plans[1].class_group)


def test_every_row_and_class_has_one_place(grouped, problem):
    plan = grouped._plan
    for listed, present, group, slot, count in (
        (plan.rows, plan.row_present, plan.row_group, plan.row_slot, len(problem.keys)),
        (plan.classes, plan.class_present, plan.class_group, plan.class_slot, problem.n_classes),
    ):
        assert sorted(listed[present].tolist()) == list(range(count))
        assert torch.equal(listed[group, slot], torch.arange(count, device=listed.device))
        assert present[group, slot].all()
