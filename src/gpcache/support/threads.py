"""How many threads torch should use: few for small problems, and only on free cores.

Threads of torch wait for each other at every step. If another process uses a core, each step waits
for it: two threads can then take many times as long as one.
"""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, local, main_thread

import torch

# Products of fewer multiplications than this gain little from a second thread.
SMALL = 2**24
RUNNING, OWN = Path("/proc/loadavg"), Path("/proc/self/task")
# Samples of the running threads, and seconds between them: some run for an instant. Work of fewer
# multiplications than `LONG` ends before these samples would: it takes one.
LOOKS, PAUSE, LONG = 5, 0.002, 2**29
# Seconds after which long work looks again: a neighbour may have come or gone.
AGAIN = 5.0

# The threads of the main thread: others begin with the number that any thread has set last.
_most = torch.get_num_threads()
_own = local()  # of the use in this thread: when it looked for free cores


def free_cores(looks: int = LOOKS) -> int:
    """Cores that no other process is using now; all if the system does not say."""
    cores = os.cpu_count() or 1
    busy = cores
    try:
        for look in range(looks):
            if look:
                time.sleep(PAUSE)
            running = int(RUNNING.read_text().split()[3].split("/")[0])
            # Our own threads wait for work in a loop for a while, and would leave their cores.
            own = 1 if running <= 1 else _own_running()
            busy = min(busy, max(0, running - own))
            if not busy:
                break
    except (OSError, ValueError, IndexError):
        return cores
    return cores - busy


def _own_running() -> int:
    """The threads of this process that run now."""
    count = 0
    for thread in OWN.iterdir():
        with suppress(OSError):  # it has just ended
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            count += state == "R"
    return count


@contextmanager
def limited_threads(multiplications: int, device: torch.device) -> Iterator[None]:
    """Run torch with as many threads as a problem of this size can use now.

    Inside of another use in the same thread this changes nothing. Long work calls
    `take_free_cores` now and then.
    """
    global _most
    if device.type != "cpu" or hasattr(_own, "looked"):
        yield
        return
    if current_thread() is main_thread():
        _most = torch.get_num_threads()
    try:
        if multiplications < SMALL:
            torch.set_num_threads(1)
            _own.looked = math.inf  # it does not look again
        else:
            _use_free_cores(LOOKS if multiplications >= LONG else 1)
        yield
    finally:
        vars(_own).clear()
        torch.set_num_threads(_most)


def take_free_cores() -> None:
    """Use the cores that are free now, where `limited_threads` looked for them long ago."""
    if time.monotonic() - getattr(_own, "looked", math.inf) >= AGAIN:
        _use_free_cores()


def _use_free_cores(looks: int = LOOKS) -> None:
    torch.set_num_threads(max(1, min(free_cores(looks), _most)))
    _own.looked = time.monotonic()
