"""Every name look-up and connection of every command, and of all processes that it starts.

    python benchmarks/connections.py

A library that is loaded into the processes notes them (tests/support/network.c). Writes the section
`connections` of docs/results/faults.md.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from faults_processes import CLASSES, GPCACHE
from pages import table, text, write_page
from serving import add_photo, photo, served

from gpcache.images.drawn import draw_pictures

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import test_telemetry

TRACER = Path(test_telemetry.__file__).with_name("network.c")
PICTURES = {"photos": CLASSES, "test": CLASSES, "pool": ["wood"], "more": ["grass"]}
SPEC = 'datasets = ["data/photos"]\nencoders = ["lite"]\nshots = 2\nseeds = [1]\n'
SPEC += '[[methods]]\nname = "gpcache"\n'


def connections(place: Path) -> Iterator[list[object]]:
    """For every command: calls that name this machine, and calls that name another."""
    library, log = place / "network.so", place / "network.log"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, TRACER, "-ldl"], check=True)
    for seed, (name, classes) in enumerate(PICTURES.items()):
        draw_pictures(place / name, classes, each=4, seed=seed)
    shutil.copytree(place / "photos", place / "data" / "photos" / "train")
    shutil.copytree(place / "test", place / "data" / "photos" / "test")
    (place / "table.toml").write_text(SPEC)
    # A bare environment: CI=1 alone turns some telemetry off.
    environment = {name: os.environ.get(name, "") for name in ("PATH", "PYTHONPATH")}
    environment |= {"HOME": str(place), "LD_PRELOAD": str(library)}
    environment |= {"NETWORK_LOG": str(log), "RAY_LD_PRELOAD_ON_WORKERS": "1"}
    run = partial(subprocess.run, cwd=place, env=environment, capture_output=True)
    # `gpcache fetch` is not among them: to download is its purpose.
    for command in text("connections-commands").splitlines():
        done = run([*GPCACHE, *shlex.split(command)])
        assert done.returncode in (0, 1), done.stderr.decode()
        yield [f"`gpcache {command}`", *_calls(log)]
    started = served(place / "workspace", photos=0, environment=environment)
    with started as server, server.client() as client:
        add_photo(client, 0)
        assert client.post("/v1/predict", content=photo(1)).status_code < 500
    yield ["`gpcache serve`, a photo added and one asked", *_calls(log)]


def _calls(log: Path) -> tuple[int, int]:
    """How many noted calls are about this machine, and how many are not; forgets them."""
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    local = sum(test_telemetry.is_local(*line.split()[1:3]) for line in lines)
    return local, len(lines) - local


if __name__ == "__main__":
    rows = [["command", "calls about this machine", "calls about any other"]]
    with tempfile.TemporaryDirectory() as temporary:
        rows += connections(Path(temporary))
    write_page("connections", "Connections", text("connections"), table(rows))
