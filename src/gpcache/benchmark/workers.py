"""Computes cells, here or in several processes: each opens the data itself and returns rows."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gpcache.benchmark.cells import Cell, computed_rows
from gpcache.benchmark.datasets.loading import open_task
from gpcache.benchmark.peers import known_methods
from gpcache.benchmark.protocols import Sample
from gpcache.benchmark.rows import Row
from gpcache.benchmark.spec import MethodSpec, Spec
from gpcache.benchmark.task import Task
from gpcache.encoders import Encoder, load_encoder

_Place = tuple[str, str, int, int]  # reference of a data set, protocol, shots and seed of a sample


@dataclass(frozen=True, eq=False)
class DataSource:
    """The settings with which a process opens the data sets of a spec through one encoder."""

    spec: Spec
    encoder_name: str | None
    root: Path | None
    cache: Path
    device: str
    trained_device: str | None = None

    def cell(self, sample: Sample, line: MethodSpec) -> Cell:
        """The cell of a line of the spec on a sample, on the device of its method."""
        device = self.trained_device if known_methods()[line.name].trains else None
        return Cell(self.spec, sample, line, device or self.device)

    @cached_property
    def _encoder(self) -> Encoder | None:
        name = self.encoder_name
        return None if name is None else load_encoder(name, device=self.device)

    def open(self, reference: str, *, encode_draws: bool = True) -> Task:
        """A data set; its draws are encoded unless it is used for testing only."""
        spec = self.spec
        draws = [(shots, seed) for shots in spec.shots for seed in spec.seeds]
        # The encoder is loaded when images first need it: features on disk do not.
        return open_task(
            reference,
            lambda: self._encoder,
            folder=spec.folder,
            root=self.root,
            cache=self.cache,
            wanted=draws if encode_draws else [],
        )

    def open_with_tests(self, reference: str) -> list[Task]:
        """A data set, and the further data sets on which its models are tested."""
        task = self.open(reference)
        return [task, *(self.open(test, encode_draws=False) for test in self.spec.tests)]


def compute(
    source: DataSource, cells: Iterable[tuple[Cell, Sequence[Task]]], jobs: int
) -> Iterator[list[Row]]:
    """The rows of cells, each on its test sets, as they are done.

    Several `jobs` are as many processes. All images are encoded before the first one starts
    (except the spatial features for CALIP), and the cells that take longest are computed first.
    """
    if jobs == 1:
        for cell, tests in cells:
            yield computed_rows(cell, tests)
        return
    work: list[tuple[_Place, str, list[str]]] = []
    for cell, tests in cells:
        sample = cell.sample
        place = (sample.task.reference, sample.protocol, sample.shots, sample.seed)
        work.append((place, cell.line.label, [test.reference for test in tests]))
    work.sort(key=lambda one: -one[0][2])
    # A fork would copy the locks of threads, and a GPU cannot be used on both sides of a fork.
    context = multiprocessing.get_context("spawn")
    # A loaded encoder cannot be sent to a process: a copy of the source has none yet.
    given = (replace(source), max(1, (os.cpu_count() or 1) // jobs))
    pool = ProcessPoolExecutor(jobs, context, initializer=_start, initargs=given)
    try:
        for done in as_completed([pool.submit(_compute, *one) for one in work]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


_sources: list[DataSource] = []  # the one of this process, set when it starts


def _start(source: DataSource, threads: int) -> None:
    torch.set_num_threads(threads)
    # scikit-learn uses libraries with their own threads.
    threadpool_limits(threads)
    _sources[:] = [source]
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is killed; otherwise it would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _tasks(reference: str) -> dict[str, Task]:
    return {task.reference: task for task in _sources[0].open_with_tests(reference)}


@lru_cache(maxsize=2)  # ten views of every shot are large
def _sample(reference: str, protocol: str, shots: int, seed: int) -> Sample:
    return Sample(_tasks(reference)[reference], protocol, shots, seed)


def _compute(place: _Place, label: str, tests: Sequence[str]) -> list[Row]:
    """The rows of the cell of a place and a label, on the test sets of these references."""
    source, tasks = _sources[0], _tasks(place[0])
    line = next(method for method in source.spec.methods if method.label == label)
    return computed_rows(source.cell(_sample(*place), line), [tasks[test] for test in tests])
