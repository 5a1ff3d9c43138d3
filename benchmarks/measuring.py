"""Times of a call (once, the least, the median), and the memory held meanwhile; torch alone."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# Warming up is nothing to a call of more than SHORT seconds; one of more than LONG is run once.
SHORT, LONG = 1.0, 8.0
RUNS = 5
CPU = torch.device("cpu")
Call = Callable[[], object]


def name_of(device: torch.device) -> str:
    """A device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'s' if threads > 1 else ''}"


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def once(
    call: Call, device: torch.device = CPU, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, object]:
    """Seconds of one call until the device is done, and its answer."""
    synchronise(device)
    start = clock()
    answer = call()
    synchronise(device)
    return clock() - start, answer


def least(call: Call, runs: int = 1, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of some calls."""
    return min(once(call, clock=clock)[0] for _ in range(runs))


def milliseconds(call: Call, device: torch.device, repeats: int) -> float:
    """Median time of a call after two for warming up."""
    times = [once(call, device)[0] for _ in range(repeats + 2)]
    return 1e3 * statistics.median(times[2:])


def median(call: Call, device: torch.device) -> tuple[float, object]:
    """Seconds of a call, the median of several unless it is long, and its first answer."""
    first, answer = once(call, device)
    if first > LONG:
        return first, answer
    if first > SHORT:
        return statistics.median([first, *(once(call, device)[0] for _ in range(2))]), answer
    repeats = min(50, max(RUNS, int(SHORT / first)))
    return milliseconds(call, device, repeats) / 1e3, answer


def resident(field: str) -> int:
    """Bytes of a field of /proc/self/status: VmRSS, its peak VmHWM, RssAnon without files."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@contextmanager
def watched(held: Callable[[], float], every: float) -> Iterator[list[float]]:
    """What `held` gives before the block, and every so many seconds while it runs."""
    found, done = [held()], threading.Event()

    def watch() -> None:
        while not done.wait(every):
            found.append(held())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
