"""How the server holds up: against the encoder alone, slow clients, too much load, and a soak.

`python benchmarks/serving.py` takes about three minutes; `--minutes 10` gives overload and soak ten
each.
"""

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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
from development_data import points
from measuring import least
from pages import table, text, write_page
from PIL import Image, ImageDraw

from gpcache import load_encoder
from gpcache.images.records import plural
from gpcache.web.open_workspace import open_workspace
from gpcache.web.workspace_contents import Contents, Photo
from gpcache.web.workspace_folder import EncodedPhoto

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "cluster"))
from ray_nodes import descendants

CONCURRENCY = (1, 8, 64)
HEAD = ["requests at once", "photos a second", "ratio", "p50 ms", "p99 ms", "not answered"]
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
    random, stream = np.random.default_rng(seed), io.BytesIO()
    image = Image.fromarray(random.integers(0, 80, (480, 640, 3), dtype=np.uint8))
    x, y = random.integers(50, 200, 2).tolist()
    ImageDraw.Draw(image).ellipse((x, y, x + 250, y + 200), fill=COLOURS[seed % 3])
    image.save(stream, "JPEG", quality=85)
    return stream.getvalue()


class Server(NamedTuple):
    """`gpcache serve` as a process of its own."""

    process: subprocess.Popen[bytes]
    address: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def client(self) -> httpx.Client:
        """A client that is allowed to change the workspace."""
        return httpx.Client(base_url=self.address, headers=self.headers, timeout=120)

    def memory(self) -> float:
        """Resident megabytes of the server and of the processes that decode for it."""
        pages = 0
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with suppress(OSError):  # it may have ended just now
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6


@contextmanager
def served(
    workspace: Path, *options: str, photos: int = 15, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """A server, stopped at the end, that learned drawings of three classes."""
    command = [sys.executable, "-m", "gpcache", "serve", "--port", "0", "--json", "--workspace"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, workspace, *options], env=environment, **pipes)
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
    files = [("files", (name := f"{number}.jpg", photo(number)))]
    data = {"label": COLOURS[number % 3]}
    client.post("/v1/examples", data=data, files=files).raise_for_status()
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
        self._port = server.address.rpartition(":")[2]
        self._requests = [
            PROMISED.format(token=server.token, length=len(image)).encode() + image
            for image in (photo(100 + number) for number in range(PHOTOS))
        ]
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, number: int) -> Answer:
        """One request, on a connection that no other uses meanwhile."""
        start, status, head, writer = time.perf_counter(), 0, b"", None
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(PATIENCE):
                reader, writer = await self._connected()
                writer.write(self._requests[number % PHOTOS])
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
                status = int(head.split()[1])
                self._idle.append((time.perf_counter(), reader, writer))
        if writer and not status:
            writer.close()
        end = time.perf_counter()
        return Answer(status, end, end - start, b"\r\nretry-after: " in head)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            used, reader, writer = self._idle.pop()
            fresh = time.perf_counter() - used < KEPT
            if fresh and not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)


async def closed_loop(server: Server, count: int, seconds: float) -> list[Answer]:
    """Clients that ask one after the other; what they got in time."""
    clients, found, end = Clients(server), [], time.perf_counter() + seconds

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

    def __str__(self) -> str:
        """The number of answers by status, and of refusals without Retry-After."""
        counts = Counter(answer.status for answer in self.answers)
        refused = [answer for answer in self.answers if answer.status in (429, 503)]
        without = sum(not answer.retry for answer in refused)
        statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(counts.items()))
        return f"answers {statuses}; {without} of {len(refused):,} refusals without Retry-After"


async def open_loop(server: Server, rate: float, seconds: float) -> Load:
    """Requests that come at random, `rate` a second, whether or not the others are answered."""
    clients, random = Clients(server), np.random.default_rng(0)
    tasks, memory, due = [], [], time.perf_counter()
    end = due + seconds

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
    address = ("127.0.0.1", int(server.address.rpartition(":")[2]))
    with ExitStack() as held:
        streams = [held.enter_context(socket.create_connection(address)) for _ in range(SLOW)]
        for number, stream in enumerate(streams):
            stream.sendall(("GET / HT" if number % 2 else promised).encode())
        dripping = asyncio.create_task(drip(streams[::2]))
        beside = await waited()
        assert not dripping.done(), "A connection was let go too early."
        dripping.cancel()
    return idle, beside


def change_after(classes: int = 40, each: int = 40) -> float:
    """Milliseconds from a photo's features to new figures, the median of ten."""
    with tempfile.TemporaryDirectory() as temporary:
        opened = open_workspace(temporary)
        rows = points(classes * each + 10, classes, opened.encoder.dim)[0].astype(np.float32)
        photos = [EncodedPhoto(f"{n}", row, name=f"{n}.jpg") for n, row in enumerate(rows)]
        for one in photos:
            opened.folder.put(one)
        names = [f"class {number % classes}" for number in range(classes * each)]

        def fill(contents: Contents) -> Contents:
            for name in names[:classes]:
                contents = contents.with_class(name)
            pairs = zip(photos, names, strict=False)
            return contents.with_photos(Photo(f"old{p.hash}", p.name, k, p.hash) for p, k in pairs)

        opened.change(fill, "filling", None)
        add = partial(opened.add, label="class 0", revision=None)
        times = [least(partial(add, [one])) for one in photos[classes * each :]]
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
    rows, capacity = [HEAD], 0.0
    with tempfile.TemporaryDirectory() as temporary, served(Path(temporary)) as server:
        os.sched_setaffinity(0, [last])
        for concurrency in CONCURRENCY:
            rate, late, lost = answered(server, concurrency, 10)
            capacity = max(capacity, rate)
            rows.append([concurrency, f"{rate:.1f}", f"{rate / alone:.2f}", *late, lost])
        # Headers have ten seconds.
        idle, beside = asyncio.run(slow_clients(server, 8))
        before = server.memory()
        over = asyncio.run(open_loop(server, 10 * capacity, 60 * minutes))
        # Other work makes the speed of a machine drift: what it can do is asked on both sides.
        able = (capacity + answered(server, max(CONCURRENCY), 20)[0]) / 2
        # The first half minute warms allocators up.
        asyncio.run(open_loop(server, 0.7 * capacity, min(30, 20 * minutes)))
        soak = asyncio.run(open_loop(server, 0.7 * capacity, 60 * minutes))
    os.sched_setaffinity(0, [*cores, last])
    change = change_after()
    measured = {
        "others": plural(len(cores), "other core"), "rows": table(rows), "minutes": minutes,
        "slow": SLOW, "idle": idle, "beside": beside, "times": beside / idle, "before": before,
        "over": over, "offered": over.offered / capacity, "goodput": over.goodput / able,
        "most": max(over.memory), "soak": soak, "soaked": soak.offered / capacity,
        "first": soak.memory[0], "last": soak.memory[-1], "change": change, "n": 1600,
        "kept": "kept" if change < 300 else "missed",
        "slope": 60 * float(np.polyfit(np.arange(len(soak.memory)), soak.memory, 1)[0]),
    }  # fmt: skip
    write_page("serving", "The server under load", text("serving", **measured))


if __name__ == "__main__":
    main()
