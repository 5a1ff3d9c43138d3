"""A busy server turns photos away at next to no cost, and everything else goes on."""

import json
import re
import socket
import struct
import sys
import threading
import time
from contextlib import ExitStack

import httpx
import pytest

from gpcache.web.middleware import SECURITY_HEADERS
from gpcache.web.protocol import DeadlineProtocol, photo_request_size

TOKEN = "a-token-for-tests"
JPEG = {"content-type": "image/jpeg"}
HEAD = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
PHOTO = f"POST /v1/predict HTTP/1.1\r\n{HEAD}Content-Type: image/jpeg\r\n"
ASK = f"GET /v2/health/live HTTP/1.1\r\n{HEAD}\r\n"


@pytest.fixture
def busy(shared, monkeypatch):
    """The server without a place for photos."""
    monkeypatch.setattr("gpcache.web.encoding.MAX_WAITING", 0)
    return shared


@pytest.fixture
def stream(shared):
    with socket.create_connection(("127.0.0.1", shared.port), timeout=300) as stream:
        yield stream


def statuses(stream, count):
    """The statuses of so many answers on one connection."""
    text, found = b"", []
    while len(found) < count:
        head, blank, rest = text.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if blank and length and len(rest) >= int(length[1]):
            found.append(int(head.split()[1]))
            text = rest[int(length[1]) :]
        else:
            part = stream.recv(65_536)
            assert part, f"the connection ended after {found}"
            text += part
    return found


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1/predict", {"content": b"photo", "headers": JPEG}),
        ("/v1/predict?top=3", {"files": {"files": ("a.jpg", b"photo")}}),
        ("/v1/examples", {"files": {"files": ("a.jpg", b"photo")}, "data": {"label": "red"}}),
        ("/v1/pool", {"files": {"files": ("a.jpg", b"photo")}}),
        ("/v2/models/workspace/infer", {"json": {"inputs": []}}),
    ],
)
def test_photos_are_told_to_come_back(busy, path, sent):
    answer = busy.client.post(path, **sent)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert "try again" in answer.json()["error"]
    assert (
        answer.headers.items() >= (SECURITY_HEADERS | {"content-type": "application/json"}).items()
    )


def test_everything_else_goes_on(busy):
    assert busy.client.get("/v1/state").status_code == 200
    assert busy.client.get("/v2/health/ready").status_code == 200
    assert busy.client.post("/v1/undo", headers={"If-Match": "0"}).status_code == 409
    wrong = busy.client.patch("/v1/examples", json={"ids": ["p0"], "label": "red"})
    assert "no photo 'p0'" in wrong.json()["error"]


def test_those_turned_away_are_counted(busy):
    def counts():
        text = busy.client.get("/metrics").text
        away = re.search(r"gpcache_turned_away_total (\d+)", text)
        answered = re.search(r'method="POST",route="other",status="429"} (\d+)', text)
        return [int(found[1]) if found else 0 for found in (away, answered)]

    before = counts()
    for _ in range(3):
        busy.client.post("/v1/predict", content=b"photo", headers=JPEG)
    assert counts() == [count + 3 for count in before]


def test_a_stranger_learns_no_more_than_that(busy):
    with httpx.Client(base_url=busy.address) as stranger:
        known = busy.client.post("/v1/predict", content=b"photo", headers=JPEG)
        answer = stranger.post("/v1/predict", content=b"photo", headers=JPEG)
        assert (answer.status_code, answer.content) == (429, known.content)
        assert stranger.get("/v1/state").status_code == 401


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("piece", [1_000_000, 5_000, 999, 61])
def test_a_body_that_is_not_wanted_is_skipped_to_its_last_byte(stream, piece):
    """It holds what looks like a request, and others follow at once on the same connection."""
    body = ("x" * 20_000 + "\r\n\r\n" + ASK).encode()
    photos = f"{PHOTO}Content-Length: {len(body)}\r\n\r\n".encode() + body
    sent = photos + photos + ASK.encode() + photos
    for place in range(0, len(sent), piece):
        stream.sendall(sent[place : place + piece])
    assert statuses(stream, 4) == [429, 429, 200, 429]


@pytest.mark.usefixtures("busy")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows hands over every part at once")
def test_a_body_that_is_not_wanted_is_read_in_few_parts(stream, monkeypatch):
    """However it arrives: each part would interrupt the work on other photos."""
    sizes, read = [], DeadlineProtocol.data_received

    def counted(self, data):
        sizes.append(len(data))
        read(self, data)

    monkeypatch.setattr(DeadlineProtocol, "data_received", counted)
    stream.sendall(f"{PHOTO}Content-Length: 100000\r\n\r\n".encode())
    assert statuses(stream, 1) == [429]
    for _ in range(100):
        stream.sendall(bytes(1_000))
        time.sleep(0.001)
    stream.sendall(ASK.encode())
    assert statuses(stream, 1) == [200]
    assert len(sizes) <= 3, sizes


@pytest.mark.usefixtures("busy")
def test_a_place_that_is_free_again_is_given(stream, photo, monkeypatch):
    image = photo("red")
    sent = f"{PHOTO}Content-Length: {len(image)}\r\n\r\n".encode() + image
    stream.sendall(sent)
    assert statuses(stream, 1) == [429]
    monkeypatch.undo()
    stream.sendall(sent)
    assert statuses(stream, 1) == [200]


@pytest.mark.usefixtures("busy")
def test_a_body_longer_than_promised_is_no_http(stream):
    """What follows the promised bytes is read as a request."""
    stream.sendall(f"{PHOTO}Content-Length: 1000\r\n\r\n".encode() + bytes(1_010))
    assert statuses(stream, 2) == [429, 400]
    assert not stream.recv(100)


def test_a_client_that_leaves_before_its_body_is_complete_harms_nobody(busy, caplog):
    head = f"{PHOTO}Content-Length: 100000\r\n\r\n".encode()
    with ExitStack() as held:
        leaving = [
            held.enter_context(socket.create_connection(("127.0.0.1", busy.port), timeout=300))
            for _ in range(3)
        ]
        for one in leaving:
            one.sendall(head + bytes(70_000))
            assert statuses(one, 1) == [429]
        leaving[0].shutdown(socket.SHUT_WR)
        assert not leaving[0].recv(100)  # there can be no further request
        leaving[1].close()
        # With this option the connection is reset.
        leaving[2].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        leaving[2].close()
        assert busy.client.get("/v1/state").status_code == 200
    assert not caplog.records


def test_a_request_that_found_a_place_keeps_it(start, tiny, photo, filled, monkeypatch):
    """Others may take the last places while its body arrives."""
    free = threading.Event()

    class HeldEncoder(tiny.ColourEncoder):
        def _embed_images(self, batch):
            assert free.wait(300)
            return super()._embed_images(batch)

    free.set()
    running = start(encoder=HeldEncoder())
    filled(running.client, photo, 2)
    free.clear()
    monkeypatch.setattr("gpcache.web.encoding.MAX_WAITING", 2)

    def wait_for(count):
        end = time.monotonic() + 300
        while f"gpcache_requests_waiting {count}.0" not in running.client.get("/metrics").text:
            assert time.monotonic() < end, f"there are never {count} requests in progress"
            time.sleep(0.01)

    image = photo("red")
    sent = f"{PHOTO}Content-Length: {len(image)}\r\n\r\n".encode() + image
    with ExitStack() as held:
        held.callback(free.set)
        early, *others = (
            held.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=300))
            for _ in range(3)
        )
        early.sendall(sent[:-1])
        wait_for(0)  # the server has read the head
        for one in others:
            one.sendall(sent)
        wait_for(2)
        assert running.client.post("/v1/predict", content=image, headers=JPEG).status_code == 429
        early.sendall(sent[-1:])
        wait_for(3)
        free.set()
        assert [statuses(one, 1) for one in (early, *others)] == [[200]] * 3


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (PHOTO + "Connection: close\r\nContent-Length: 0\r\n", 429),
        (PHOTO.replace("HTTP/1.1", "HTTP/1.0") + "Content-Length: 0\r\n", 429),
        (PHOTO + "Expect: 100-continue\r\nContent-Length: 5\r\n", 429),
        (PHOTO + "Content-Length: 20000001\r\n", 413),
        (PHOTO + "Transfer-Encoding: chunked\r\n", 411),
        (PHOTO + "Content-Length: 5\r\nContent-Length: 6\r\n", 400),
        (PHOTO, 429),
    ],
)
def test_what_is_unusual_goes_the_long_way(stream, head, status):
    stream.sendall(f"{head}\r\n".encode())
    answer = stream.recv(65_536).decode()
    while "}" not in answer:
        answer += stream.recv(65_536).decode()
    assert answer.split()[1] == str(status)
    assert json.loads(answer.partition("\r\n\r\n")[2]).keys() == {"error"}


def test_the_usual_request_is_recognised_with_its_size():
    head = f"{PHOTO}Connection: Keep-Alive\r\nContent-Length: 5\r\n\r\n".encode()
    assert photo_request_size(head) == photo_request_size(head + b"photo+") == len(head) + 5


@pytest.mark.parametrize(
    "head",
    [
        PHOTO + "Content-Length: 5\r\n",  # incomplete
        PHOTO + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
        PHOTO + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        PHOTO + "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        PHOTO + "Content-Length: 5\r\nConnection: close\r\n\r\n",
        PHOTO + "Content-Length: 5\r\n folded\r\n\r\n",
        PHOTO + "Content-Length : 5\r\n\r\n",
        PHOTO + "Content-Length: +5\r\n\r\n",
        PHOTO + f"Content-Length: {'9' * 21}\r\n\r\n",
        PHOTO + "Content-Length: 20000001\r\n\r\n",
        PHOTO + "\r\n",
        PHOTO.replace("HTTP/1.1", "HTTP/1.0") + "Content-Length: 5\r\n\r\n",
        PHOTO.replace("image/jpeg", "application/json") + "Content-Length: 5\r\n\r\n",
        PHOTO.replace("POST", "PATCH") + "Content-Length: 5\r\n\r\n",
    ],
)
def test_h11_reads_all_other_heads(head):
    assert photo_request_size(head.encode()) is None
