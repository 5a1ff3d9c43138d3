"""Runs one function for many groups: one after the other in this process, or as tasks on Ray.

A task computes on one thread in both cases, because the number of threads changes the order of
sums: both give the same bits on the same kind of processor.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal

import torch

from gpcache.cluster import connection as ray_cluster
from gpcache.errors import GPCacheError, NumericalError

EngineName = Literal["local", "ray"]
ENGINES: tuple[EngineName, ...] = ("local", "ray")


class TaskRunner:
    """Runs tasks in this process, or on Ray where its module is given."""

    def __init__(self, ray: ModuleType | None) -> None:
        self._ray = ray

    @property
    def tasks_here(self) -> int:
        """How many tasks run at once in the memory of this machine."""
        if self._ray is None:
            return 1
        here = self._ray.get_runtime_context().get_node_id()
        nodes = {node["NodeID"]: node["Resources"] for node in self._ray.nodes()}
        return int(nodes.get(here, {}).get("CPU", 1)) or 1

    def share(self, value: Any) -> Any:
        """A handle on a value that many tasks read, for `scatter`."""
        return value if self._ray is None else self._ray.put(value)

    def scatter(
        self, function: Callable[..., Any], items: Iterable[Any], *shared: Any
    ) -> Iterator[Any]:
        """function(item, *shared) of every item, in their order."""
        if self._ray is None:
            for item in items:
                yield _on_one_thread(function, item, *shared)
            return
        remote = self._ray.remote(_with_warnings)
        for task in [remote.remote(function, item, *shared) for item in items]:
            yield self._result(task)

    def _result(self, task: Any) -> Any:
        assert self._ray is not None
        try:
            result, warned = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, GPCacheError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            raise NumericalError(
                f"A task on Ray was lost ({type(error).__name__}), most often because memory ran "
                "out: use more groups, or fewer CPUs at once."
            ) from None
        for category, message in warned:
            warnings.warn(message, category, stacklevel=3)
        return result


@contextmanager
def task_runner(engine: EngineName) -> Iterator[TaskRunner]:
    """The runner of an engine; Ray is left again at the end."""
    if engine == "local":
        yield TaskRunner(None)
        return
    with ray_cluster.connected() as ray:
        yield TaskRunner(ray)


def _on_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*arguments)
    finally:
        torch.set_num_threads(threads)


def _with_warnings(
    function: Callable[..., Any], *arguments: Any
) -> tuple[Any, list[tuple[type[Warning], str]]]:
    """The result and the warnings, which would be hidden in the log of a worker."""
    with warnings.catch_warnings(record=True) as caught:
        result = _on_one_thread(function, *arguments)
    return result, [(one.category, str(one.message)) for one in caught]
