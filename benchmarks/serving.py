"""How the server holds up: against the encoder alone, slow clients, too much load, and a soak.

`python benchmarks/serving.py` takes about three minutes; `--minutes 10` gives overload and soak ten
each.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
from measuring import least
from pages import table, write_page
from PIL import Image, ImageDraw

from gpcache import load_encoder
from gpcache.images.records import plural
from gpcache.web.open_workspace import open_workspace
from gpcache.web.workspace_contents import Contents, Photo
from gpcache.web.workspace_folder import EncodedPhoto

CONCURRENCY = (1, 8, 64)
COLOURS = ("red", "lime", "blue")
SLOW = 500
PHOTOS = 16
# Seconds that a client waits for an answer.
PATIENCE = 30
# Seconds after which a client uses a connection no more: the server may just be letting go of it.
KEPT = 2
PROMISED = (
    "POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    "Content-Type: image/jpeg\r\nContent-Length: {length}\r\n\r\n"
)


def photo(seed: int) -> bytes:
    """A drawing of 640 × 480 pixels."""
    random = np.random.default_rng(seed)
    image = Image.fromarray(random.integers(0, 80, (480, 640, 3), dtype=np.uint8))
    colour = COLOURS[seed % 3]
    left, top = (int(part) for part in random.integers(50, 200, 2))
    ImageDraw.Draw(image).ellipse((left, top, left + 250, top + 200), fill=colour)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=85)
    return stream.getvalue()


class Server(NamedTuple):
    """`gpcache serve` as a process of its own."""

    process: subprocess.Popen[bytes]
    address: str
    token: str

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def client(self) -> httpx.Client:
        """A client that is allowed to change the workspace."""
        return httpx.Client(base_url=self.address, headers=self.headers, timeout=120)

    def memory(self) -> float:
        """Resident megabytes of the server and of the processes that decode for it."""
        own = Path(f"/proc/{self.process.pid}")
        children = " ".join(file.read_text() for file in own.glob("task/*/children")).split()
        pages = 0
        for process in (own, *(Path(f"/proc/{child}") for child in children)):
            with suppress(OSError):  # it may have ended just now
                pages += int((process / "statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6


@contextmanager
def served(
    workspace: Path, *options: str, photos: int = 15, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """A server, stopped at the end, that learned drawings of three classes."""
    command = [sys.executable, "-m", "gpcache", "serve", "--port", "0", "--json", "--workspace"]
    process = subprocess.Popen(
        [*command, workspace, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        server = Server(process, ready["address"], ready["token"])
        with server.client() as client:
            for number in range(photos):
                add_photo(client, number)
        yield server
    finally:
        process.terminate()
        process.wait(30)


def add_photo(client: httpx.Client, number: int) -> str:
    """Add a drawing to a workspace; returns its name once that is acknowledged."""
    name = f"{number}.jpg"
    files, label = [("files", (name, photo(number)))], COLOURS[number % 3]
    client.post("/v1/examples", data={"label": label}, files=files).raise_for_status()
    return name


class Answer(NamedTuple):
    """The status of a request, 0 where none came; when it came, and after how many seconds."""

    status: int
    at: float
    seconds: float
    retry: bool


class Clients:
    """Clients by hand, as light as can be: they all share one core."""

    def __init__(self, server: Server) -> None:
        self._port = server.port
        self._requests = [
            PROMISED.format(token=server.token, length=len(image)).encode() + image
            for image in (photo(100 + number) for number in range(PHOTOS))
        ]
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, number: int) -> Answer:
        """One request, on a connection that no other uses meanwhile."""
        start, status, head = time.perf_counter(), 0, b""
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(PATIENCE):
                reader, writer = await self._connected()
                try:
                    writer.write(self._requests[number % PHOTOS])
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
                    status = int(head.split()[1])
                    self._idle.append((time.perf_counter(), reader, writer))
                finally:
                    if not status:
                        writer.close()
        end = time.perf_counter()
        return Answer(status, end, end - start, b"\r\nretry-after: " in head)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            used, reader, writer = self._idle.pop()
            gone = reader.at_eof() or writer.is_closing()
            if not gone and time.perf_counter() - used < KEPT:
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)


async def closed_loop(server: Server, count: int, seconds: float) -> list[Answer]:
    """Clients that ask one after the other; what they got in time."""
    clients, found = Clients(server), []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        while time.perf_counter() < end:
            found.append(await clients.ask(number))
            number += 1

    await asyncio.gather(*(client(number) for number in range(count)))
    return [answer for answer in found if answer.at <= end]


class Load(NamedTuple):
    """What was asked a second, the answers, those in time a second, and megabytes by second.

    `client` is the share of its core that asking took.
    """

    offered: float
    answers: list[Answer]
    goodput: float
    memory: list[float]
    client: float

    def summary(self) -> str:
        """The number of answers by status, and of refusals without Retry-After."""
        counts = Counter(answer.status for answer in self.answers)
        refused = [answer for answer in self.answers if answer.status in (429, 503)]
        without = sum(not answer.retry for answer in refused)
        statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(counts.items()))
        return f"answers {statuses}; {without} of {len(refused):,} refusals without Retry-After"


async def open_loop(server: Server, rate: float, seconds: float) -> Load:
    """Requests that come at random, `rate` a second, whether or not the others are answered."""
    clients, random = Clients(server), np.random.default_rng(0)
    tasks: list[asyncio.Task[Answer]] = []
    memory: list[float] = []
    start = due = time.perf_counter()
    end = start + seconds

    async def watch() -> None:
        while True:
            memory.append(server.memory())
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    processor = time.process_time()
    while (due := due + random.exponential(1 / rate)) < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if time.perf_counter() > end:
            break  # this machine cannot ask so often
        tasks.append(asyncio.create_task(clients.ask(len(tasks))))
    answers = list(await asyncio.gather(*tasks))
    watching.cancel()
    client = (time.process_time() - processor) / seconds
    good = sum(answer.status == 200 and answer.at <= end for answer in answers)
    return Load(len(tasks) / seconds, answers, good / seconds, memory, client)


def milliseconds(times: list[float], q: float) -> float:
    """A quantile of seconds, in milliseconds."""
    return 1000 * float(np.quantile(times, q))


def direct(count: int = 64) -> float:
    """Images a second of the encoder, called directly: decoding and encoding in batches."""
    encoder, images = load_encoder("lite"), [photo(100 + number) for number in range(PHOTOS)]
    encoder.encode_images(images)
    return count / least(lambda: encoder.encode_images(images[k % PHOTOS] for k in range(count)))


def answered(server: Server, clients: int, seconds: float) -> tuple[float, list[str], int]:
    """Photos a second, p50 and p99 in milliseconds, and how many were not answered."""
    asyncio.run(closed_loop(server, clients, 2))
    answers = asyncio.run(closed_loop(server, clients, seconds))
    times = [answer.seconds for answer in answers if answer.status == 200]
    late = [f"{milliseconds(times, q):.0f}" for q in (0.5, 0.99)]
    return len(times) / seconds, late, len(answers) - len(times)


def throughput(server: Server, seconds: float, alone: float) -> tuple[list[list[object]], float]:
    """A row for each concurrency, with its ratio to the encoder `alone`; and the capacity."""
    rows, best = [], 0.0
    for concurrency in CONCURRENCY:
        rate, late, lost = answered(server, concurrency, seconds)
        best = max(best, rate)
        rows.append([concurrency, f"{rate:.1f}", f"{rate / alone:.2f}", *late, lost])
    return rows, best


async def slow_clients(server: Server, seconds: float) -> tuple[float, float]:
    """p99 in milliseconds of one client, idle and beside connections that are just fast enough."""

    async def waited() -> float:
        answers = await closed_loop(server, 1, seconds)
        return milliseconds([answer.seconds for answer in answers], 0.99)

    async def drip(bodies: list[socket.socket]) -> None:
        while True:
            for stream in bodies:
                stream.sendall(b"x" * 1_500)
                await asyncio.sleep(1 / len(bodies))

    idle = await waited()
    promised = PROMISED.format(token=server.token, length=100_000)
    with ExitStack() as held:
        streams = [
            held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(SLOW)
        ]
        for number, stream in enumerate(streams):
            stream.sendall(("GET / HT" if number % 2 else promised).encode())
        dripping = asyncio.create_task(drip(streams[::2]))
        beside = await waited()
        assert not dripping.done(), "A connection was let go too early."
        dripping.cancel()
    return idle, beside


def change_at_1600() -> float:
    """Milliseconds from a photo's features to new figures, the median of ten."""
    random = np.random.default_rng(0)
    classes, each = 40, 40
    with tempfile.TemporaryDirectory() as temporary:
        opened = open_workspace(temporary)
        dim = opened.encoder.dim
        centres = random.normal(size=(classes, dim))

        def read(number: int) -> EncodedPhoto:
            row = centres[number % classes] + 1.2 * random.normal(size=dim)
            features = (row / np.linalg.norm(row)).astype(np.float32)
            encoded = EncodedPhoto(f"{number}", features, name=f"{number}.jpg")
            opened.folder.put(encoded)
            return encoded

        def begin(contents: Contents) -> Contents:
            for number in range(classes):
                contents = contents.with_class(f"class {number}")
            found = [read(number) for number in range(classes * each)]
            return contents.with_photos(
                Photo(f"p{number + 1}", one.name, f"class {number % classes}", one.hash)
                for number, one in enumerate(found)
            )

        opened.change(begin, "filling", None)
        opened.document = replace(opened.document, next_id=classes * each + 1)
        times = []
        for number in range(10):
            one = read(classes * each + number)
            times.append(least(partial(opened.add, [one], f"class {number}", None)))
        opened.folder.close()
    return milliseconds(times, 0.5)


def main() -> None:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.5, help="of overload, and of the soak")
    minutes = parser.parse_args().minutes
    # Open loops hold many connections.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    *cores, last = sorted(os.sched_getaffinity(0))
    if not cores:
        sys.exit("The client needs a core of its own: run this on two cores or more.")
    os.sched_setaffinity(0, cores)  # the server inherits them
    alone = direct()
    with tempfile.TemporaryDirectory() as temporary, served(Path(temporary)) as server:
        os.sched_setaffinity(0, [last])
        rows, capacity = throughput(server, 10, alone)
        # Headers have ten seconds.
        idle, beside = asyncio.run(slow_clients(server, 8))
        before = server.memory()
        over = asyncio.run(open_loop(server, 10 * capacity, 60 * minutes))
        # Other work makes the speed of a machine drift: what it can do is asked on both sides.
        after = asyncio.run(closed_loop(server, max(CONCURRENCY), 20))
        able = (capacity + sum(answer.status == 200 for answer in after) / 20) / 2
        # The first half minute warms allocators up.
        asyncio.run(open_loop(server, 0.7 * capacity, min(30, 20 * minutes)))
        soak = asyncio.run(open_loop(server, 0.7 * capacity, 60 * minutes))
    os.sched_setaffinity(0, [*cores, last])
    change = change_at_1600()
    slope = 60 * float(np.polyfit(np.arange(len(soak.memory)), soak.memory, 1)[0])
    head = ["requests at once", "photos a second", "ratio", "p50 ms", "p99 ms", "not answered"]
    write_page(
        "serving",
        "The server under load",
        f"Drawings of 640 × 480 pixels through `lite`. The client has one core, the server "
        f"{plural(len(cores), 'other core')}. *Ratio* is to calling the encoder directly on the "
        "same cores as the server, decoding included; the highest rate is the capacity.",
        table([head, *rows]),
        f"* {SLOW} slow connections: p99 {beside:.0f} ms, idle {idle:.0f} ms "
        f"({beside / idle:.2f}×; to be below 2×).\n"
        f"* Overload for {minutes:g} minutes, requests at random times, independent of the "
        f"answers: {over.offered:.0f} a second offered, {over.offered / capacity:.1f} times the "
        f"capacity; goodput {over.goodput:.1f} a second, {over.goodput / able:.0%} of the mean of "
        f"the capacities before and after (to be at least 90 %), where asking took "
        f"{over.client:.0%} of the client's core; {over.summary()}; memory {before:.0f} MB before, "
        f"{max(over.memory):.0f} MB at most.\n"
        f"* Soak for {minutes:g} minutes at {soak.offered / capacity:.0%} of the capacity: "
        f"{soak.summary()}; memory {soak.memory[0]:.0f} → {soak.memory[-1]:.0f} MB, "
        f"{slope:+.1f} MB a minute.\n"
        f"* A photo added at n = 1,600: new figures {change:.0f} ms after its features (to be "
        "below 300 ms).",
    )


if __name__ == "__main__":
    main()
