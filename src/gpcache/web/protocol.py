"""uvicorn's protocol with deadlines for slow clients, and refusals that cost next to nothing."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpcache.web.encoding import RETRY_AFTER
from gpcache.web.middleware import SECURITY_HEADERS, brings_photos

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MAX_CONNECTIONS = 512
# Bytes per second of a body that is large but not slow: it may continue after its deadline.
LARGE_RATE = 1_000_000
# Bytes of a refused body that are waited for: asyncio reads as many at once.
PIECE = 2**18
# A request with a body, as most clients write it: path, lines of the head.
USUAL_POST = re.compile(rb"POST (/[!-~]*) HTTP/1\.1\r\n((?:[\w-]+:[\t -~]*\r\n)+)\r\n")


class DeadlineProtocol(H11Protocol):
    """uvicorn's protocol, with limits that uvicorn does not have.

    A head and a body must arrive in time, and there are never more connections than this process
    has descriptors for: asyncio would log a traceback for each further one. (uvicorn's
    limit_concurrency counts requests, and ignores connections without one.)

    While there is no place for photos, they are refused here: h11 and the application would take
    several times as long, at the expense of the photos that have a place.
    """

    head_seconds = 10.0
    body_seconds = 30.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._service = self.config.app.state.service  # type: ignore[union-attr]
        self._awaited: tuple[object, ...] | None = None
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received = 0
        self._refused = 0
        self._unwanted = 0  # bytes of a refused request that are still to come
        self._awaited_bytes = 1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            transport.abort()
        else:
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        while data and (self._unwanted or self._refuse(data)):
            skipped = min(self._unwanted, len(data))
            self._unwanted -= skipped
            data = data[skipped:]
        if data:
            super().data_received(data)
        self._wait_for_bytes()
        self._set_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_deadline()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, which never reaches the application, in our format."""
        self._send_error(400, msg, (b"connection", b"close"))
        self.transport.close()

    def _refuse(self, data: bytes) -> bool:
        """Refuse a request that begins here, if it brings photos and there is no place for them.

        h11 and the application decide about unusual requests, in the same way.
        """
        idle = self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE
        # The application waits for a client that does not read its answers.
        if not idle or self.conn.trailing_data[0] or self.flow.write_paused:
            return False
        start, size = time.perf_counter(), photo_request_size(data)
        if size is None or (busy := self._service.encoding.busy()) is None:
            return False
        if self.timeout_keep_alive_task is not None:  # our own deadline follows
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._send_error(429, str(busy), (b"retry-after", b"%d" % RETRY_AFTER))
        self._refused, self._unwanted = self._refused + 1, size
        self._service.metrics.request("POST", None, 429, time.perf_counter() - start)
        return True

    def _wait_for_bytes(self) -> None:
        """Let the system gather a refused body, which it would hand over in many small parts."""
        count = max(1, min(self._unwanted, PIECE))
        # Of an encrypted body it cannot know how much is still to come.
        if count == self._awaited_bytes or self.scheme == "https":
            return
        self._awaited_bytes = count
        own = self.transport.get_extra_info("socket")
        with suppress(OSError, AttributeError):  # not on Windows; or the connection was lost
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _send_error(self, status: int, sentence: str, header: tuple[bytes, bytes]) -> None:
        further = (header, *self.server_state.default_headers)
        self.transport.write(error_answer(status, sentence, further))

    def _set_deadline(self) -> None:
        """Set the deadline for what the client sends next: a head, a body or a new request."""
        state = h11.SEND_BODY if self._unwanted else self.conn.their_state
        begun = bool(self.conn.trailing_data[0])
        expected = (state, begun, self.cycle, self._refused)
        awaited = expected if state in (h11.IDLE, h11.SEND_BODY) else None
        if awaited == self._awaited:
            return
        self._awaited, self._received = awaited, 0
        self._due = None
        if awaited is not None:
            answered = self.cycle is not None or self._refused > 0
            between = state is h11.IDLE and not begun and answered
            head = self.timeout_keep_alive if between else self.head_seconds
            self._wait(self.body_seconds if state is h11.SEND_BODY else head)

    def _wait(self, seconds: float) -> None:
        """Give up after these seconds, unless the deadline is moved.

        A timer that ends earlier stays and is set again then: most deadlines are soon moved.
        """
        self._due = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._due, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if self._due is None:  # nothing is awaited
            return
        left = self._due - self.loop.time()
        large = self._received > LARGE_RATE * self.body_seconds
        if left > 0:
            self._wait(left)
        elif large or self.flow.read_paused:  # the client is not slow
            self._received = 0
            self._wait(self.body_seconds)
        else:
            self.transport.abort()


@lru_cache(maxsize=128)
def error_answer(status: int, sentence: str, further: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """An answer like those of the application; most of a second are equal."""
    body = json.dumps({"error": sentence}, separators=(",", ":")).encode()
    own = {"content-type": "application/json", "content-length": str(len(body))}
    lines = [f"{name}: {value}".encode() for name, value in (own | SECURITY_HEADERS).items()]
    lines += [name + b": " + value for name, value in further]
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()
    return b"\r\n".join([first, *lines, b"", body])


def photo_request_size(data: bytes) -> int | None:
    """Bytes of the usual request with photos whose head begins the data; None for any other."""
    head = USUAL_POST.match(data)
    if head is None:
        return None
    lines = head[2].decode().splitlines()
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    length = headers.get("content-length", "")
    if (
        len(headers) < len(lines)  # one is repeated
        or "transfer-encoding" in headers
        or "expect" in headers
        or headers.get("connection", "keep-alive").lower() != "keep-alive"
        or not (length.isdecimal() and len(length) <= 12)
    ):
        return None
    path, size = head[1].partition(b"?")[0].decode(), int(length)
    return head.end() + size if brings_photos("POST", path, headers, size) else None


def max_connections() -> int:
    """The largest number of connections: half of the descriptors."""
    if resource is None:
        return MAX_CONNECTIONS
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if descriptors < 0 else min(MAX_CONNECTIONS, descriptors // 2)
