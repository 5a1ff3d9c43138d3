"""Times of a call (the least, the median), memory meanwhile, rows of what was measured."""

import argparse
import gc
import json
import os
import re
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

# Warming up is nothing to a call of more than SHORT seconds; one of more than LONG is run once.
SHORT, LONG, RUNS = 1.0, 8.0, 5
Call, Clock, Device = Callable[[], object], Callable[[], float], torch.device
Row, Asked, CPU = dict[str, Any], argparse.Namespace, Device("cpu")


def name_of(device: Device) -> str:
    """A device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'s' if threads > 1 else ''}"


def once(call: Call, device: Device = CPU, clock: Clock = perf_counter) -> tuple[float, Any]:
    """Seconds of one call until the device is done, and its answer."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = clock()
    answer = call()
    wait()
    return clock() - start, answer


def least(call: Call, runs: int = 1, clock: Clock = perf_counter, device: Device = CPU) -> float:
    """Seconds of the fastest of some calls."""
    return min(once(call, device, clock)[0] for _ in range(runs))


def median(call: Call, device: Device, runs: int = 0) -> tuple[float, Any]:
    """Seconds of a call, the median of several unless it is long, and its first answer."""
    first, answer = once(call, device)
    if not runs:
        quick = min(50, max(RUNS, int(SHORT / first)))
        runs = 1 if first > LONG else 3 if first > SHORT else quick
    warm = 0 if first > SHORT else 2
    times = [first] + [once(call, device)[0] for _ in range(runs + warm - 1)]
    return statistics.median(times[warm:]), answer


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

    with ThreadPoolExecutor(1) as pool:
        pool.submit(watch)
        try:
            yield found
        finally:
            done.set()


def measured_rows(
    parser: argparse.ArgumentParser, name: str, measure: Callable[[Asked], Iterable[Row]]
) -> tuple[Asked, list[Row]]:
    """The options, and the rows that `measure` finds: each is printed and kept in $OUT/NAME.

    ``--from FILE …`` reads the rows of such files instead.
    """
    parser.add_argument("--from", dest="files", type=Path, nargs="+", help=f"{name} of other runs")
    asked, rows = parser.parse_args(), []
    for row in measure(asked) if not asked.files else ():
        rows.append(row)
        print(json.dumps(row), flush=True)
        if "OUT" in os.environ:  # a run that is cut short keeps what it has
            (Path(os.environ["OUT"]) / name).write_text(json.dumps(rows, indent=1))
        gc.collect()  # what a row held must be free before the next is measured
        torch.cuda.empty_cache()
    for file in asked.files or ():
        rows += json.loads(file.read_text())
    return asked, rows
