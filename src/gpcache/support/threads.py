"""How many threads torch should use: few for small problems, and only on free cores.

Threads of torch wait for each other at every step. If another process uses a core, each step waits
for it: two threads can then take many times as long as one.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

import torch

# Products of fewer multiplications than this gain little from a second thread.
SMALL = 2**24
RUNNING, OWN = Path("/proc/loadavg"), Path("/proc/self/task")
# Samples of the running threads, and seconds between them: some run for an instant. Work of fewer
# multiplications than `LONG` ends before these samples would: it takes one.
LOOKS, PAUSE, LONG = 5, 0.002, 2**29
# Long work looks again after so many seconds: a neighbour may have come or gone.
AGAIN = 5.0

_lock = Lock()
_users = 0
_most = 1  # threads that torch had before the first user
_looked = 0.0  # when free cores were last counted


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

    The number of threads belongs to the process: if several threads call this at once, the first
    one decides, and the last one restores the number. Long work calls `take_free_cores` now and
    then.
    """
    global _users, _most, _looked
    if device.type != "cpu":
        yield
        return
    with _lock:
        before = torch.get_num_threads()
        looks = LOOKS if multiplications >= LONG else 1
        wanted = 1 if multiplications < SMALL else max(1, free_cores(looks))
        first, _users = _users == 0, _users + 1
        if first:
            _most, _looked = before, time.monotonic()
            torch.set_num_threads(min(wanted, before))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if first:
                torch.set_num_threads(before)


def take_free_cores() -> None:
    """Use the cores that are free now, where `limited_threads` looked for them long ago."""
    global _looked
    if not _users or time.monotonic() - _looked < AGAIN:
        return
    with _lock:
        _looked = time.monotonic()
        if _users:
            torch.set_num_threads(max(1, min(_most, free_cores())))
