"""Data, builders of every precision, tolerances by dtype, and dense oracles."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize, one_hot

from gpcache.gp import (
    ClassMeanPrecision,
    ExactPrecision,
    FourierPrecision,
    GroupedPrecision,
    NystromPrecision,
    Unweighted,
)

# The one place for tolerances: |actual − expected| ≤ absolute + relative · |expected|, by dtype.
# float32 is what a condition number of some hundreds leaves of 1e-7.
TOLERANCES = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
}

# Unequal shots; class 3 has none.
SHOTS = (9, 1, 4, 0, 7, 2, 5)

# Every implementation, and both readings of those that have two.
BUILDERS = {
    "exact": (ExactPrecision, {}),
    "grouped": (GroupedPrecision, {"n_groups": 3}),
    "nystrom-exact": (NystromPrecision, {"n_landmarks": 14, "cross": "exact"}),
    "nystrom-consistent": (NystromPrecision, {"n_landmarks": 14, "cross": "consistent"}),
    "fourier-exact": (FourierPrecision, {"n_features": 40, "cross": "exact"}),
    "fourier-consistent": (FourierPrecision, {"n_features": 40, "cross": "consistent"}),
    "class_mean": (ClassMeanPrecision, {}),
    "unweighted": (Unweighted, {}),
}
PROCESSES = [name for name in BUILDERS if name != "unweighted"]


@dataclass(frozen=True)
class Problem:
    """Unit keys (n, d) with labels (n,) and values (n, c), and unit queries (m, d)."""

    keys: torch.Tensor
    values: torch.Tensor
    labels: torch.Tensor
    queries: torch.Tensor
    n_classes: int
    beta: float = 2.0
    noise: float = 0.1

    def rows(self, rows):
        """The same problem with these rows alone, in this order."""
        return replace(
            self, keys=self.keys[rows], values=self.values[rows], labels=self.labels[rows]
        )


def make_problem(
    *, shots=SHOTS, width=6, n_queries=8, seed=0, device="cpu", dtype=torch.float64, **parameters
):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.repeat_interleave(torch.arange(len(shots)), torch.tensor(shots))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    # Values that differ within a class, as the residuals of a prior do.
    values = one_hot(labels, len(shots)) + 0.1 * draw(len(labels), len(shots))
    keys, queries = normalize(draw(len(labels), width)), normalize(draw(n_queries, width))
    return Problem(
        keys.to(device, dtype),
        values.to(device, dtype),
        labels.to(device),
        queries.to(device, dtype),
        len(shots),
        **parameters,
    )


def build(name, problem, *, plan=None, keys=None, precision_gradient=True, **options):
    """The precision of this name over a problem; other keys, plan or plan options where given."""
    kind, defaults = BUILDERS[name]
    if plan is None:
        options = {"width": problem.keys.shape[1], **defaults, **options}
        plan = kind.plan(problem.labels, problem.n_classes, **options)
    return kind(
        plan,
        problem.keys if keys is None else keys,
        problem.values,
        beta=problem.beta,
        noise=problem.noise,
        precision_gradient=precision_gradient,
    )


def numpy64(tensor):
    return np.asarray(tensor.detach().cpu().to(torch.float64))


def rbf(x, y, beta):
    """κ as a radial basis function of the distance, in numpy."""
    return np.exp(-beta / 2 * np.sum((x[:, None] - y[None]) ** 2, axis=-1))


def dense_posterior(name, problem, plan, kept, queries):
    """Mean and variance of every implementation with explicit inverses, from the rows `kept` alone.

    The plan stays what it was with all rows: groups, landmarks and frequencies do not move.
    """
    all_keys, values, points = (numpy64(t) for t in (problem.keys, problem.values, queries))
    kept = np.asarray(kept.cpu())
    keys, values, beta, noise = all_keys[kept], values[kept], problem.beta, problem.noise
    labels = np.asarray(problem.labels.cpu())[kept]

    def process(keys, values):
        cross = rbf(points, keys, beta)
        inverse = np.linalg.inv(rbf(keys, keys, beta) + noise * np.eye(len(keys)))
        return cross @ inverse @ values, 1 - np.einsum("ij,jk,ik->i", cross, inverse, cross)

    if name == "exact":
        mean, variance = process(keys, values)
    elif name == "unweighted":
        mean, variance = rbf(points, keys, beta) @ values, np.ones(len(points))
    elif name == "class_mean":
        members = [labels == label for label in np.unique(labels)]
        centres = [keys[m].sum(0) / np.linalg.norm(keys[m].sum(0)) for m in members]
        means = [values[m].mean(0) for m in members]
        mean, variance = process(
            np.array(centres).reshape(-1, keys.shape[1]),
            np.array(means).reshape(-1, values.shape[1]),
        )
    elif name == "grouped":
        group_of_class = np.asarray(plan.class_group.cpu())
        mean = np.zeros((len(points), values.shape[1]))
        variance = np.ones((len(points), group_of_class.max() + 1))
        for group in range(variance.shape[1]):
            rows, classes = group_of_class[labels] == group, group_of_class == group
            mean[:, classes], variance[:, group] = process(keys[rows], values[rows][:, classes])
    else:
        kind, reading = name.split("-")
        if kind == "nystrom":
            landmarks = all_keys[np.asarray(plan.rows.cpu())]
            jitter = np.sqrt(np.finfo(np.float64).eps)
            core = np.linalg.inv(rbf(landmarks, landmarks, beta) + jitter * np.eye(len(landmarks)))
            left, right = rbf(points, landmarks, beta) @ core, rbf(keys, landmarks, beta)
            among = right @ core @ right.T
        else:
            draws = np.asarray(plan.draws.cpu())

            def features(x):
                phases = x @ draws * np.sqrt(beta)
                return np.hstack([np.cos(phases), np.sin(phases)]) / np.sqrt(draws.shape[1])

            left, right = features(points), features(keys)
            among = right @ right.T
        inverse = np.linalg.inv(among + noise * np.eye(len(keys)))
        cross = left @ right.T
        variance = 1 - np.einsum("ij,jk,ik->i", cross, inverse, cross)
        mean = (rbf(points, keys, beta) if reading == "exact" else cross) @ inverse @ values
    return mean, variance.reshape(len(points), -1)


def assert_close(actual, expected, **override):
    """Compare with the tolerance of the actual tensor's dtype, or a stated one."""
    if isinstance(expected, torch.Tensor):
        expected = numpy64(expected)
    tolerance = TOLERANCES[actual.dtype] | override
    np.testing.assert_allclose(numpy64(actual), expected, **tolerance)


# Scope "session" lets property tests (hypothesis) take these as well.
@pytest.fixture(
    scope="session",
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ),
    ],
)
def device(request):
    return torch.device(request.param)


@pytest.fixture(scope="session", params=list(TOLERANCES), ids=["float64", "float32"])
def dtype(request):
    return request.param


@pytest.fixture
def problem(device, dtype):
    return make_problem(device=device, dtype=dtype)


@pytest.fixture
def problem64(device):
    return make_problem(device=device)


@pytest.fixture(scope="session", params=list(BUILDERS))
def name(request):
    """Every implementation."""
    return request.param


@pytest.fixture(scope="session", params=PROCESSES)
def process(request):
    """Every implementation that is a Gaussian process."""
    return request.param


@pytest.fixture(scope="session")
def tools():
    """The helpers of this file: test files cannot import a conftest."""
    return SimpleNamespace(
        names=list(BUILDERS),
        make_problem=make_problem,
        build=build,
        close=assert_close,
        dense=dense_posterior,
        numpy64=numpy64,
        rbf=rbf,
    )
