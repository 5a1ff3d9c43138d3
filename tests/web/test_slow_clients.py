"""Clients that send or read next to nothing are let go, and hinder nobody."""

import socket
import time

import pytest

from gpcache.web.encoding import MAX_WAITING
from gpcache.web.protocol import DeadlineProtocol

TOKEN = "a-token-for-tests"
JPEG = {"content-type": "image/jpeg"}
START = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
PROMISED = START + "Content-Type: image/jpeg\r\nContent-Length: 100000\r\n\r\n"


@pytest.fixture(scope="module")
def hasty(shared):
    """A server whose clocks run fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeadlineProtocol, "head_seconds", 1.0)
        patch.setattr(DeadlineProtocol, "body_seconds", 3.0)
        yield shared


def ended(stream, within):
    """Whether the server closes a connection in time."""
    stream.settimeout(within)
    try:
        while stream.recv(4096):
            continue
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("sent", ["", "GET / HT", START, PROMISED, PROMISED + "x" * 100])
def test_silence_ends_a_connection(hasty, sent):
    with socket.create_connection(("127.0.0.1", hasty.port)) as stream:
        stream.sendall(sent.encode())
        begin = time.monotonic()
        assert ended(stream, 300)
        assert time.monotonic() - begin > 0.5


@pytest.mark.parametrize("sent", ["GET / HTTP/1.1\r\nX: ", PROMISED])
def test_dripping_does_not_help(hasty, sent):
    with socket.create_connection(("127.0.0.1", hasty.port)) as stream:
        stream.sendall(sent.encode())
        begin = time.monotonic()
        with pytest.raises(ConnectionError):  # noqa: PT012 - it breaks in the middle
            while time.monotonic() - begin < 300:
                stream.sendall(b"x")
                time.sleep(0.1)


def test_a_body_that_was_turned_away_is_under_the_same_clocks(hasty, monkeypatch):
    """And the connection is let go when nothing follows on it."""
    monkeypatch.setattr("gpcache.web.encoding.MAX_WAITING", 0)
    with (
        socket.create_connection(("127.0.0.1", hasty.port)) as silent,
        socket.create_connection(("127.0.0.1", hasty.port)) as idle,
    ):
        silent.sendall((PROMISED + "x" * 100).encode())
        idle.sendall((PROMISED + "x" * 100_000).encode())
        assert silent.recv(4096).startswith(b"HTTP/1.1 429")
        assert ended(silent, 300)
        assert ended(idle, 300)


def test_a_body_that_was_turned_away_has_the_time_of_a_body(hasty, monkeypatch):
    """The earlier clock, that of the head, ends in the pause."""
    monkeypatch.setattr("gpcache.web.encoding.MAX_WAITING", 0)
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=300) as stream:
        stream.sendall((PROMISED + "x" * 100).encode())
        assert stream.recv(4096).startswith(b"HTTP/1.1 429")
        time.sleep(1.5)
        stream.sendall(("x" * 99_900 + PROMISED).encode())
        assert stream.recv(4096).startswith(b"HTTP/1.1 429")


def test_a_pause_between_requests_is_no_slowness(hasty, photo):
    for pause in (1.5, 0):  # longer than headers may take
        answer = hasty.client.post("/v1/predict", content=photo("red"), headers=JPEG)
        assert answer.status_code == 200
        time.sleep(pause)


def test_a_steady_upload_may_take_its_time(hasty, photo):
    image = photo("red", side=120)
    with socket.create_connection(("127.0.0.1", hasty.port)) as stream:
        length = f"Content-Type: image/jpeg\r\nContent-Length: {len(image)}\r\n\r\n"
        stream.sendall((START + length).encode())
        step = len(image) // 10 + 1
        for place in range(0, len(image), step):
            stream.sendall(image[place : place + step])
            time.sleep(0.12)
        stream.settimeout(300)
        assert stream.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_large_upload_may_take_longer(hasty):
    """Five seconds, where a body has three: it brings three megabytes a second."""
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=300) as stream:
        kind = "Content-Type: image/jpeg\r\n"
        stream.sendall(f"{START}{kind}Content-Length: {15_000_000}\r\n\r\n".encode())
        for _ in range(15):
            stream.sendall(bytes(1_000_000))
            time.sleep(0.33)
        assert stream.recv(4096).startswith(b"HTTP/1.1 400")  # it is no image


def test_many_slow_clients_keep_nobody_waiting(hasty, photo):
    """More of them promise photos than there are places for requests with photos."""
    streams = [socket.create_connection(("127.0.0.1", hasty.port)) for _ in range(150)]
    assert len(streams) // 2 > MAX_WAITING
    try:
        for number, stream in enumerate(streams):
            stream.sendall(("GET / HT" if number % 2 else PROMISED).encode())
        for _ in range(5):
            answer = hasty.client.post("/v1/predict", content=photo("red"), headers=JPEG)
            assert answer.status_code == 200
        assert all(ended(stream, 300) for stream in streams)
    finally:
        for stream in streams:
            stream.close()
