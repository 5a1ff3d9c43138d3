"""Nothing leaves the machine: the commands as processes, with all their connections noted.

`network.c` is loaded into every process, because some packages report from C++.
"""

import ipaddress
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpcache.support import extras

NAME_SERVICE = 53
PACKAGES = (
    "onnxruntime",
    "onnx",
    "tokenizers",
    "transformers",
    "huggingface_hub",
    "open_clip",
    "torch",
    "ray",
    "ray.data",
    "ray.serve",
    "matplotlib.pyplot",
    "pyarrow.parquet",
    "pillow_heif",
    "fastapi",
    "uvicorn",
)


class Traced:
    """Runs Python in a fresh home and notes what it looks up, connects to and writes there."""

    def __init__(self, library, folder):
        self.folder = folder
        self.home = folder / "home"
        self._log = folder / "network.log"
        for name in ("home", "temporary"):
            (folder / name).mkdir()
        # No more of this process's environment: CI=1 alone turns some telemetry off.
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(folder / "temporary"),
            "LD_PRELOAD": str(library),
            "NETWORK_LOG": str(self._log),
            "OMP_NUM_THREADS": "1",
            "RAY_LD_PRELOAD_ON_WORKERS": "1",
        }

    def start(self, *arguments, **options):
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return out

    def foreign(self):
        """The lines of the log that are about anything but this machine."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in lines if not is_local(*line.split()[1:3])]

    def written(self):
        """What was written into the home folder and into the temporary folder's top."""
        found = [*self.home.rglob("*"), *(self.folder / "temporary").glob(".ses")]
        return [str(path.relative_to(self.folder)) for path in found]


def is_local(address, port):
    """Whether an address or a name belongs to this machine alone."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address == "localhost"
    mapped = getattr(found, "ipv4_mapped", None) or found
    return mapped.is_loopback and int(port) != NAME_SERVICE


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("tracing native connections needs Linux and a C compiler")
    built = tmp_path_factory.mktemp("library") / "network.so"
    source = Path(__file__).parent / "network.c"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(built), str(source), "-ldl"], check=True
    )
    return built


@pytest.fixture
def traced(library, tmp_path):
    return Traced(library, tmp_path)


@pytest.fixture
def photos(tmp_path):
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            pixels = generator.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


NATIVE = """
import ctypes, socket
found = ctypes.c_void_p()
ctypes.CDLL(None).getaddrinfo(b"native.invalid", b"80", None, ctypes.byref(found))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.connect(("192.0.2.1", 9))
    udp.sendto(b"", ("127.0.0.1", 9))
for host in ("127.0.0.1", "0.0.0.0"):
    with socket.create_server((host, 0)):
        pass
"""


def test_the_trace_sees_native_and_python_calls(traced):
    traced.run("-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {NATIVE!r}])")
    calls = [tuple(line.split()[:2]) for line in traced.foreign()]
    assert calls == [
        ("lookup", "native.invalid"),
        ("connect", "192.0.2.1"),
        ("listen", "0.0.0.0"),
    ]


def test_fit_predict_extract_and_serve_reach_nobody_and_leave_no_trace(traced, photos):
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra lite")
    traced.run("-m", "gpcache", "fit", photos, "-o", "pets.gpc")
    traced.run("-m", "gpcache", "predict", "pets.gpc", photos)  # without torch
    traced.run("-m", "gpcache", "predict", "pets.gpc", photos, "--why")
    traced.run("-m", "gpcache", "extract", photos, "-o", "pets.store")
    pytest.importorskip("fastapi", reason="needs the extra serve")
    serve = ("serve", "pets.gpc", "--workspace", "work", "--port", "0", "--json")
    server = traced.start("-m", "gpcache", *serve)
    try:
        told = json.loads(server.stdout.readline())
        request = urllib.request.Request(
            f"{told['address']}/v1/predict",
            data=(photos / "cat" / "0.png").read_bytes(),
            headers={"Authorization": f"Bearer {told['token']}", "Content-Type": "image/png"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert answer.status == 200
    finally:
        server.terminate()
        server.communicate(timeout=300)
    assert traced.foreign() == []
    # The image network of `lite` is prepared once, and nothing else is left behind.
    cache = ["home/.cache", "home/.cache/gpcache"]
    graph = next((traced.home / ".cache" / "gpcache").iterdir()).name
    assert graph.startswith("lite-")
    assert sorted(traced.written()) == [*cache, f"home/.cache/gpcache/{graph}"]


def test_no_package_reaches_anybody_when_it_is_imported(traced):
    there = [name for name in PACKAGES if find_spec(name.partition(".")[0])]
    program = (
        "import sys; from gpcache.support.extras import require\n"
        "for name in sys.argv[1:]: require(name, 'any')"
    )
    traced.run("-c", program, *there)
    assert traced.foreign() == []
    shutil.rmtree(traced.home / ".cache" / "matplotlib", ignore_errors=True)  # its list of fonts
    assert not [path for path in traced.written() if (traced.folder / path).is_file()]


def test_a_local_ray_cluster_stays_on_this_machine(traced, photos):
    pytest.importorskip("ray", reason="needs the extra ray")
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra lite")
    del traced.environment["TMPDIR"]  # the paths of Ray's sockets must be short
    traced.run("-m", "gpcache", "extract", photos, "-o", "pets.store", "--engine", "ray")
    assert traced.foreign() == []


@pytest.mark.parametrize("first", ["gpcache", "gpcache.images.worker", "gpcache.cli.app"])
def test_the_switches_are_set_before_anything_else_is_imported(first):
    program = f"import {first}, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    bare = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name}
    found = subprocess.run(
        [sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=True
    )
    assert found.stdout == "1\n"


def test_onnxruntime_that_was_there_before_is_switched_off(monkeypatch):
    runtime = pytest.importorskip("onnxruntime")
    called = []
    monkeypatch.setattr(runtime, "disable_telemetry_events", lambda: called.append(True))
    assert extras.require("onnxruntime", "lite") is runtime
    assert called == [True]
