"""GPCache-F's gradient through every implementation, with and without the precision's own part."""

import pytest
import torch
from torch.autograd import gradcheck as torch_gradcheck

from gpcache.gp.kernels import unit_rows

SMALL = {"shots": (3, 1, 0, 2), "width": 3, "n_queries": 2}
SMALL_PLAN = {"n_groups": 2, "n_landmarks": 8, "n_features": 8}


def gradcheck(function, inputs):
    """With room for sums that a GPU adds up in any order."""
    return torch_gradcheck(function, inputs, nondet_tol=1e-12)


def rbf(x, y, beta):
    return torch.exp(-beta * (1 - x @ y.mT))


def explicit_posterior(name, problem, plan, keys, queries, *, detach):
    """Mean and variance with explicit inverses, which autograd may see through or (nograd) not.

    It is P alone that stands still under nograd: the query's kernel row moves with the keys,
    exact or approximate, and so do the features and the core that an approximate one is made of.
    """
    beta, noise, labels, values = problem.beta, problem.noise, problem.labels, problem.values

    def eye(size):
        return torch.eye(size, dtype=keys.dtype, device=keys.device)

    def fixed(tensor):
        return tensor.detach() if detach else tensor

    def process(keys, values):
        cross = rbf(queries, keys, beta)
        inverse = fixed(torch.linalg.inv(rbf(keys, keys, beta) + noise * eye(len(keys))))
        return cross @ inverse @ values, 1 - ((cross @ inverse) * cross).sum(-1)

    if name == "exact":
        mean, variance = process(keys, values)
    elif name == "class_mean":
        members = [labels == label for label in labels.unique()]
        mean, variance = process(
            unit_rows(torch.stack([keys[m].sum(0) for m in members])),
            torch.stack([values[m].mean(0) for m in members]),
        )
    elif name == "grouped":
        group = plan.class_group
        mean = torch.zeros(len(queries), problem.n_classes, dtype=keys.dtype, device=keys.device)
        columns = []
        for number in range(int(group.max()) + 1):
            rows, classes = group[labels] == number, torch.nonzero(group == number).flatten()
            part, variance = process(keys[rows], values[rows][:, classes])
            mean = mean.index_copy(1, classes, part)
            columns.append(variance)
        return mean, torch.stack(columns, 1)
    else:
        if name.startswith("nystrom"):
            landmarks = keys[plan.rows]
            jitter = torch.finfo(torch.float64).eps ** 0.5
            core = rbf(landmarks, landmarks, beta) + jitter * eye(len(landmarks))
            near, u = rbf(queries, landmarks, beta), rbf(keys, landmarks, beta)
        else:

            def features(x):
                phases = x @ plan.draws.to(x.dtype) * beta**0.5
                return torch.cat([phases.cos(), phases.sin()], 1) / plan.draws.shape[1] ** 0.5

            near, u = features(queries), features(keys)
            core = eye(u.shape[1])
        inverse_core = torch.linalg.inv(core)
        inverse = fixed(torch.linalg.inv(u @ inverse_core @ u.mT + noise * eye(len(u))))
        consistent = near @ inverse_core @ u.mT
        cross = rbf(queries, keys, beta) if name.endswith("-exact") else consistent
        mean = cross @ inverse @ values
        variance = 1 - ((consistent @ inverse) * consistent).sum(-1)
    return mean, variance[:, None]


@pytest.fixture
def small(device, tools):
    """Keys and queries as they are trained: of any length, normalised in the forward pass."""
    problem = tools.make_problem(device=device, **SMALL)
    lengths = torch.linspace(0.5, 2, len(problem.keys), dtype=torch.float64, device=device)
    return problem, (problem.keys * lengths[:, None]).requires_grad_(), 3 * problem.queries


def gradients(posterior, leaves):
    """Of one scalar in which every mean and every variance has a weight of its own."""
    total = 0.0
    for part in posterior:
        weight = torch.linspace(0.5, 2, part.numel(), dtype=part.dtype, device=part.device)
        total = total + (part.flatten() * weight).sum()
    return torch.autograd.grad(total, leaves)


def test_numeric_gradients(name, small, tools):
    problem, keys, queries = small
    plan = tools.build(name, problem, **SMALL_PLAN)._plan

    def function(keys, queries):
        return tuple(
            tools.build(name, problem, plan=plan, keys=unit_rows(keys)).posterior(
                unit_rows(queries)
            )
        )

    queries.requires_grad_()
    if name == "unweighted":  # its variance is a constant
        assert gradcheck(lambda k, q: function(k, q)[0], (keys, queries))
    else:
        assert gradcheck(function, (keys, queries))
        assert gradcheck(lambda k: function(k, queries.detach()), (keys,))
        assert gradcheck(lambda q: function(keys.detach(), q), (queries,))


@pytest.mark.parametrize("precision_gradient", [True, False], ids=["full", "nograd"])
def test_gradients_are_those_of_an_explicit_inverse(process, precision_gradient, small, tools):
    problem, keys, queries = small
    queries.requires_grad_()
    plan = tools.build(process, problem, **SMALL_PLAN)._plan
    actual = tools.build(
        process,
        problem,
        plan=plan,
        keys=unit_rows(keys),
        precision_gradient=precision_gradient,
    ).posterior(unit_rows(queries))
    expected = explicit_posterior(
        process, problem, plan, unit_rows(keys), unit_rows(queries), detach=not precision_gradient
    )
    # Nyström's core is inverted here and factored there: its condition number is visible.
    tolerance = {"rtol": 1e-6, "atol": 1e-7} if "nystrom" in process else {}
    for pair in zip(actual, expected, strict=True):
        tools.close(*pair, **tolerance)
    for pair in zip(
        gradients(actual, (keys, queries)), gradients(expected, (keys, queries)), strict=True
    ):
        tools.close(*pair, **tolerance)


def test_nograd_leaves_something_out(process, small, tools):
    problem, keys, queries = small
    queries.requires_grad_()
    plan = tools.build(process, problem, **SMALL_PLAN)._plan
    full, without = (
        gradients(
            tools.build(
                process, problem, plan=plan, keys=unit_rows(keys), precision_gradient=flag
            ).posterior(unit_rows(queries)),
            (keys, queries),
        )
        for flag in (True, False)
    )
    assert (full[0] - without[0]).abs().max() > 1e-2
    assert without[0].abs().max() > 1e-2  # every row of the kernel moves with the keys
    tools.close(full[1], without[1])  # the queries do not enter the precision


@pytest.mark.parametrize("part", ["mean", "variance"])
def test_nograd_moves_the_mean_and_the_variance(process, part, small, tools):
    """Each by itself, with the keys and with the queries: the consistent Fourier reading too."""
    problem, keys, queries = small
    queries.requires_grad_()
    plan = tools.build(process, problem, **SMALL_PLAN)._plan
    posterior = tools.build(
        process, problem, plan=plan, keys=unit_rows(keys), precision_gradient=False
    ).posterior(unit_rows(queries))
    for gradient in gradients([getattr(posterior, part)], (keys, queries)):
        assert gradient.abs().max() > 1e-2


def test_nograd_changes_no_value(process, problem, tools):
    """It is the same posterior, with another gradient."""
    plan = tools.build(process, problem)._plan
    keys = problem.keys.clone().requires_grad_()
    with_it, without = (
        tools.build(process, problem, plan=plan, keys=keys, precision_gradient=gradient).posterior(
            problem.queries
        )
        for gradient in (True, False)
    )
    for pair in zip(without, with_it, strict=True):
        tools.close(*pair)


def test_the_mean_alone_is_for_inference(process, problem, tools):
    """It carries no gradient, whatever asks for one."""
    keys, queries = (t.clone().requires_grad_() for t in (problem.keys, problem.queries))
    precision = tools.build(process, problem, keys=unit_rows(keys))
    mean = precision.mean(unit_rows(queries))
    assert not mean.requires_grad
    tools.close(mean, tools.build(process, problem).posterior(problem.queries).mean)


def test_inference_takes_no_gradient_away(process, problem64, tools):
    """What was cached while nothing was recorded must not stand in for what training needs."""
    plan = tools.build(process, problem64)._plan
    keys = problem64.keys.clone().requires_grad_()
    found = []
    for before in (lambda _: None, lambda p: (p.mean(problem64.queries), p.leave_one_out())):
        precision = tools.build(process, problem64, plan=plan, keys=unit_rows(keys))
        before(precision)
        found.append(gradients(precision.posterior(problem64.queries), (keys,))[0])
    tools.close(found[1], found[0])


def test_training_and_inference_agree(name, problem, tools):
    """Two paths through the code, with and without a gradient, give one posterior."""
    plan = tools.build(name, problem)._plan
    keys = problem.keys.clone().requires_grad_()
    training = tools.build(name, problem, plan=plan, keys=keys).posterior(problem.queries)
    assert training.mean.requires_grad
    inference = tools.build(name, problem, plan=plan).posterior(problem.queries)
    for pair in zip(training, inference, strict=True):
        tools.close(*pair)


def test_gradients_in_float32_are_those_in_float64(process, device, tools):
    results = []
    for dtype in (torch.float32, torch.float64):
        problem = tools.make_problem(device=device, dtype=dtype)
        keys = problem.keys.clone().requires_grad_()
        queries = problem.queries.clone().requires_grad_()
        precision = tools.build(process, problem, keys=unit_rows(keys))
        results.append(gradients(precision.posterior(unit_rows(queries)), (keys, queries)))
    for single, double in zip(*results, strict=True):
        assert single.dtype == torch.float32
        tools.close(single, double, rtol=1e-2, atol=1e-3 * float(double.abs().max()))
