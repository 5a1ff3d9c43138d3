"""What a machine can do at most, and how near a task comes to it.

The floor of a task is what no program can undercut here: its operations over the measured rate of
matrix products, or the bytes it must touch over the measured bandwidth, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from measuring import RUNS, median, name_of, once
from torch import Tensor

Line = dict[str, Any]
DTYPES = {"float64": torch.float64, "float32": torch.float32, "tf32": torch.float32}


@dataclass(frozen=True)
class Machine:
    """A device and its peaks: operations a second by precision, and bytes a second."""

    name: str
    device: str
    version: str
    peaks: dict[str, float]
    bandwidth: float

    @classmethod
    def measured(cls, device: torch.device) -> Machine:
        """The best of several large products and copies, which other work can only slow down."""
        on_gpu = device.type == "cuda"
        kinds = ("float32", "tf32") if on_gpu else ("float64", "float32")
        peaks = {kind: _product_rate(kind, device, 8192 if on_gpu else 2048) for kind in kinds}
        return cls(name_of(device), device.type, torch.__version__, peaks, _copy_rate(device))

    def at_best(self, other: Machine) -> Machine:
        """The higher rates of two measurements: the machine may have been busy during one."""
        peaks = {kind: max(rate, other.peaks[kind]) for kind, rate in self.peaks.items()}
        return replace(self, peaks=peaks, bandwidth=max(self.bandwidth, other.bandwidth))

    def floor(self, operations: float, touched: float, dtype: str) -> tuple[float, str]:
        """Seconds, and which of the two limits they come from."""
        computing, moving = operations / self.peaks[dtype], touched / self.bandwidth
        return (computing, "operations") if computing >= moving else (moving, "memory")


def _product_rate(kind: str, device: torch.device, n: int) -> float:
    matrix = torch.randn(n, n, dtype=DTYPES[kind], device=device)
    out = torch.empty_like(matrix)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    seconds = _least(lambda: torch.mm(matrix, matrix, out=out), device)
    torch.set_float32_matmul_precision(before)
    return 2 * n**3 / seconds


def _copy_rate(device: torch.device) -> float:
    source = torch.randn(2**30 if device.type == "cuda" else 2**26, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _least(lambda: target.copy_(source), device)


def _least(call: Callable[[], object], device: torch.device) -> float:
    call()
    return min(once(call, device)[0] for _ in range(RUNS))


@dataclass(frozen=True)
class Task:
    """One thing to time, beside the obvious way to do it, which text/roofline.md describes.

    `operations` and `bytes` are the least that any way needs: an addition and a multiplication
    count as two, a symmetric matrix is computed and read by half, what is used twice is read once.
    What is known only afterwards is asked for then. `naive` may do one part of `naive_parts`; its
    time is multiplied. Answers that are tensors are compared, unless they are not `comparable`:
    with each other, or both with what `exact` gives.
    """

    name: str
    size: str
    ours: Callable[[], object]
    naive: Callable[[], object]
    operations: float | Callable[[], float]
    bytes: float | Callable[[], float]
    dtype: str
    naive_parts: float = 1.0
    comparable: bool = True
    exact: Callable[[], object] | None = None


def measured(task: Task, device: torch.device) -> Line:
    """What is measured of a task, in seconds; the difference of the answers is relative."""
    ours, answer = median(task.ours, device)
    naive, expected = median(task.naive, device)
    line: Line = {name: getattr(task, name) for name in ("name", "size", "dtype")}
    for name in ("operations", "bytes"):
        count = getattr(task, name)
        line[name] = count() if callable(count) else count
    line |= {"ours": ours, "naive": naive * task.naive_parts, "difference": None}
    if task.exact is not None:
        exact = task.exact()
        line["difference"] = _difference(answer, exact)
        line["naive_difference"] = _difference(expected, exact)
    elif task.comparable:
        line["difference"] = _difference(answer, expected)
    return line


def _difference(answer: object, expected: object) -> float | None:
    """‖ours − expected‖ / ‖expected‖ of two tensors, over the rows that are expected."""
    if not isinstance(answer, Tensor) or not isinstance(expected, Tensor):
        return None
    mine = answer[: len(expected)].double().cpu()
    theirs = expected.double().cpu()
    return float((mine - theirs).norm() / theirs.norm())
