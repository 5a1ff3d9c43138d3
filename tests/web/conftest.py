"""A real server on a free port, with an encoder of colours, and photos to send it."""

import asyncio
import importlib.util
import io
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from gpcache.web.open_workspace import open_workspace
from gpcache.web.server import bind, run

TOKEN = "a-token-for-tests"
COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (30, 40, 200)}


def loaded(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# For the tests of the page: to start a browser and the encoder lite takes seconds.
tools = loaded(Path(__file__).with_name("browser.py"))
browser, running, server, visit = tools.browser, tools.running, tools.server, tools.visit
drawn, photographed = tools.drawn, tools.photographed
in_process_ray = loaded(Path(__file__).parents[1] / "cluster" / "in_process_ray.py").in_process_ray


@pytest.fixture(scope="session")
def tiny():
    return loaded(Path(__file__).parents[1] / "features" / "tiny.py")


@pytest.fixture(scope="session")
def encoder(tiny):
    return tiny.ColourEncoder()


@pytest.fixture(scope="session")
def photo():
    """A noisy JPEG of a colour."""

    def photo(colour, seed=0, side=40):
        noise = np.random.default_rng(seed).normal(0, 25, (side, side, 3))
        pixels = np.clip(np.array(COLOURS.get(colour, colour)) + noise, 0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG")
        return stream.getvalue()

    return photo


class Running:
    """A server in a thread of its own."""

    def __init__(self, opened, engine=None):
        self._ready = threading.Event()
        self._server = None
        listener = bind(0)

        def started(server, address):
            self._server, self.address = server, address
            self._ready.set()

        self._thread = threading.Thread(
            target=lambda: asyncio.run(run(opened, TOKEN, listener, started, engine)), daemon=True
        )
        self._thread.start()
        assert self._ready.wait(300)
        self.port = int(self.address.rpartition(":")[2])
        self.client = httpx.Client(
            base_url=self.address, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=300
        )

    def stop(self):
        self.client.close()
        self._server.should_exit = True
        self._thread.join(300)
        assert not self._thread.is_alive()


@pytest.fixture(scope="session")
def run_server():
    """A server in a thread, to be stopped by who starts it."""
    return Running


@pytest.fixture
def start(tmp_path, encoder):
    """Start a server on a workspace; it ends with the test."""
    running = []

    def start(folder=tmp_path / "workspace", **options):
        running.append(Running(open_workspace(folder, **({"encoder": encoder} | options))))
        return running[-1]

    start.stop = lambda one: (running.remove(one), one.stop())
    yield start
    for one in running:
        one.stop()


@pytest.fixture(scope="session")
def serve(tmp_path_factory, encoder):
    """Start a server on a workspace of its own; it ends with the session."""
    running = []

    def serve():
        folder = tmp_path_factory.mktemp("served")
        running.append(Running(open_workspace(folder, encoder=encoder)))
        return running[-1]

    yield serve
    for one in running:
        one.stop()


@pytest.fixture(scope="session")
def shared(serve, photo):
    """One server for tests that change nothing: three classes of six photos."""
    running = serve()
    before = fill(running.client, photo, 6)
    yield running
    assert running.client.get("/v1/state").json() == before


@pytest.fixture(scope="session")
def used(serve):
    """The server behind `empty`."""
    return serve()


@pytest.fixture
def empty(used):
    """A client of a workspace that is empty, but for what was undone or removed before."""
    state = used.client.delete("/v1/refused").json()
    for entry in state["classes"]:
        used.client.request("DELETE", "/v1/classes", json={"name": entry["name"]})
    pool = [one["id"] for one in used.client.get("/v1/suggest?count=100").json()["photos"]]
    if pool:
        used.client.request("DELETE", "/v1/examples", json={"ids": pool})
    return used.client


def fill(client, photo, each):
    """Photos of every colour; the state at the end."""
    for number, colour in enumerate(COLOURS):
        files = [
            ("files", (f"{colour}{k}.jpg", photo(colour, 100 * number + k))) for k in range(each)
        ]
        answer = client.post("/v1/examples", data={"label": colour}, files=files)
        assert answer.status_code == 200, answer.text
    return answer.json()["state"]


@pytest.fixture(scope="session")
def filled():
    """The function that fills a workspace."""
    return fill
