"""A server that is killed at any moment loses nothing that it has acknowledged."""

import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("program.py")


@pytest.fixture
def program(tmp_path):
    """The program on a workspace: (process, client)."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(tmp_path / "workspace")],
        stdout=subprocess.PIPE,
        text=True,
    )
    address, _, token = process.stdout.readline().strip().partition("/?token=")
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=address, headers=headers, timeout=300) as client:
        yield process, client
    process.kill()
    process.wait()
    process.stdout.close()


def test_nothing_acknowledged_is_lost(program, start, photo):
    process, client = program
    acknowledged, stop = [], threading.Event()

    def work():
        number = 0
        while not stop.is_set():
            files = [("files", (f"{number}.jpg", photo("red", number)))]
            try:
                answer = client.post("/v1/examples", data={"label": f"c{number % 3}"}, files=files)
            except httpx.HTTPError:
                return
            acknowledged.append(answer.json()["added"][0]["name"])
            if len(acknowledged) == 5:
                threading.Timer(0.05, process.kill).start()  # in the middle of a later one
            number += 1

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(300)
    stop.set()
    process.wait(300)
    client = start().client
    state = client.get("/v1/state").json()
    names = [one["name"] for one in state["photos"]]
    assert len(acknowledged) >= 5
    assert names[: len(acknowledged)] == acknowledged
    assert len(names) <= len(acknowledged) + 1  # done, but not yet said
    for one in state["photos"]:
        assert client.get(f"/v1/photos/{one['id']}").status_code == 200
    assert client.post("/v1/undo").status_code == 200
