"""Chooses the numbers of a grouped cache, and its calibration, on keys that are left out.

β and noise are walked to on some groups alone: what keys of a class have in common with each other
shows in a part of the classes as well. How far to trust the cache does depend on how many classes
there are, so the weights and the calibration come from a sample of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.cluster.grouped.evidence import Evidence, Problem, spread_rows
from gpcache.cluster.grouped.groups import Group
from gpcache.methods.cache.model import HeldOutReport
from gpcache.methods.cache.nested import cross_fitted
from gpcache.methods.cache.search import Choice, HeldOut, Settings, search, shipped, weigh
from gpcache.metrics import Calibration, fit_calibration
from gpcache.support.progress import progress_bar

# Keys of the groups that β and noise are walked on.
WALK_KEYS = 50_000


class Chosen(NamedTuple):
    """What was looked at, the choice first; the calibration; figures of sampled rows (k,)."""

    seen: list[Choice]
    calibration: Calibration
    report: HeldOutReport
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Chooser:
    """Chooses what `settings` leave open on `loo_rows` of the keys."""

    problem: Problem
    settings: Settings
    loo_rows: int
    seed: int

    def choose(self) -> Chosen:
        """Numbers, calibration and figures; what is shipped where no key can be left out."""
        rows = self._sample(self.problem.groups)
        seen = self._walk() if self._walks() else [shipped(self.settings, with_text=self._text)]
        if not len(rows):
            report = HeldOutReport.empty(0, self.problem.n_classes, "none: no class has two keys")
            return Chosen(seen, self._shipped_calibration(), report, rows)
        place = seen[0]
        evidence = self._evidence(self.problem.groups, rows)
        held_out = evidence.at(place.beta, place.noise)
        if self._is_free():
            seen = [self._weighed(held_out, place), *(seen if self._walks() else ())]
        logits = held_out.logits(seen[0])
        calibration = self._shipped_calibration()
        if not self._is_silent():
            calibration = fit_calibration(logits, held_out.labels)
        return Chosen(seen, calibration, self._report(held_out, logits, place, rows), rows)

    def _report(
        self, held_out: HeldOut, logits: Tensor, place: Choice, rows: NDArray[np.int64]
    ) -> HeldOutReport:
        """Figures of logits (k, c): each half of the sample is judged by what the other chose."""
        numbers = torch.arange(len(rows))
        fold = numbers % 2

        def logits_at(_: int, others: Tensor) -> Tensor:
            chosen = place
            if self._is_free():
                chosen = self._weighed(held_out.rows(others), place)
            return held_out.logits(chosen)

        halves = dict.fromkeys(torch.unique(fold).tolist(), 0)
        probabilities = cross_fitted(logits_at, halves, fold, held_out.labels)
        return HeldOutReport.of(
            logits,
            held_out.labels,
            numbers,
            fold,
            len(rows),
            self._protocol(rows),
            probabilities,
        )

    def _weighed(self, held_out: HeldOut, place: Choice) -> Choice:
        """The weights that these rows ask for at a place."""
        fixed = replace(self.settings, beta=place.beta, noise=place.noise)
        return weigh(held_out, fixed, (place.beta, place.noise, place.gain))

    def _evidence(self, groups: Sequence[Group], rows: NDArray[np.int64]) -> Evidence:
        return Evidence(self.problem, groups, rows, with_variance=self.settings.eta != 0)

    @property
    def _text(self) -> bool:
        return self.problem.text is not None

    def _walk(self) -> list[Choice]:
        """Every (β, noise) that was looked at on the first groups, the best first."""
        groups = self._walked()
        evidence = self._evidence(groups, self._sample(groups))
        with progress_bar("GroupedCache: choosing", unit="setting") as bar:

            def evaluate(beta: float, noises: Sequence[float], _: float) -> list[HeldOut]:
                bar.update(len(noises))
                return [evidence.at(beta, noise) for noise in noises]

            per_class = len(self.problem.labels) / len(np.unique(self.problem.labels))
            return search(evaluate, self.settings, shots=per_class, uses_noise=True)

    def _walked(self) -> Sequence[Group]:
        """The first groups that hold enough keys: classes were dealt to groups at random."""
        sizes = np.cumsum([len(group.rows) for group in self.problem.groups])
        some = self.problem.groups[: int(np.searchsorted(sizes, WALK_KEYS)) + 1]
        n_classes = sum(len(group.classes) for group in some)
        return some if n_classes > 1 and len(self._sample(some)) else self.problem.groups

    def _sample(self, groups: Sequence[Group]) -> NDArray[np.int64]:
        """Row numbers (k,) of these groups whose class has another key."""
        rows = np.concatenate([group.rows for group in groups])
        counts = np.bincount(self.problem.labels)
        company = rows[counts[self.problem.labels[rows]] > 1]
        return spread_rows(self.problem.labels, np.sort(company), self.loo_rows, self.seed)

    def _is_free(self) -> bool:
        """Whether there is something to choose, and keys that can tell."""
        given = self.settings.all_given(uses_noise=True, with_text=self._text)
        return not given and not self._is_silent()

    def _walks(self) -> bool:
        """Whether β or noise is among it."""
        return self._is_free() and "auto" in (self.settings.beta, self.settings.noise)

    def _is_silent(self) -> bool:
        """Whether keys left out tell nothing: most classes have one, or there is but one class."""
        counts = np.bincount(self.problem.labels)
        return self.problem.n_classes < 2 or 2 * int((counts > 1).sum()) < int((counts > 0).sum())

    def _shipped_calibration(self) -> Calibration:
        """The slope that belongs to the shipped α; none beside one that was asked for."""
        if self.settings.alpha != "auto":
            return Calibration()
        defaults = self.settings.defaults
        return Calibration(
            slope=(defaults.with_text if self._text else defaults.without_text).slope
        )

    def _protocol(self, rows: NDArray[np.int64]) -> str:
        labels = self.problem.labels
        told = (
            f"leave-one-out of {len(rows):,} of {len(labels):,} keys, from "
            f"{len(np.unique(labels[rows])):,} classes; each half with weights and calibration of "
            "the other"
        )
        if self._walks():
            n_keys = sum(len(group.rows) for group in self._walked())
            told += f"; beta and noise chosen on {n_keys:,} keys"
        return told
