"""Chooses the hyper-parameters and the calibration of a grouped cache on keys that are left out.

β and noise are searched on some of the groups: they describe how alike keys of one class are, for
which a part of the classes is enough. The weights and the calibration depend on the number of
classes, so they are fitted on a sample of all classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.cluster.grouped.groups import Group, Keys, LeftOutKeys, collected, left_out, of_classes
from gpcache.cluster.grouped.runner import TaskRunner
from gpcache.methods.cache.held_out import HeldOutLogits, HeldOutReport, cross_fitted
from gpcache.methods.cache.search import CacheOutputs, Choice, SearchOptions, search, shipped, weigh
from gpcache.metrics import Calibration, fit_calibration
from gpcache.support.progress import progress_bar

# Keys of the groups that β and noise are searched on.
SEARCH_KEYS = 50_000


class GroupedKeys(NamedTuple):
    """Keys with class numbers (n,) in groups, text (c, d) if any, and where tasks run.

    `handle` is the runner's handle on the keys.
    """

    runner: TaskRunner
    keys: Keys
    handle: Any
    groups: Sequence[Group]
    labels: NDArray[np.int64]
    n_classes: int
    text: Tensor | None


class GroupedChoice(NamedTuple):
    """Every choice that was evaluated, the best first; the calibration; figures of rows (k,)."""

    seen: list[Choice]
    calibration: Calibration
    report: HeldOutReport
    rows: NDArray[np.int64]


class Chooser:
    """Chooses what `settings` leave open on `loo_rows` of the keys."""

    def __init__(
        self, problem: GroupedKeys, settings: SearchOptions, loo_rows: int, seed: int
    ) -> None:
        self.problem, self.settings = problem, settings
        self.loo_rows, self.seed = loo_rows, seed
        self.with_text = problem.text is not None
        counts = np.bincount(problem.labels)
        # Nothing can be left out if most classes have one key, or if there is one class.
        repeated, present = int((counts > 1).sum()), int((counts > 0).sum())
        self.informative = problem.n_classes > 1 and 2 * repeated >= present
        given = settings.all_given(uses_noise=True, with_text=self.with_text)
        self.chooses = self.informative and not given
        self.searches = self.chooses and "auto" in (settings.beta, settings.noise)

    def choose(self) -> GroupedChoice:
        """Choice, calibration and figures; the defaults where no key can be left out."""
        rows = self._sample(self.problem.groups)
        seen = (
            self._search() if self.searches else [shipped(self.settings, with_text=self.with_text)]
        )
        calibration = self._default_calibration()
        if not len(rows):
            report = HeldOutReport.empty(0, self.problem.n_classes, "none: no class has two keys")
            return GroupedChoice(seen, calibration, report, rows)
        start = seen[0]
        held_out = self._sampled(self.problem.groups, rows).at(start.beta, start.noise)
        if self.chooses:
            seen = [self._with_fitted_weights(held_out, start), *(seen if self.searches else ())]
        logits = held_out.logits(seen[0])
        if self.informative:
            calibration = fit_calibration(logits, held_out.labels)
        return GroupedChoice(seen, calibration, self._report(held_out, logits, start, rows), rows)

    def _report(
        self, held_out: CacheOutputs, logits: Tensor, start: Choice, rows: NDArray[np.int64]
    ) -> HeldOutReport:
        """Figures of logits (k, c): each half of the sample uses the choices of the other half."""
        numbers = torch.arange(len(rows))
        fold = numbers % 2

        def logits_at(_: int, others: Tensor) -> Tensor:
            chosen = (
                self._with_fitted_weights(held_out.rows(others), start) if self.chooses else start
            )
            return held_out.logits(chosen)

        halves = dict.fromkeys(torch.unique(fold).tolist(), 0)
        probabilities = cross_fitted(logits_at, halves, fold, held_out.labels)
        protocol = self._protocol(rows)
        return HeldOutReport.of(
            held_out.labels, HeldOutLogits(logits, numbers, protocol), probabilities
        )

    def _with_fitted_weights(self, held_out: CacheOutputs, start: Choice) -> Choice:
        """The choice with the weights that fit these rows best, at the β and noise of `start`."""
        fixed = replace(self.settings, beta=start.beta, noise=start.noise)
        return weigh(held_out, fixed, (start.beta, start.noise, start.gain))

    def _search(self) -> list[Choice]:
        """Every (β, noise) that was evaluated on the first groups, the best first."""
        groups = self._searched_groups()
        sampled = self._sampled(groups, self._sample(groups))
        with progress_bar("GroupedCache: choosing", unit="setting") as bar:

            def evaluate(beta: float, noises: Sequence[float], _: float) -> list[CacheOutputs]:
                bar.update(len(noises))
                return [sampled.at(beta, noise) for noise in noises]

            per_class = len(self.problem.labels) / len(np.unique(self.problem.labels))
            return search(evaluate, self.settings, shots=per_class, uses_noise=True)

    def _searched_groups(self) -> Sequence[Group]:
        """The first groups that hold enough keys; the split into groups is random."""
        sizes = np.cumsum([len(group.rows) for group in self.problem.groups])
        some = self.problem.groups[: int(np.searchsorted(sizes, SEARCH_KEYS)) + 1]
        n_classes = sum(len(group.classes) for group in some)
        return some if n_classes > 1 and len(self._sample(some)) else self.problem.groups

    def _sample(self, groups: Sequence[Group]) -> NDArray[np.int64]:
        """Row numbers (k,) of these groups whose class has another key."""
        labels = self.problem.labels
        rows = np.concatenate([group.rows for group in groups])
        eligible = np.sort(rows[np.bincount(labels)[labels[rows]] > 1])
        return spread_rows(labels, eligible, self.loo_rows, self.seed)

    def _sampled(self, groups: Sequence[Group], rows: NDArray[np.int64]) -> LeftOutSample:
        return LeftOutSample(self.problem, groups, rows, with_variance=self.settings.eta != 0)

    def _default_calibration(self) -> Calibration:
        """The entropy slope that belongs to the default α; 0 if the user gave α."""
        if self.settings.alpha != "auto":
            return Calibration()
        defaults = self.settings.defaults
        chosen = defaults.with_text if self.with_text else defaults.without_text
        return Calibration(slope=chosen.slope)

    def _protocol(self, rows: NDArray[np.int64]) -> str:
        labels = self.problem.labels
        protocol = (
            f"leave-one-out of {len(rows):,} of {len(labels):,} keys, from "
            f"{len(np.unique(labels[rows])):,} classes; each half with weights and calibration of "
            "the other"
        )
        if self.searches:
            n_keys = sum(len(group.rows) for group in self._searched_groups())
            protocol += f"; beta and noise chosen on {n_keys:,} keys"
        return protocol


class LeftOutSample:
    """Rows (k,) of some groups, each left out in closed form, in the columns of their classes."""

    def __init__(
        self,
        problem: GroupedKeys,
        groups: Sequence[Group],
        rows: NDArray[np.int64],
        *,
        with_variance: bool,
    ) -> None:
        keys, text = problem.keys, problem.text
        self._problem, self._with_variance = problem, with_variance
        classes = np.sort(np.concatenate([group.classes for group in groups]))
        self._columns = [np.searchsorted(classes, group.classes) for group in groups]
        self._labels = torch.as_tensor(np.searchsorted(classes, problem.labels[rows]))
        self._parts = [_left_out_of(group, rows) for group in groups]
        self._sample = problem.runner.share(keys.mapped(rows).cpu().numpy())
        self._zero_shot: Tensor | None = None
        if text is not None:
            columns = torch.as_tensor(classes, device=text.device)
            self._zero_shot = (keys.features(rows) @ text[columns].mT).cpu()

    def at(self, beta: float, noise: float) -> CacheOutputs:
        """Mean (k, c), and variance (k, c) if it is needed, of the rows left out."""
        shared = (self._problem.handle, self._sample, beta, noise, self._with_variance)
        answers = self._problem.runner.scatter(left_out, self._parts, *shared)
        dtype, rows = self._problem.keys.dtype, len(self._labels)
        mean, variance = collected(answers, self._columns, rows, dtype, title="Leaving keys out")
        spread = of_classes(variance, self._columns) if self._with_variance else None
        return CacheOutputs(mean, spread, self._zero_shot, self._labels)


def spread_rows(
    labels: NDArray[np.int64], eligible: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.int64]:
    """Draw `count` of the eligible row numbers at random, from as many classes as possible.

    Draw one row of every class, then a second one, and so on. The result is in this order.
    """
    order = np.random.default_rng(seed).permutation(eligible)
    by_class = np.argsort(labels[order], kind="stable")
    starts = np.flatnonzero(np.diff(labels[order][by_class], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    rank = np.empty(len(order), dtype=np.int64)
    rank[by_class] = np.arange(len(order)) - np.repeat(starts, sizes)
    return order[np.argsort(rank, kind="stable")[:count]]


def _left_out_of(group: Group, rows: NDArray[np.int64]) -> LeftOutKeys:
    # A group's rows are in ascending order.
    places = np.searchsorted(group.rows, rows)
    inside = places < len(group.rows)
    inside[inside] = group.rows[places[inside]] == rows[inside]
    return LeftOutKeys(group, np.flatnonzero(inside), places[inside])
