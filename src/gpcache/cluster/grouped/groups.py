"""Keys in groups of classes: where their rows are, and the computations on one group.

A group holds its own keys (s, d) and the columns of its own t classes: nothing here is as large as
all keys times all classes. Results are arrays, which travel between processes without a copy.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.errors import DataError
from gpcache.gp import ExactPrecision, GroupedPrecision
from gpcache.gp.factored import MATRICES
from gpcache.gp.feature_maps import FeatureMap
from gpcache.gp.kernels import kernel, unit_rows
from gpcache.support.devices import ensure_memory, free_memory
from gpcache.support.progress import progress_bar

# Kernel rows of the queries at a group's keys: similarities, their kernel, one solve.
CROSSES = 3
# Copies of sampled logits while weights are fitted, in the cache's dtype for each η, and while the
# calibration is fitted, in float64.
FUSION, CALIBRATION = 6, 12


@dataclass(frozen=True)
class MappedFile:
    """A memory-mapped array by the name of its file: tasks receive the name, not the rows."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, array: Any) -> MappedFile | None:
        """The file of an array, or None if the array is not a whole file, row by row."""
        whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)
        if not whole or not array.flags.c_contiguous:
            return None
        return cls(str(array.filename), array.dtype.str, array.shape, array.offset)

    def open(self) -> NDArray[Any]:
        """The array, read-only."""
        try:
            return np.memmap(
                self.path, dtype=self.dtype, mode="r", offset=self.offset, shape=self.shape
            )
        except OSError as error:
            raise DataError(
                f"The rows in {self.path} cannot be read any more ({error.strerror}): keep the "
                "file where it was, and with Ray where every machine of the cluster finds it."
            ) from None


@dataclass(frozen=True)
class Keys:
    """Rows (n, d) of any scale, and how they become unit rows in the kernel's space."""

    stored: NDArray[Any] | MappedFile
    device: torch.device
    dtype: torch.dtype
    feature_map: FeatureMap = field(default_factory=FeatureMap)

    @property
    def rows(self) -> NDArray[Any]:
        """All rows as they were given."""
        return self.stored.open() if isinstance(self.stored, MappedFile) else self.stored

    def features(self, numbers: NDArray[np.int64]) -> Tensor:
        """Unit rows (k, d) of these numbers, as the encoder gave them."""
        return unit_rows(self.tensor(self.rows[numbers]))

    def mapped(self, numbers: NDArray[np.int64]) -> Tensor:
        """Unit rows (k, d) of these numbers in the kernel's space."""
        return self.feature_map(self.features(numbers))

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """A copy of an array on the device: arrays from another process are read-only."""
        return torch.tensor(np.asarray(array), device=self.device).to(self.dtype)


class Group(NamedTuple):
    """Row numbers (s,), the class of each row within the group (s,), class numbers (t,)."""

    rows: NDArray[np.int64]
    slots: NDArray[np.int64]
    classes: NDArray[np.int64]


class SolvedGroup(NamedTuple):
    """A group and its solved values (s, t), which are enough to compute the mean."""

    group: Group
    solved: NDArray[Any]


class LeftOutKeys(NamedTuple):
    """A group, the rows (o,) of a sample that are its keys, and their places (o,) in the group."""

    group: Group
    sampled: NDArray[np.int64]
    places: NDArray[np.int64]


class GroupPosterior(NamedTuple):
    """Mean (m, t), and the variance (m,) if it was requested."""

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


def require_memory(
    groups: Sequence[Group],
    keys: Keys,
    *,
    n_classes: int,
    sample: int,
    n_etas: int,
    copied_rows: int,
    tasks: int,
) -> None:
    """Raise an error if tasks, solved values and logits of a sample (k, c) need too much memory.

    `copied_rows` are the rows that Ray copies into its own memory.
    """
    width, size = keys.rows.shape[1], keys.dtype.itemsize
    sizes = [len(group.rows) for group in groups]
    n, s = sum(sizes), max(sizes)
    of_task = (MATRICES * s * s + CROSSES * s * sample + (2 * s + sample) * width) * size
    solved = sum(len(group.rows) * len(group.classes) for group in groups) * size
    of_sample = sample * n_classes * (size * (2 + FUSION * n_etas) + 8 * CALIBRATION)
    copied = copied_rows * width * size
    remedy = "Use fewer loo_rows."
    if tasks * of_task > of_sample + copied:
        # A group of half the keys needs a quarter of the memory.
        free = max(1, free_memory(keys.device))
        enough = math.ceil(len(groups) * math.sqrt(2 * tasks * of_task / free))
        remedy = f"Use n_groups={enough:,} or more."
        if enough > n_classes:
            remedy = "Use fewer keys per class: a class cannot be split."
    elif copied > of_sample:
        remedy = "Keep X in a file and pass np.load(file, mmap_mode='r')."
    ensure_memory(
        tasks * of_task + solved + of_sample + copied,
        keys.device,
        what=f"A cache of {n:,} keys in {len(groups):,} group(s) of up to {s:,} keys",
        remedy=remedy,
    )


@torch.no_grad()
def solved(group: Group, keys: Keys, beta: float, noise: float) -> NDArray[Any]:
    """(K + noise·I)⁻¹ Y (s, t): the group conditioned on its own keys."""
    return _array(_precision(group, keys, beta, noise).solved_values)


@torch.no_grad()
def mean(part: SolvedGroup, keys: Keys, queries: NDArray[Any], beta: float) -> GroupPosterior:
    """The mean at queries (m, d) in the kernel's space, without factorising again."""
    cross = kernel(keys.tensor(queries), keys.mapped(part.group.rows), beta)
    return GroupPosterior(_array(cross @ keys.tensor(part.solved)), None)


@torch.no_grad()
def posterior(
    group: Group, keys: Keys, queries: NDArray[Any], beta: float, noise: float
) -> GroupPosterior:
    """Mean and variance at queries (m, d). The factor is not kept: all would take n²/g numbers."""
    found = _precision(group, keys, beta, noise).posterior(keys.tensor(queries))
    return GroupPosterior(_array(found.mean), _array(found.variance[:, 0]))


@torch.no_grad()
def left_out(
    part: LeftOutKeys,
    keys: Keys,
    sample: NDArray[Any],
    beta: float,
    noise: float,
    with_variance: bool,
) -> GroupPosterior:
    """Mean and variance at sampled rows (k, d); rows that are keys of the group are left out.

    Leaving out keys of other groups does not change the columns of this group.
    """
    precision = _precision(part.group, keys, beta, noise)
    rows = keys.tensor(sample)
    if with_variance:
        means, variances = precision.posterior(rows)
    else:
        means, variances = precision.mean(rows), None
    if len(part.sampled):
        own = precision.leave_one_out()
        sampled = torch.tensor(part.sampled, device=keys.device)
        places = torch.tensor(part.places, device=keys.device)
        means[sampled] = own.mean[places]
        if variances is not None:
            variances[sampled] = own.variance[places]
    return GroupPosterior(_array(means), None if variances is None else _array(variances[:, 0]))


def collected(
    answers: Iterable[GroupPosterior],
    columns: Sequence[NDArray[np.int64]],
    rows: int,
    dtype: torch.dtype,
    *,
    title: str,
) -> tuple[Tensor, Tensor]:
    """The answers of groups whose classes have these columns: mean (rows, c), variance (rows, g).

    The variance has no columns if the answers have none. `title` is that of the progress bar.
    """
    mean = torch.empty(rows, sum(map(len, columns)), dtype=dtype)
    variance = torch.empty(rows, len(columns), dtype=dtype)
    with progress_bar(title, total=len(columns), unit="group") as bar:
        for number, (own, answer) in enumerate(zip(columns, answers, strict=True)):
            mean[:, torch.as_tensor(own)] = torch.tensor(answer.mean)
            if answer.variance is not None:
                variance[:, number] = torch.tensor(answer.variance)
            bar.update()
    return mean, variance


def of_classes(variance: Tensor, columns: Sequence[NDArray[np.int64]]) -> Tensor:
    """A variance (m, g) of groups as one of their classes (m, c)."""
    numbers = np.repeat(np.arange(len(columns)), [len(own) for own in columns])
    group_of_class = torch.as_tensor(numbers[np.argsort(np.concatenate(columns))])
    return variance[:, group_of_class]


def _precision(group: Group, keys: Keys, beta: float, noise: float) -> ExactPrecision:
    # Copies, here and below: arrays that another process shares may not be written to.
    slots = torch.tensor(group.slots, device=keys.device)
    values = torch.nn.functional.one_hot(slots, len(group.classes)).to(keys.dtype)
    return ExactPrecision(None, keys.mapped(group.rows), values, beta=beta, noise=noise)


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.cpu().numpy()
    return array
