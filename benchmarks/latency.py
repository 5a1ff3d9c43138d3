"""Times that must stay below their bars; the exit status is 1 if a bar is missed.

    python benchmarks/latency.py

Wall-clock time depends on the machine, so these are not tests. Run this on a quiet machine.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from pages import table
from PIL import Image
from serving import Server, photo

from gpcache.errors import ImageRefusedError
from gpcache.images import decode
from gpcache.images.preprocess import Preprocess
from gpcache.images.workers import DecodePool

ASKED = 60


def bomb(side: int) -> bytes:
    """A PNG of side × side pixels that has a few kilobytes."""
    stream = io.BytesIO()
    Image.new("1", (side, side)).save(stream, "PNG")
    return stream.getvalue()


def refusing(side: int) -> float:
    """CPU seconds until a picture of too many pixels is refused."""
    decode(photo(0))  # Pillow loads its formats at the first picture
    data = bomb(side)
    start = time.process_time()
    try:
        decode(data)
    except ImageRefusedError:
        return time.process_time() - start
    raise SystemExit(f"A picture of {side} × {side} pixels was not refused.")


def small_answer(folder: Path) -> float:
    """Seconds of the quickest small answers on one connection.

    A server that waits for the client's acknowledgement of the first half takes 40 ms. The first
    acknowledgements of a connection are quick, so they do not count.
    """
    server = Server(folder)
    head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    times = []
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as stream:
            for _ in range(ASKED):
                start = time.perf_counter()
                stream.sendall(f"GET /v2/health/live HTTP/1.1\r\n{head}".encode())
                answer = b""
                while not answer.endswith(b"}"):
                    answer += stream.recv(65_536)
                times.append(time.perf_counter() - start)
    finally:
        server.stop()
    return min(times[ASKED // 2 :])


def cancelling() -> float:
    """Seconds from cancelling a decode that hangs to the answer of the next one."""
    with DecodePool(Preprocess(size=32), workers=1) as pool:
        pool.submit(photo(0), "first").result()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGSTOP)
        hanging = pool.submit(photo(1), "hanging")
        time.sleep(0.2)
        wanted = pool.submit(photo(2), "wanted")
        start = time.perf_counter()
        hanging.cancel()
        wanted.result()
        return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        found = [
            ("refuse 88 million pixels (CPU seconds)", refusing(9_400), 0.05),
            ("refuse 144 million pixels (CPU seconds)", refusing(12_000), 0.05),
            ("a small answer on an open connection (seconds)", small_answer(Path(folder)), 0.03),
            ("the next picture after a cancelled decode (seconds)", cancelling(), 20),
        ]
    rows = [(what, f"{seconds:.4f}", bar) for what, seconds, bar in found]
    print(table([("what", "measured", "bar"), *rows]))
    sys.exit(any(seconds > bar for _, seconds, bar in found))


if __name__ == "__main__":
    main()
