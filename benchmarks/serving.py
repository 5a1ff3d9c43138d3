"""How the server holds up: against the encoder alone, slow clients, too much load, and a soak.

`python benchmarks/serving.py` takes minutes; `--minutes 10` makes overload and soak that long.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
from pages import table, write_page
from PIL import Image, ImageDraw

from gpcache import load_encoder
from gpcache.web.contents import Contents, Photo
from gpcache.web.editor import Editor, Read
from gpcache.web.opening import open_workspace
from gpcache.web.workspace import Stored

CONCURRENCY = (1, 8, 64)
SLOW = 500
JPEG = {"content-type": "image/jpeg"}
PROMISED = (
    "POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    "Content-Type: image/jpeg\r\nContent-Length: 100000\r\n\r\n"
)


def photo(seed: int) -> bytes:
    """A drawing of 640 × 480 pixels."""
    random = np.random.default_rng(seed)
    image = Image.fromarray(random.integers(0, 80, (480, 640, 3), dtype=np.uint8))
    colour = ("red", "lime", "blue")[seed % 3]
    left, top = (int(part) for part in random.integers(50, 200, 2))
    ImageDraw.Draw(image).ellipse((left, top, left + 250, top + 200), fill=colour)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=85)
    return stream.getvalue()


class Server:
    """`gpcache serve` as a process of its own, with three classes of five photos."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "gpcache", "serve", "--port", "0", "--workspace"]
        self._process = subprocess.Popen(
            [*command, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        address, _, self.token = self._process.stdout.readline().strip().partition("/?token=")
        self.address, self.port = address, int(address.rpartition(":")[2])
        self.headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=address, headers=self.headers, timeout=120) as client:
            for seed in range(15):
                files = [("files", (f"{seed}.jpg", photo(seed)))]
                data = {"label": ("red", "lime", "blue")[seed % 3]}
                client.post("/v1/examples", data=data, files=files).raise_for_status()

    def memory(self) -> float:
        """Resident megabytes."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * 4096 / 1e6

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


async def load(
    server: Server, concurrency: int, seconds: float, *, rate: float | None = None
) -> tuple[Counter[int], list[float]]:
    """Clients that ask one after the other; statuses, and seconds of the good answers.

    With `rate`, all of them together ask so often a second, whatever comes back.
    """
    images = [photo(100 + k) for k in range(16)]
    statuses: Counter[int] = Counter()
    times: list[float] = []
    end = time.perf_counter() + seconds
    limits = httpx.Limits(max_connections=concurrency)

    async def client(number: int, session: httpx.AsyncClient) -> None:
        place = number
        while time.perf_counter() < end:
            start = time.perf_counter()
            try:
                answer = await session.post("/v1/predict", content=images[place % 16], headers=JPEG)
                statuses[answer.status_code] += 1
                if answer.status_code == 200:
                    times.append(time.perf_counter() - start)
            except httpx.HTTPError:
                statuses[0] += 1
            place += 1
            if rate is not None:
                spent = time.perf_counter() - start
                await asyncio.sleep(max(0.0, concurrency / rate - spent))

    async with httpx.AsyncClient(
        base_url=server.address, headers=server.headers, timeout=60, limits=limits
    ) as session:
        await asyncio.gather(*(client(number, session) for number in range(concurrency)))
    return statuses, times


def milliseconds(times: list[float], q: float) -> float:
    """A quantile of seconds, in milliseconds."""
    return 1000 * float(np.quantile(times, q))


def direct(count: int = 64) -> float:
    """Images a second of the encoder, called directly: decoding and encoding in batches."""
    encoder = load_encoder("lite")
    images = [photo(100 + k) for k in range(16)]
    encoder.encode_images(images)
    start = time.perf_counter()
    encoder.encode_images(images[k % 16] for k in range(count))
    return count / (time.perf_counter() - start)


def throughput(server: Server, seconds: float) -> tuple[list[list[object]], float]:
    """A row for each concurrency, and the capacity."""
    alone = direct()
    rows, best = [], 0.0
    for concurrency in CONCURRENCY:
        asyncio.run(load(server, concurrency, 2))
        statuses, times = asyncio.run(load(server, concurrency, seconds))
        rate = len(times) / seconds
        best = max(best, rate)
        rows.append(
            [concurrency, f"{rate:.1f}", f"{rate / alone:.2f}"]
            + [f"{milliseconds(times, q):.0f}" for q in (0.5, 0.99)]
            + [statuses[429]]
        )
    return rows, best


def slow_clients(server: Server, seconds: float) -> tuple[float, float]:
    """p99 in milliseconds of one client, idle and beside slow connections."""
    _, idle = asyncio.run(load(server, 1, seconds))
    streams = []
    for number in range(SLOW):
        stream = socket.create_connection(("127.0.0.1", server.port))
        text = "GET / HT" if number % 2 else PROMISED.format(token=server.token)
        stream.sendall(text.encode())
        streams.append(stream)
    _, beside = asyncio.run(load(server, 1, min(seconds, 8)))
    for stream in streams:
        stream.close()
    return milliseconds(idle, 0.99), milliseconds(beside, 0.99)


def change_at_1600() -> float:
    """Milliseconds from a photo's features to new figures, the median of ten."""
    random = np.random.default_rng(0)
    classes, each = 40, 40
    with tempfile.TemporaryDirectory() as temporary:
        opened = open_workspace(temporary)
        editor, dim = Editor(opened), opened.encoder.dim
        centres = random.normal(size=(classes, dim))

        def read(number: int) -> Read:
            row = centres[number % classes] + 1.2 * random.normal(size=dim)
            features = (row / np.linalg.norm(row)).astype(np.float32)
            opened.workspace.put(f"{number}", Stored(features, b""))
            return Read(f"{number}.jpg", f"{number}", features)

        def begin(contents: Contents) -> Contents:
            for number in range(classes):
                contents = contents.with_class(f"class {number}")
            found = [read(number) for number in range(classes * each)]
            return contents.with_photos(
                Photo(f"p{number + 1}", one.name, f"class {number % classes}", one.hash)
                for number, one in enumerate(found)
            )

        editor.change(begin, "filling", None)
        editor.document = replace(editor.document, next_id=classes * each + 1)
        times = []
        for number in range(10):
            one = read(classes * each + number)
            start = time.perf_counter()
            editor.add([one], [], f"class {number}", None)
            times.append(time.perf_counter() - start)
        opened.workspace.close()
    return milliseconds(times, 0.5)


def main() -> None:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.5, help="of overload, and of the soak")
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(Path(temporary))
        rows, capacity = throughput(server, 10)
        idle, beside = slow_clients(server, 10)
        before = server.memory()
        statuses, good = asyncio.run(load(server, 256, 60 * minutes, rate=10 * capacity))
        after = server.memory()
        # The first minute warms allocators up.
        asyncio.run(load(server, 8, min(60, 30 * minutes), rate=0.7 * capacity))
        start = server.memory()
        asyncio.run(load(server, 8, 60 * minutes, rate=0.7 * capacity))
        grown = server.memory() - start
        server.stop()
    goodput = len(good) / (60 * minutes) / capacity
    asked = sum(statuses.values()) / (60 * minutes) / capacity
    change = change_at_1600()
    head = ["requests at once", "photos a second", "ratio", "p50 ms", "p99 ms", "429"]
    write_page(
        "serving",
        "The server under load",
        "Drawings of 640 × 480 pixels through `lite`; client and server share the machine. "
        "*Ratio* is to calling the encoder directly, decoding included, in the same run.",
        table([head, *rows]),
        f"* {SLOW} slow connections: p99 {beside:.0f} ms, idle {idle:.0f} ms "
        f"({beside / idle:.2f}×).\n"
        f"* {asked:.1f} times the capacity for {minutes:g} minutes (ten times, where the client, "
        f"which shares the machine, can): goodput {goodput:.0%} of the capacity, "
        f"answers {dict(statuses)}; memory {before:.0f} → {after:.0f} MB.\n"
        f"* {minutes:g} minutes at 70 % of the capacity: memory grew by {grown:.1f} MB.\n"
        f"* A photo added at n = 1,600: new figures {change:.0f} ms after its features.",
    )


if __name__ == "__main__":
    main()
