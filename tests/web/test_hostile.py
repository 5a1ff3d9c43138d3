"""A server as a process of its own, under requests that are made to harm it: it stays small."""

import base64
import concurrent.futures
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from PIL import Image

TOKEN = "a-token-for-tests"
JPEG = {"content-type": "image/jpeg"}
HEAD = f"HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux"),
    pytest.mark.slow,
]


class Program:
    """`program.py` on a workspace, with what it writes to stderr."""

    def __init__(self, folder, environment, descriptors):
        self.errors = folder / "errors.txt"
        command = [sys.executable, str(Path(__file__).with_name("program.py"))]
        limit = (descriptors, descriptors)
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, str(folder / "workspace")],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | environment,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
            )
        address = self.process.stdout.readline().strip().partition("/?token=")[0]
        self.port = int(address.rpartition(":")[2])
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.Client(base_url=address, headers=headers, timeout=300)

    def decoders(self):
        """The processes that decode for the server."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(child) for task in tasks for child in task.read_text().split()]

    def peak(self):
        """The most megabytes that the server itself has had in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1000

    def stop(self):
        self.client.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def run(tmp_path):
    started = []

    def run(environment=None, descriptors=1024):
        started.append(Program(tmp_path, environment or {}, descriptors))
        return started[-1]

    yield run
    for one in started:
        one.stop()


def encoded(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def exchanged(port, *parts):
    """The status of the answer to a raw request."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as stream:
        for part in parts:
            stream.sendall(part)
        return int(stream.recv(65_536).split()[1])


def test_a_length_beside_chunks_passes_no_body(shared):
    """The chunks would count, not the length: nothing of them may reach the application."""
    head = f"POST /v1/classes {HEAD}Content-Type: application/json\r\n"
    head += "Content-Length: 20\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    last = b'f\r\n{"name": "red"}\r\n0\r\n\r\n'
    assert exchanged(shared.port, head.encode(), chunk, chunk, chunk, last) == 411


@pytest.mark.parametrize("digits", [21, 5_000])
@pytest.mark.parametrize("busy", [False, True])
def test_an_endless_length_is_no_http(shared, monkeypatch, digits, busy):
    if busy:
        monkeypatch.setattr("gpcache.web.encoding.MAX_WAITING", 0)
    head = f"POST /v1/predict {HEAD}Content-Type: image/jpeg\r\nContent-Length: {'9' * digits}"
    assert exchanged(shared.port, f"{head}\r\n\r\n".encode()) == 400


@pytest.mark.parametrize(
    "options",
    ["boundary=" + "x" * 257, "boundary=x; charset=idna", "boundary=x; charset=undefined"],
)
def test_odd_multipart_bodies_are_sentences(shared, options):
    boundary = options.partition(";")[0].partition("=")[2]
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="a..b"; filename="..a"\r\n\r\nx\r\n'
        f"--{boundary}--\r\n"
    )
    headers = {"Content-Type": f"multipart/form-data; {options}"}
    answer = shared.client.post("/v1/predict", content=body.encode(), headers=headers)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"].endswith(".")


@pytest.mark.parametrize("size", [10, 20_000])
def test_a_file_with_an_extended_name_only_is_refused(shared, size):
    """Multipart bodies may not use it, and parsers take such a file for a text field."""
    head = "Content-Disposition: form-data; name=\"files\"; FileName*=UTF-8''a.jpg"
    body = f"--x\r\n{head}\r\n\r\n{'y' * size}\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = shared.client.post("/v1/predict", content=body.encode(), headers=headers)
    assert answer.status_code == 400
    assert 'send filename="photo.jpg"' in answer.json()["error"]


def test_invented_methods_and_paths_do_not_grow_the_metrics(shared):
    before = len(shared.client.get("/metrics").content)
    for number in range(300):
        answer = shared.client.request(f"INVENTED{number}", f"/v1/{number}")
        assert answer.status_code in (404, 405)
        shared.client.request(f"INVENTED{number}", "/v1/state")
    assert len(shared.client.get("/metrics").content) - before < 2_000


def test_idle_connections_leave_room_and_a_short_log(run):
    """More than there are descriptors: no traceback each, and the server goes on afterwards."""
    program = run(descriptors=1024)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with ExitStack() as held:
            for _ in range(1_500):
                stream = held.enter_context(socket.socket())
                stream.settimeout(300)
                stream.connect(("127.0.0.1", program.port))
            time.sleep(2)
            descriptors = len(os.listdir(f"/proc/{program.process.pid}/fd"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert descriptors < 900
    end = time.monotonic() + 300
    while time.monotonic() < end:
        try:
            assert program.client.get("/v1/state").status_code == 200
            break
        except httpx.TransportError:
            time.sleep(0.5)
    else:
        pytest.fail("the server does not answer any more")
    assert program.errors.stat().st_size < 10_000


def test_who_does_not_read_is_let_go(start, monkeypatch):
    monkeypatch.setattr("gpcache.web.server.READ_SECONDS", 2, raising=False)
    running = start()
    ask = f"GET /openapi.json {HEAD}\r\n".encode()
    with socket.create_connection(("127.0.0.1", running.port)) as stream:
        stream.settimeout(1)
        end = time.monotonic() + 300
        with pytest.raises(ConnectionError):  # noqa: PT012 - it breaks in the middle
            while time.monotonic() < end:
                try:
                    stream.sendall(ask * 100)
                except TimeoutError:
                    continue


def test_exports_need_no_temporary_folder_and_uploads_say_that_theirs_is_gone(
    run, tmp_path, photo, filled
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    program = run({"TMPDIR": str(temporary)})
    filled(program.client, photo, 2)
    large = encoded(Image.effect_noise((600, 600), 100).convert("RGB"), "JPEG", quality=95)
    assert len(large) > 65_536
    answer = program.client.post("/v1/predict", content=large, headers=JPEG)
    assert answer.status_code == 200
    temporary.rmdir()
    for path in ("/v1/export/model", "/v1/card"):
        assert program.client.get(path).status_code == 200
    answers = [
        program.client.post("/v1/predict", content=large, headers=JPEG),
        program.client.post("/v1/predict", files={"files": ("a.jpg", large)}),
    ]
    for answer in answers:
        assert answer.status_code == 503
        assert "temporary folder" in answer.json()["error"]
    small = program.client.post("/v1/predict", content=photo("red"), headers=JPEG)
    assert small.status_code == 200


def test_learned_photos_are_decoded_in_the_limited_processes_alone(run, photo):
    """Small files of nearly 50 million pixels each; the server itself unpacks none of them."""
    program = run()
    files = [("files", ("first.jpg", photo("red")))]
    program.client.post("/v1/examples", data={"label": "red"}, files=files)
    before = program.peak()
    bombs = [
        encoded(
            Image.new("RGB", (7_000, 7_000), (200, 30 + k, 30)), "WEBP", lossless=True, method=0
        )
        for k in range(4)
    ]
    assert max(map(len, bombs)) < 20_000
    files = [("files", (f"{k}.webp", bomb)) for k, bomb in enumerate(bombs)]
    answer = program.client.post("/v1/examples", data={"label": "red"}, files=files)
    assert len(answer.json()["added"]) == 4
    assert program.peak() - before < 60
    key = answer.json()["added"][0]["id"]
    picture = Image.open(io.BytesIO(program.client.get(f"/v1/photos/{key}").content))
    assert picture.size == (160, 160)


@pytest.mark.parametrize("path", ["/v1/predict", "/v2/models/workspace/infer"])
def test_a_client_that_has_left_stops_its_decode(run, photo, filled, path):
    """Stopped processes stand for decoders that take very long."""
    program = run()
    filled(program.client, photo, 2)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:  # until every decoder is there
        image = photo("red", side=900)
        list(
            pool.map(
                lambda _: program.client.post("/v1/predict", content=image, headers=JPEG), [0] * 32
            )
        )
    stopped = program.decoders()
    assert stopped
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    body, kind = photo("red"), "image/jpeg"
    if path.startswith("/v2"):
        data = [base64.b64encode(body).decode()]
        tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": data}
        body, kind = json.dumps({"inputs": [tensor]}).encode(), "application/json"
    head = f"POST {path} {HEAD}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    with ExitStack() as held:
        for _ in range(3 * len(stopped)):
            stream = held.enter_context(socket.create_connection(("127.0.0.1", program.port)))
            stream.sendall(head.encode() + body)
        time.sleep(1)
    begin = time.monotonic()
    answer = program.client.post("/v1/predict", content=photo("red"), headers=JPEG)
    assert answer.status_code == 200
    assert time.monotonic() - begin < 29  # a decoder has 30 seconds
    assert not set(stopped) & set(program.decoders())
