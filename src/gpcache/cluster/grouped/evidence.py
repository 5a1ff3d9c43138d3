"""What a grouped cache says of a sample of its own keys, each left out in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.cluster.grouped.engine import Engine
from gpcache.cluster.grouped.groups import Group, LeftOut, left_out
from gpcache.cluster.grouped.keys import Keys
from gpcache.methods.cache.search import HeldOut
from gpcache.support.progress import progress_bar


def spread_rows(
    labels: NDArray[np.int64], eligible: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.int64]:
    """`count` of the eligible row numbers at random, from as many classes as there are.

    One of every class in turn, then another of every class: the order is that of the draw.
    """
    order = np.random.default_rng(seed).permutation(eligible)
    by_class = np.argsort(labels[order], kind="stable")
    starts = np.flatnonzero(np.diff(labels[order][by_class], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    rank = np.empty(len(order), dtype=np.int64)
    rank[by_class] = np.arange(len(order)) - np.repeat(starts, sizes)
    return order[np.argsort(rank, kind="stable")[:count]]


class Problem(NamedTuple):
    """Keys with class numbers (n,) in groups, text (c, d) if any, and where tasks run.

    `handle` is what the engine shares of the keys.
    """

    engine: Engine
    keys: Keys
    handle: Any
    groups: Sequence[Group]
    labels: NDArray[np.int64]
    n_classes: int
    text: Tensor | None


class Evidence:
    """Held-out answers about `rows` (k,) of some groups, in the columns of their classes."""

    def __init__(
        self,
        problem: Problem,
        groups: Sequence[Group],
        rows: NDArray[np.int64],
        *,
        with_variance: bool,
    ) -> None:
        keys, text = problem.keys, problem.text
        self._problem = problem
        self._with_variance = with_variance
        self._classes = np.sort(np.concatenate([group.classes for group in groups]))
        self._labels = torch.as_tensor(np.searchsorted(self._classes, problem.labels[rows]))
        self._parts = [_left_out_of(group, rows) for group in groups]
        self._sample = problem.engine.share(keys.mapped(rows).cpu().numpy())
        self._zero_shot: Tensor | None = None
        if text is not None:
            columns = torch.as_tensor(self._classes, device=text.device)
            self._zero_shot = (keys.features(rows) @ text[columns].mT).cpu()

    def at(self, beta: float, noise: float) -> HeldOut:
        """Mean (k, c), and variance (k, c) if asked for, of the sampled rows left out."""
        size = len(self._labels), len(self._classes)
        mean = torch.empty(size, dtype=self._problem.keys.dtype)
        variance = torch.empty_like(mean) if self._with_variance else None
        answers = self._problem.engine.scatter(
            left_out,
            self._parts,
            self._problem.handle,
            self._sample,
            beta,
            noise,
            self._with_variance,
        )
        with progress_bar("Leaving keys out", total=len(self._parts), unit="group") as bar:
            for part, answer in zip(self._parts, answers, strict=True):
                columns = torch.as_tensor(np.searchsorted(self._classes, part.group.classes))
                mean[:, columns] = torch.tensor(answer.mean)
                if variance is not None:
                    variance[:, columns] = torch.tensor(answer.variance)[:, None]
                bar.update()
        return HeldOut(mean, variance, self._zero_shot, self._labels)


def _left_out_of(group: Group, rows: NDArray[np.int64]) -> LeftOut:
    # A group's rows are in ascending order.
    places = np.searchsorted(group.rows, rows)
    inside = places < len(group.rows)
    inside[inside] = group.rows[places[inside]] == rows[inside]
    return LeftOut(group, np.flatnonzero(inside), places[inside])
