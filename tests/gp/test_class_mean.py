"""One key per class: an exact process over class means, whose shots share its weight."""

from collections import Counter

import numpy as np
import pytest
import torch


def class_means(problem, tools):
    keys, values = tools.numpy64(problem.keys), tools.numpy64(problem.values)
    labels = problem.labels.cpu().numpy()
    classes = np.unique(labels)
    centres = np.array([keys[labels == label].mean(0) for label in classes])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    return centres, np.array([values[labels == label].mean(0) for label in classes])


def test_it_is_scikit_learns_process_over_the_class_means(problem, tools):
    module = pytest.importorskip("sklearn.gaussian_process")
    reference = module.GaussianProcessRegressor(
        module.kernels.RBF(1 / np.sqrt(problem.beta)), alpha=problem.noise, optimizer=None
    ).fit(*class_means(problem, tools))
    mean, deviation = reference.predict(tools.numpy64(problem.queries), return_std=True)
    precision = tools.build("class_mean", problem)
    posterior = precision.posterior(problem.queries)
    tools.close(posterior.mean, mean)
    tools.close(posterior.variance, deviation[:, :1] ** 2)
    tools.close(precision.log_marginal_likelihood(), reference.log_marginal_likelihood_value_)


def test_with_one_shot_of_each_class_it_is_exact(device, dtype, tools):
    problem = tools.make_problem(shots=(1, 1, 0, 1, 1), device=device, dtype=dtype)
    few, exact = (tools.build(name, problem) for name in ("class_mean", "exact"))
    for pair in (
        *zip(few.posterior(problem.queries), exact.posterior(problem.queries), strict=True),
        *zip(few.leave_one_out(), exact.leave_one_out(), strict=True),
        (few.weights(problem.queries), exact.weights(problem.queries)),
        (few.solved_values, exact.solved_values),
        (few.log_marginal_likelihood(), exact.log_marginal_likelihood()),
    ):
        tools.close(*pair)


def test_shots_share_the_weight_of_their_class(problem, tools):
    centres, _ = class_means(problem, tools)
    covariance = tools.rbf(centres, centres, problem.beta) + problem.noise * np.eye(len(centres))
    cross = tools.rbf(tools.numpy64(problem.queries), centres, problem.beta)
    of_class = cross @ np.linalg.inv(covariance)
    weights = tools.build("class_mean", problem).weights(problem.queries)
    shots = Counter(problem.labels.tolist())
    for column, label in enumerate(sorted(shots)):
        own = problem.labels == label
        expected = np.repeat(of_class[:, [column]] / shots[label], shots[label], axis=1)
        tools.close(weights[:, own], expected)


def test_a_key_without_its_only_shot_is_gone(problem, tools):
    """Its class keeps no trace in what is left."""
    (only,) = torch.nonzero(problem.labels == 1)
    left_out = tools.build("class_mean", problem).leave_one_out()
    rest = problem.rows(problem.labels != 1)
    expected = tools.build("class_mean", rest).posterior(problem.keys[only])
    tools.close(left_out.mean[only], expected.mean)
    tools.close(left_out.variance[only], expected.variance)


def test_the_order_of_rows_changes_nothing(problem, tools):
    order = torch.randperm(len(problem.keys), generator=torch.Generator().manual_seed(1))
    order = order.to(problem.keys.device)
    plain, shuffled = (tools.build("class_mean", p) for p in (problem, problem.rows(order)))
    tools.close(shuffled.mean(problem.queries), plain.mean(problem.queries))
    tools.close(shuffled.leave_one_out().mean, plain.leave_one_out().mean[order])


def test_many_left_out_shots_go_through_several_batches(device, tools, monkeypatch):
    """22 shots fill a batch; here are 120."""
    monkeypatch.setattr("gpcache.gp.class_mean.BATCH_ELEMENTS", 22 * (8 * 60 + 2 * 360))
    problem = tools.make_problem(shots=(2,) * 60, width=300, device=device, dtype=torch.float32)
    precision = tools.build("class_mean", problem)
    left_out = precision.leave_one_out()
    for row in (0, 21, 22, 43, 44, 109, 110, 119):
        gone = torch.arange(120, device=device) == row
        mean, variance = tools.dense(
            "class_mean", problem, precision._plan, ~gone, problem.keys[gone]
        )
        tools.close(left_out.mean[gone], mean)
        tools.close(left_out.variance[gone], variance)
