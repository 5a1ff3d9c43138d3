"""Cells in processes of their own: each opens the data itself, and only rows come back."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path

import torch

from gpcache.benchmark.cells import Cell, Sample, computed_rows
from gpcache.benchmark.results import Row
from gpcache.benchmark.spec import MethodSpec, Spec
from gpcache.benchmark.tasks import Task, open_task
from gpcache.encoders import Encoder, load_encoder


@dataclass(frozen=True, eq=False)
class Bench:
    """Where a spec's data come from, through one encoder: what a process needs to open them."""

    spec: Spec
    encoder_name: str | None
    root: Path | None
    cache: Path
    device: str

    @cached_property
    def _encoder(self) -> Encoder | None:
        name = self.encoder_name
        return None if name is None else load_encoder(name, device=self.device)

    def open(self, reference: str) -> Task:
        """A data set to draw from, its draws encoded."""
        wanted = [(shots, seed) for shots in self.spec.shots for seed in self.spec.seeds]
        return self._open(reference, wanted)

    def open_tests(self) -> list[Task]:
        """The further data sets that models are tested on."""
        return [self._open(reference, []) for reference in self.spec.tests]

    def _open(self, reference: str, wanted: Sequence[tuple[int, int]]) -> Task:
        # The encoder is loaded when images first need it: features on disk do not.
        return open_task(
            reference,
            lambda: self._encoder,
            folder=self.spec.folder,
            root=self.root,
            cache=self.cache,
            wanted=wanted,
        )


@dataclass(frozen=True)
class Order:
    """A cell to compute, in words that another process understands; `tests` are names."""

    reference: str
    protocol: str
    shots: int
    seed: int
    line: MethodSpec
    tests: tuple[str, ...]

    @classmethod
    def of(cls, cell: Cell, tests: Sequence[Task]) -> Order:
        """The order of a cell on these test sets."""
        sample = cell.sample
        return cls(
            sample.task.reference,
            sample.protocol,
            sample.shots,
            sample.seed,
            cell.line,
            tuple(test.name for test in tests),
        )


class Workers:
    """Processes that compute cells of a bench."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def submit(self, order: Order) -> Future[list[Row]]:
        """The rows of a cell, when a process has them."""
        return self._pool.submit(_fill, order)


@contextmanager
def workers(bench: Bench, jobs: int) -> Iterator[Workers]:
    """So many processes for a bench; work that nobody waits for any more is dropped at the end."""
    # A fork would copy threads' locks, and a GPU cannot be used on both sides of one.
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # A copy has no encoder yet: one that is loaded may not travel.
    given = (replace(bench), threads)
    pool = ProcessPoolExecutor(jobs, context, initializer=_start, initargs=given)
    try:
        yield Workers(pool)
    finally:
        pool.shutdown(cancel_futures=True)


_benches: list[Bench] = []  # the one of this process, set when it starts


def _start(bench: Bench, threads: int) -> None:
    torch.set_num_threads(threads)
    _benches[:] = [bench]
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot say so, and its workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _opened(reference: str) -> tuple[Task, dict[str, Task]]:
    bench = _benches[0]
    task = bench.open(reference)
    return task, {test.name: test for test in [task, *bench.open_tests()]}


@lru_cache(maxsize=2)  # ten views of every shot are large
def _sample(reference: str, protocol: str, shots: int, seed: int) -> Sample:
    return Sample(_opened(reference)[0], protocol, shots, seed)


def _fill(order: Order) -> list[Row]:
    bench = _benches[0]
    sample = _sample(order.reference, order.protocol, order.shots, order.seed)
    tests = _opened(order.reference)[1]
    cell = Cell(bench.spec, sample, order.line, bench.device)
    return computed_rows(cell, [tests[name] for name in order.tests])
