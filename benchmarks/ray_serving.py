"""Replicas (`--engine ray`) beside the single server, and one replica killed under load.

`python benchmarks/ray_serving.py` takes about three minutes and prints Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import NamedTuple

from pages import table
from ray_extraction import descendants, title
from serving import CONCURRENCY, Answer, Clients, Server, closed_loop, milliseconds

REPLICAS = 2
AT_ONCE = 32
REQUESTS = 400
ENGINES = {"local": (), "ray": ("--engine", "ray", "--replicas", str(REPLICAS))}


class Killed(NamedTuple):
    """All answers, the longest wait, and how long a process was missing, in seconds."""

    answers: list[Answer]
    longest: float
    missing: float

    def summary(self) -> str:
        """The outcome of all requests; lost ones got neither an answer nor a refusal."""
        statuses = Counter(answer.status for answer in self.answers)
        refused, answered = statuses[429], statuses[200]
        accepted = len(self.answers) - refused
        return (
            f"* `kill -9` of one of {REPLICAS} replicas, {AT_ONCE} requests at once: "
            f"{len(self.answers)} requests, {refused} refused with 429, {accepted} accepted, "
            f"{answered} answered, {accepted - answered} lost (to be 0); the longest wait "
            f"{self.longest:.1f} s, another process in its place after {self.missing:.1f} s."
        )


def replicas(process: int) -> list[int]:
    """The ids of the processes below one that are replicas."""
    return [pid for pid in descendants(process) if title(pid).startswith("ray::ServeReplica")]


async def killed(server: Server) -> Killed:
    """Requests one after the other from many clients; after a quarter of them a replica dies."""
    clients, numbers = Clients(server), count()
    answers: list[Answer] = []
    before = replicas(os.getpid())
    missing: asyncio.Task[float] | None = None

    async def back() -> float:
        os.kill(before[0], signal.SIGKILL)
        start = time.perf_counter()
        while before[0] in (now := replicas(os.getpid())) or len(now) < REPLICAS:
            await asyncio.sleep(0.05)
        return time.perf_counter() - start

    async def client() -> None:
        nonlocal missing
        while (number := next(numbers)) < REQUESTS:
            answers.append(await clients.ask(number))
            if missing is None and len(answers) >= REQUESTS // 4:
                missing = asyncio.create_task(back())

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    assert missing is not None
    return Killed(answers, max(answer.seconds for answer in answers), await missing)


def throughput(name: str, server: Server, seconds: float) -> list[list[object]]:
    """A row for each number of requests at once."""
    rows = []
    for concurrency in CONCURRENCY:
        asyncio.run(closed_loop(server, concurrency, 2))
        answers = asyncio.run(closed_loop(server, concurrency, seconds))
        times = [answer.seconds for answer in answers if answer.status == 200]
        row: list[object] = [name, concurrency, f"{len(times) / seconds:.1f}"]
        row += [f"{milliseconds(times, q):.0f}" for q in (0.5, 0.99)]
        rows.append([*row, len(answers) - len(times)])
    return rows


def lines(seconds: float = 10) -> list[str]:
    """Everything measured, as lines of Markdown."""
    rows: list[list[object]] = [
        ["engine", "requests at once", "photos a second", "p50 ms", "p99 ms", "not answered"]
    ]
    found = None
    for name, options in ENGINES.items():
        with tempfile.TemporaryDirectory() as temporary:
            server = Server(Path(temporary), *options)
            try:
                rows += throughput(name, server, seconds)
                if name == "ray":
                    found = asyncio.run(killed(server))
            finally:
                server.stop()
    assert found is not None
    about = (
        f"Drawings of 640 × 480 pixels through `lite`, {os.cpu_count()} CPUs that clients and "
        f"server share; `ray` has {REPLICAS} replicas."
    )
    return [about, "", *table(rows).splitlines(), "", found.summary()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="for each number of requests")
    print("\n".join(lines(parser.parse_args().seconds)))


if __name__ == "__main__":
    main()
