"""Fits on Ray: an actor on each node holds a part of the rows, and adds up passes over it.

The passes are sums over rows (`methods.cache.passes`), and an actor can compute them again: Ray
starts the actor of a lost node on another one, where it reads its rows again and repeats the pass.
Only the driver sees the model; what it reads itself (landmarks, held-out rows) stays local.
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpcache.cluster.connection import connected, reason_of
from gpcache.errors import DataError, GPCacheError
from gpcache.features.store import FeatureStore, Item
from gpcache.features.stored_rows import StoredRows
from gpcache.methods.cache.passes import Pass
from gpcache.methods.cache.row_stream import RowStream

Sums = list[NDArray[Any]]


@contextmanager
def rows_on_ray(source: Any) -> Iterator[RayRows]:
    """Rows for `GPCacheClassifier.fit` whose passes are computed on a Ray cluster.

    It joins the cluster of RAY_ADDRESS, or starts a local one until the end. Fits in explicit
    features use it; fits of few rows are exact, and are computed on this machine.

    Parameters
    ----------
    source : StoredRows, numpy.memmap or array of shape (n, d)
        Features. Every machine must find a store or a mapped file under the same path, and reads
        its part there; the parts of another array are sent.

    Yields
    ------
    RayRows
        The rows, to be used as X.

    Raises
    ------
    DataError
        If the rows are not a matrix of numbers.
    GPCacheError
        If no cluster can be joined.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import GPCacheClassifier
    >>> from gpcache.cluster.fitting import rows_on_ray
    >>> X = np.load("features.npy", mmap_mode="r")  # doctest: +SKIP
    >>> with rows_on_ray(X) as rows:  # doctest: +SKIP
    ...     model = GPCacheClassifier().fit(rows, y)
    """
    if not isinstance(source, StoredRows):
        source = source if isinstance(source, np.ndarray) else np.asarray(source)
        if source.ndim != 2 or source.dtype.kind not in "fiu":
            raise DataError(
                "rows_on_ray takes a matrix of numbers, got an array of shape "
                f"{source.shape} and type {source.dtype}."
            )
    with connected() as ray:
        rows = RayRows(ray, source)
        try:
            yield rows
        finally:
            rows.release()


class RayRows:
    """Rows (n, d) that are read here for what is small, and on a cluster for passes over all.

    `passes` counts these.
    """

    reads_in_batches = True
    ndim = 2

    def __init__(self, ray: ModuleType, source: Any) -> None:
        self._ray, self._source = ray, source
        self.shape, self.dtype = source.shape, source.dtype
        self.passes = 0
        self._labels: Tensor | None = None
        self._parts: list[tuple[Any, int, int]] = []  # actors, and the rows that each holds
        self._fields: list[tuple[Any, Any]] = []  # of the last pass, with their references

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        return np.asarray(self._source[rows])

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        return self[:]

    def total_of(
        self, step: Pass, rows: RowStream, size: int, without: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The sum of a pass over all rows but those of the numbers `without`, in float64."""
        if rows.labels.device.type != "cpu":
            raise DataError("A fit on Ray computes on CPUs: use device='cpu'.")
        try:
            if self._labels is not rows.labels:
                self.release()
                self._start(rows, size)
            fields = self._sent(step)
            calls = [
                actor.total.remote(type(step), size, _within(without, first, last), *fields)
                for actor, first, last in self._parts
            ]
            parts: list[Any] = self._ray.get(calls)
        except self._ray.exceptions.RayError as error:
            raise GPCacheError(f"Ray stopped: {reason_of(error)}. Run it again.") from None
        self.passes += 1
        for part in parts:
            if isinstance(part, GPCacheError):
                raise part
        # Always in the order of the rows, so that a pass is the same each time.
        return tuple(
            torch.as_tensor(np.sum(same, axis=0, dtype=np.float64))
            for same in zip(*parts, strict=True)
        )

    def _sent(self, step: Pass) -> list[Any]:
        """References to the fields of a pass; what the last pass had too is not sent again."""
        known = self._fields
        self._fields = [
            next((old for old in known if old[0] is field), None) or (field, self._ray.put(field))
            for field in step
        ]
        return [reference for _, reference in self._fields]

    def release(self) -> None:
        """Stop the actors."""
        for actor, *_ in self._parts:
            self._ray.kill(actor)
        self._parts, self._fields, self._labels = [], [], None

    def _start(self, rows: RowStream, size: int) -> None:
        """Start an actor on each node, with a number of batches that follows its CPUs."""
        cpus = {
            node["NodeID"]: int(node["Resources"]["CPU"])
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        }
        if not cpus:
            raise GPCacheError("The Ray cluster has no CPU: start a node with one.")
        batches = -(-len(rows) // size)
        ends = np.cumsum(list(cpus.values()))
        # Batches as on one machine: the arithmetic within a batch is then the same.
        ends = np.minimum(ends * batches // ends[-1] * size, len(rows))
        # A CPU is needed to place an actor but not held, so that a lost one finds another node.
        actor = self._ray.remote(max_restarts=-1, max_task_retries=-1)(_Reader)
        prefer = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        for node, (first, last) in zip(cpus, pairwise([0, *ends.tolist()]), strict=True):
            if first == last:  # fewer batches than CPUs
                continue
            place = actor.options(scheduling_strategy=prefer(node, soft=True))
            labels = rows.labels[first:last].clone()
            source = _opener(self._source, first, last)
            stream = labels, rows.n_classes, None, rows.dtype
            made = place.remote(source, cpus[node], *stream, first=first)
            self._parts.append((made, first, last))
        self._labels = rows.labels


def _opener(source: Any, first: int, last: int) -> Callable[[], Any]:
    """Opens the rows from `first` to `last` on another machine."""
    if isinstance(source, StoredRows):
        return partial(_open_stored, source.store.folder.absolute(), source.items[first:last])
    if isinstance(source, np.memmap) and isinstance(source.base, mmap.mmap) and source.filename:
        order = "C" if source.flags.c_contiguous else "F"
        return partial(
            _open_mapped, str(source.filename), source.dtype, source.offset, source.shape, order,
            slice(first, last),
        )  # fmt: skip
    return partial(np.asarray, source[first:last])


def _within(without: Tensor | None, first: int, last: int) -> Tensor | None:
    """The numbers that lie in a part, counted from its start."""
    if without is None:
        return None
    return without[(without >= first) & (without < last)] - first


# The code below runs on the cluster. It returns errors, because Ray would print their traceback.


class _Reader:
    """An actor that holds a part of the rows, and adds up passes over it.

    `opener` opens the rows; `stream` and `first` are the further arguments of their `RowStream`.
    """

    def __init__(self, opener: Callable[[], Any], threads: int, *stream: Any, first: int) -> None:
        torch.set_num_threads(threads)
        self._open, self._stream, self._first = opener, stream, first

    @cached_property
    def _rows(self) -> RowStream:
        return RowStream(self._open(), *self._stream, first=self._first)

    def total(
        self, kind: type[Pass], size: int, without: Tensor | None, *fields: Any
    ) -> Sums | GPCacheError:
        """The sum of a pass over the part."""
        try:
            sums = kind(*fields).total(self._rows.batches(size, without))
            return [one.numpy() for one in sums]
        except GPCacheError as error:
            return error
        except OSError as error:
            return DataError(f"The rows cannot be read on {socket.gethostname()!r}: {error}.")


def _open_stored(folder: Path, items: list[Item]) -> StoredRows:
    return StoredRows(FeatureStore.open(folder), items)


def _open_mapped(
    path: str, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], order: Any, part: slice
) -> NDArray[Any]:
    return np.memmap(path, dtype, "r", offset, shape, order)[part]
