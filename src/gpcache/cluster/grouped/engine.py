"""Runs one function for many groups: one after the other here, or as tasks on Ray.

The arithmetic of a task is that of one thread in both, because the number of threads changes the
order of sums: so both give the same bits on the same kind of processor.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal, Protocol

import torch

from gpcache.cluster import connection as ray_cluster
from gpcache.errors import GPCacheError, NumericalError

EngineName = Literal["local", "ray"]
ENGINES: tuple[EngineName, ...] = ("local", "ray")


class Engine(Protocol):
    """Where tasks run."""

    @property
    def tasks_here(self) -> int:
        """How many tasks run at once in the memory of this machine."""

    def share(self, value: Any) -> Any:
        """A handle on a value that many tasks read, to be given to `scatter`."""

    def scatter(
        self, function: Callable[..., Any], items: Iterable[Any], *shared: Any
    ) -> Iterator[Any]:
        """function(item, *shared) of every item, in their order."""


@contextmanager
def opened(name: EngineName) -> Iterator[Engine]:
    """The engine of this name, for as long as it is needed."""
    if name == "local":
        yield _Local()
        return
    with ray_cluster.connected() as ray:
        yield _Ray(ray)


class _Local:
    tasks_here = 1

    def share(self, value: Any) -> Any:
        return value

    def scatter(
        self, function: Callable[..., Any], items: Iterable[Any], *shared: Any
    ) -> Iterator[Any]:
        for item in items:
            yield _on_one_thread(function, item, *shared)


class _Ray:
    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._task = ray.remote(_reported)

    @property
    def tasks_here(self) -> int:
        here = self._ray.get_runtime_context().get_node_id()
        nodes = {node["NodeID"]: node["Resources"] for node in self._ray.nodes()}
        return int(nodes.get(here, {}).get("CPU", 1)) or 1

    def share(self, value: Any) -> Any:
        return self._ray.put(value)

    def scatter(
        self, function: Callable[..., Any], items: Iterable[Any], *shared: Any
    ) -> Iterator[Any]:
        tasks = [self._task.remote(function, item, *shared) for item in items]
        for task in tasks:
            try:
                result, said = self._ray.get(task)
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, GPCacheError):
                    raise error.cause from None
                raise
            except self._ray.exceptions.RayError as error:
                raise NumericalError(
                    f"A task on Ray was lost ({type(error).__name__}), most often for want of "
                    "memory: use more groups, or fewer CPUs at once."
                ) from None
            for category, message in said:
                warnings.warn(message, category, stacklevel=2)
            yield result


def _on_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*arguments)
    finally:
        torch.set_num_threads(threads)


def _reported(
    function: Callable[..., Any], *arguments: Any
) -> tuple[Any, list[tuple[type[Warning], str]]]:
    """The result, and the warnings that nobody would see in the log of a worker."""
    with warnings.catch_warnings(record=True) as caught:
        result = _on_one_thread(function, *arguments)
    return result, [(one.category, str(one.message)) for one in caught]
