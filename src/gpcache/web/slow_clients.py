"""HTTP connections that slow clients cannot hold open, nor too many clients choke."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpcache.web.guard import SECURITY, TURN_AWAY

HEADER_SECONDS = 10.0
BODY_SECONDS = 30.0
# Bytes a second that a body must bring on average, once it has had time to start.
LEAST_RATE = 1_000
START_SECONDS = 3.0
TICK = 0.5


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol with clocks: headers, bodies and readers each have their time.

    What a busy server has no place for is turned away here, before a request is made of it: at too
    much load the time goes to the answers.
    """

    header_seconds = HEADER_SECONDS
    body_seconds = BODY_SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_clock: asyncio.TimerHandle | None = None
        self._body_clock: asyncio.TimerHandle | None = None
        self._reader_clock: asyncio.TimerHandle | None = None
        self._seconds = 0.0
        self._bytes = 0
        # Of a body that was turned away, what is still to come.
        self._unwanted = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio asks for it only where a socket names its protocol; without it, the second half of
        # an answer waits until the client has acknowledged the first, which takes 40 ms.
        stream = transport.get_extra_info("socket")
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        for clock in (self._header_clock, self._body_clock, self._reader_clock):
            if clock is not None:
                clock.cancel()
        self._header_clock = self._body_clock = self._reader_clock = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        data = self._without_unwanted(data)
        while data and self._begins and (found := self.app_state[TURN_AWAY](data)) is not None:
            self._unset_keepalive_if_required()
            answer, size = found
            self.transport.write(answer)
            self._unwanted = size
            data = self._without_unwanted(data)
        if data:
            super().data_received(data)
        self._set_clocks()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_clocks()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and thus reaches no application, like everything else."""
        body = json.dumps({"error": msg}).encode()
        headers = {"content-type": "application/json", "connection": "close"} | SECURITY
        start = h11.Response(status_code=400, headers=list(headers.items()), reason="Bad Request")
        for event in (start, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        """The client does not read what it asked for."""
        self.flow.pause_writing()
        if self._reader_clock is None:
            self._reader_clock = self.loop.call_later(self.body_seconds, self._give_up)

    def resume_writing(self) -> None:
        """The client reads again."""
        self.flow.resume_writing()
        if self._reader_clock is not None:
            self._reader_clock.cancel()
            self._reader_clock = None

    @property
    def _begins(self) -> bool:
        """Whether a request begins here, from a client that reads what it is told."""
        idle = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        return idle and not self.flow.write_paused

    def _without_unwanted(self, data: bytes) -> bytes:
        """What comes after the request that was turned away."""
        if self._unwanted == 0:
            return data
        rest = data[self._unwanted :]
        self._unwanted -= len(data) - len(rest)
        if self._unwanted == 0:
            self.on_response_complete()
        return rest

    def _set_clocks(self) -> None:
        state = self.conn.their_state
        if state is h11.SEND_BODY or self._unwanted:
            self._stop_header_clock()
            if self._body_clock is None:
                self._seconds, self._bytes = 0.0, 0
                self._body_clock = self.loop.call_later(TICK, self._tick)
            return
        if self._body_clock is not None:
            self._body_clock.cancel()
            self._body_clock = None
        if state is h11.IDLE and self.conn.trailing_data[0]:
            self._await_headers()
        else:
            # Answering takes the server's time; between requests uvicorn has a clock of its own.
            self._stop_header_clock()

    def _await_headers(self) -> None:
        if self._header_clock is None:
            self._header_clock = self.loop.call_later(self.header_seconds, self._give_up)

    def _stop_header_clock(self) -> None:
        if self._header_clock is not None:
            self._header_clock.cancel()
            self._header_clock = None

    def _tick(self) -> None:
        """Judge a body that is coming; while the server does not read, the client is not slow."""
        if not self.flow.read_paused:
            self._seconds += TICK
            started = self._seconds > START_SECONDS
            slow = started and self._bytes < LEAST_RATE * self._seconds
            if slow or self._seconds > self.body_seconds:
                self._give_up()
                return
        self._body_clock = self.loop.call_later(TICK, self._tick)

    def _give_up(self) -> None:
        self.transport.abort()
