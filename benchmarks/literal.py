"""A training step of GPCache-F: the formulas read literally, and the same through the library.

*Naive* inverts K + noise·I and lets autograd differentiate the inverse, group after group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gpcache.gp import ExactPrecision, GroupedPrecision, Precision
from gpcache.gp.fusion import fuse
from gpcache.gp.kernels import unit_rows

BETA, NOISE, ALPHA, ETA = 2.0, 0.1, 10.0, 0.5
Logits = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of keys, queries, values and text


def naive_logits(
    keys: Tensor, queries: Tensor, values: Tensor, text: Tensor, groups: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """The paper's equations as they stand."""
    keys = keys / keys.norm(dim=1, keepdim=True)
    cache = torch.zeros(len(queries), values.shape[1], device=keys.device, dtype=keys.dtype)
    for rows, classes in groups:
        mine = keys[rows]
        matrix = torch.exp(-BETA * (1 - mine @ mine.T))
        eye = torch.eye(len(rows), device=keys.device, dtype=keys.dtype)
        precision = torch.linalg.inv(matrix + NOISE * eye)
        cross = torch.exp(-BETA * (1 - queries @ mine.T))
        mean = cross @ precision @ values[rows][:, classes]
        variance = 1 - (cross @ precision * cross).sum(1, keepdim=True)
        cache[:, classes] = mean / variance.clamp(min=1e-6) ** ETA
    return text + ALPHA * cache


def our_logits(
    make: Callable[..., Precision], keys: Tensor, queries: Tensor, values: Tensor, text: Tensor
) -> Tensor:
    """The same through the library; `make` gives the precision of keys and values."""
    precision = make(unit_rows(keys), values, beta=BETA, noise=NOISE)
    mean, variance = precision.posterior(queries)
    spread = precision.variance_of_classes(variance)
    return fuse(text, mean, spread, alpha=ALPHA, eta=ETA)


def groups_of(class_group: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The rows and the classes of each group."""
    inside = [class_group == number for number in range(int(class_group.max()) + 1)]
    return [(one[labels].nonzero().flatten(), one.nonzero().flatten()) for one in inside]


def both_logits(
    n_groups: int, labels: Tensor, classes: int, dtype: torch.dtype
) -> tuple[Logits, Logits]:
    """Our logits and the naive ones; one group is the exact posterior."""
    if n_groups == 1:
        every = torch.zeros(classes, dtype=torch.long, device=labels.device)
        make, groups = partial(ExactPrecision, None), groups_of(every, labels)
    else:
        plan = GroupedPrecision.plan(labels, classes, n_groups=n_groups, dtype=dtype)
        make, groups = partial(GroupedPrecision, plan), groups_of(plan.class_group, labels)
    return partial(our_logits, make), partial(naive_logits, groups=groups)


def gradient(logits_of: Logits, dtype: torch.dtype, targets: Tensor, *given: Tensor) -> Tensor:
    """The gradient of a step by the keys; given are keys, queries, values and text."""
    keys, *others = (one.to(dtype) for one in given)
    keys = keys.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits_of(keys, *others), targets)
    return torch.autograd.grad(loss, keys)[0]
