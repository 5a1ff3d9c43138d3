"""What is computed of one group of classes: pure functions of the group, its rows and numbers.

A group holds its own keys (s, d) and the columns of its own t classes: nothing here is as large as
all keys times all classes. Results are arrays, which travel between processes without a copy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.cluster.grouped.keys import Keys
from gpcache.gp import ExactPrecision, GroupedPrecision
from gpcache.gp.kernels import kernel


class Group(NamedTuple):
    """Row numbers (s,), which of the group's classes each row is of (s,), class numbers (t,)."""

    rows: NDArray[np.int64]
    slots: NDArray[np.int64]
    classes: NDArray[np.int64]


class Fitted(NamedTuple):
    """A group and its solved values (s, t): all that a mean needs."""

    group: Group
    solved: NDArray[Any]


class LeftOut(NamedTuple):
    """A group, and which rows (o,) of a sample are its own keys, with their places (o,) in it."""

    group: Group
    sampled: NDArray[np.int64]
    places: NDArray[np.int64]


class Answer(NamedTuple):
    """mean (m, t), and variance (m,) where it was asked for."""

    mean: NDArray[Any]
    variance: NDArray[Any] | None


def split(labels: NDArray[np.int64], n_classes: int, n_groups: int, seed: int) -> list[Group]:
    """The groups of `GroupedPrecision`: a seeded random split of the classes."""
    # Asked for the classes alone: with all rows it would plan for every group at once.
    plan = GroupedPrecision.plan(
        torch.empty(0, dtype=torch.long), n_classes, n_groups=n_groups, seed=seed
    )
    group_of_rows = plan.class_group.numpy()[labels]
    counts = np.bincount(group_of_rows, minlength=len(plan.classes))
    rows = np.split(np.argsort(group_of_rows, kind="stable"), counts.cumsum()[:-1])
    slots = plan.class_slot.numpy()[labels]
    classes = [
        row[real].numpy() for row, real in zip(plan.classes, plan.class_present, strict=True)
    ]
    return [Group(own, slots[own], some) for own, some in zip(rows, classes, strict=True)]


@torch.no_grad()
def solved(group: Group, keys: Keys, beta: float, noise: float) -> NDArray[Any]:
    """(K + noise·I)⁻¹ Y (s, t): the group conditioned on its own keys."""
    return _array(_precision(group, keys, beta, noise).solved_values)


@torch.no_grad()
def mean(part: Fitted, keys: Keys, queries: NDArray[Any], beta: float) -> Answer:
    """The mean at queries (m, d) in the kernel's space, without factorising again."""
    cross = kernel(keys.tensor(queries), keys.mapped(part.group.rows), beta)
    return Answer(_array(cross @ keys.tensor(part.solved)), None)


@torch.no_grad()
def posterior(group: Group, keys: Keys, queries: NDArray[Any], beta: float, noise: float) -> Answer:
    """Mean and variance at queries (m, d). The factor is made anew: kept, all take n²/g numbers."""
    found = _precision(group, keys, beta, noise).posterior(keys.tensor(queries))
    return Answer(_array(found.mean), _array(found.variance[:, 0]))


@torch.no_grad()
def left_out(
    part: LeftOut, keys: Keys, sample: NDArray[Any], beta: float, noise: float, with_variance: bool
) -> Answer:
    """Mean and variance at sampled rows (k, d), those that are keys here as if they were not.

    Keys of other groups have no share in this one's columns: leaving them out changes nothing.
    """
    precision = _precision(part.group, keys, beta, noise)
    rows = keys.tensor(sample)
    variance: Tensor | None = None
    if with_variance:
        means, columns = precision.posterior(rows)
        variance = columns[:, 0]
    else:
        means = precision.mean(rows)
    if len(part.sampled):
        own = precision.leave_one_out()
        sampled = torch.tensor(part.sampled, device=keys.device)
        places = torch.tensor(part.places, device=keys.device)
        means[sampled] = own.mean[places]
        if variance is not None:
            variance[sampled] = own.variance[places, 0]
    return Answer(_array(means), None if variance is None else _array(variance))


def _precision(group: Group, keys: Keys, beta: float, noise: float) -> ExactPrecision:
    # Copies, here and below: arrays that another process shares may not be written to.
    slots = torch.tensor(group.slots, device=keys.device)
    values = torch.nn.functional.one_hot(slots, len(group.classes)).to(keys.dtype)
    return ExactPrecision(None, keys.mapped(group.rows), values, beta=beta, noise=noise)


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.cpu().numpy()
    return array
