"""A Ray cluster of three nodes on one machine: a head, and two workers that can be killed.

If this process may make network namespaces, each worker has its own, joined to the head by a
bridge without a way out: `Cluster.isolated` says so. Otherwise the nodes share the address of this
machine, and each has its own ports and processes. They ask for a token in both cases.
"""

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

OBJECT_BYTES = 80_000_000  # Ray asks for 75 MB at least
# Tests that use a browser share this lock. It takes a browser seconds to notice a change.
NETWORK_LOCK, SETTLED = Path(tempfile.gettempdir()) / "gpcache-network.lock", 4.0
WAIT = 300.0  # seconds for a node to start, also beside other work
STARTED = "Ray runtime started"
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # A dead node is noticed after two seconds, instead of Ray's fifteen.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}


class Node(NamedTuple):
    """A node, started by `ray start --block`."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Send SIGKILL to all processes of the node, as if the machine had lost its power."""
        for pid in self.pids() if self.process.poll() is None else ():
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def pids(self) -> list[int]:
        """The processes below `ray start`: the raylet, its agents and workers."""
        return descendants(self.process.pid)

    def runs(self, name: str) -> bool:
        """Whether one of them calls itself so; Ray's workers say what they are at."""
        return any(title(pid).startswith(f"ray::{name}") for pid in self.pids())


@dataclass
class Cluster:
    """A head and two workers. `environment` lets a process join; `isolated` is said above."""

    address: str
    environment: dict[str, str]
    isolated: bool
    nodes: list[Node]
    _start: Callable[[int], Node]

    @property
    def workers(self) -> list[Node]:
        """The nodes beside the head."""
        return self.nodes[1:]

    def complete(self) -> None:
        """Start the workers that were killed again."""
        for number, node in enumerate(self.nodes):
            if node.process.poll() is not None:
                self.nodes[number] = self._start(number)
                self._wait_for(number)

    def _wait_for(self, number: int) -> None:
        """Wait until a node has joined. One that gives up is started again: Ray waits for 30 s."""
        end = time.monotonic() + WAIT
        while STARTED not in (said := self.nodes[number].log.read_text(errors="replace")):
            if time.monotonic() > end:
                raise RuntimeError(f"The {self.nodes[number].name} did not start: {said}")
            if self.nodes[number].process.poll() is not None:
                self.nodes[number] = self._start(number)
            time.sleep(0.1)


@contextmanager
def three_nodes() -> Iterator[Cluster]:
    """Start a head and two workers, wait until they have joined, and stop them at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", dir="/tmp")))
        spaces = stack.enter_context(_namespaces(2))
        hosts = ["127.0.0.1"] * 3 if spaces is None else [host for host, _ in spaces]
        with socket.create_server((hosts[0], 0)) as server:  # its port is free afterwards
            address = f"{hosts[0]}:{server.getsockname()[1]}"
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        options = ["--num-cpus", "1", "--object-store-memory", str(OBJECT_BYTES)]

        def start(number: int) -> Node:
            joined = ["--address", address]
            if number == 0:
                joined = ["--head", "--port", address.split(":")[1], "--include-dashboard=false"]
            place = Path(tempfile.mkdtemp(prefix="n", dir=folder))
            command = [
                *([] if spaces is None else spaces[number][1]),
                sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *joined, *options,
                "--node-ip-address", hosts[number], "--temp-dir", str(place),
                "--min-worker-port", "0", "--max-worker-port", "0", "--disable-usage-stats",
            ]  # fmt: skip
            with (place / "log").open("wb") as log:
                process = subprocess.Popen(
                    command, env=os.environ | token | SETTINGS, start_new_session=True,
                    stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip
            return Node("head" if number == 0 else f"worker {number}", process, place / "log")

        cluster = Cluster(address, token | {"RAY_ADDRESS": address}, spaces is not None, [], start)
        stack.callback(lambda: [node.kill() for node in reversed(cluster.nodes)])
        for number in range(3):
            cluster.nodes.append(start(number))
            if number != 1:  # the workers start side by side
                cluster._wait_for(number)
        cluster._wait_for(1)
        yield cluster


@contextmanager
def _namespaces(count: int) -> Iterator[list[tuple[str, list[str]]] | None]:
    """The address of this process and of `count` network namespaces, each with its command prefix.

    They are joined by a bridge and have no other way. None where this is not allowed.
    """
    name, net = f"gpc{os.getpid() % 10**7}", f"10.231.{os.getpid() % 250}"
    with ExitStack() as made:

        def ip(*words: str, undo: Sequence[str] = ()) -> None:
            subprocess.run(["ip", *words], check=True, capture_output=True)
            if undo:
                made.callback(subprocess.run, ["ip", *undo], check=False, capture_output=True)

        with _network_change():
            try:
                ip("link", "add", name, "type", "bridge", undo=["link", "del", name])
                ip("addr", "add", f"{net}.1/24", "dev", name)
                ip("link", "set", name, "up")
                found: list[tuple[str, list[str]]] = [(f"{net}.1", [])]
                for number in range(1, count + 1):
                    space, outer, inner = f"{name}n{number}", f"{name}v{number}", f"{name}w{number}"
                    ip("netns", "add", space, undo=["netns", "del", space])
                    ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
                    ip("link", "set", outer, "master", name, "up")
                    ip("-n", space, "addr", "add", f"{net}.{number + 1}/24", "dev", inner)
                    ip("-n", space, "link", "set", inner, "up")
                    ip("-n", space, "link", "set", "lo", "up")
                    found.append((f"{net}.{number + 1}", ["ip", "netns", "exec", space]))
            except (OSError, subprocess.CalledProcessError):
                found = []
        try:
            yield found or None
        finally:
            with _network_change():
                made.close()


@contextmanager
def _network_change() -> Iterator[None]:
    """Change interfaces while no test uses a browser, which drops its requests then."""
    with NETWORK_LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        time.sleep(SETTLED)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it may have ended just now
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def title(pid: int) -> str:
    """What a process calls itself."""
    with suppress(OSError):  # it may be gone
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").strip("\0 ")
    return ""
