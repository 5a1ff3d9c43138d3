"""`gpcache serve` as a process, with the encoder lite; and its mistakes."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gpcache.cli.app import main
from gpcache.cli.serve import _own_folder


@pytest.fixture
def fail(monkeypatch, capsys):
    """Run a command that must fail: its one sentence."""

    def fail(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpcache", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        told = capsys.readouterr().err
        assert told.startswith("gpcache: ")
        assert told.count("\n") == 1
        return told

    return fail


def test_from_the_shell(tmp_path, photo):
    pytest.importorskip("efficientnet_lite_pytorch")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gpcache",
            "serve",
            "--port",
            "0",
            "-w",
            tmp_path / "work",
            "--json",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        told = json.loads(process.stdout.readline())
        with httpx.Client(timeout=300, follow_redirects=True) as client:
            page = client.get(told["page"])
            assert page.status_code == 200
            assert page.headers["content-type"].startswith("text/html")
            address = told["address"]
            for name in ("a red wall", "a blue sky"):
                client.post(f"{address}/v1/classes", json={"name": name})
            image = {"content": photo("blue"), "headers": {"Content-Type": "image/jpeg"}}
            answer = client.post(f"{address}/v1/predict", **image).json()
            assert len(answer["predictions"][0]["probabilities"]) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(300) in (0, 130, -signal.SIGINT)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_taken_port_is_a_sentence(fail, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = fail("serve", "--port", taken.getsockname()[1], "-w", tmp_path / "work")
    assert "give another with --port" in told


def test_a_missing_model_is_a_sentence(fail, tmp_path):
    told = fail("serve", tmp_path / "none.gpc", "--port", "0", "-w", tmp_path / "work")
    assert "is not a gpcache model" in told


def test_the_help_imports_neither_torch_nor_a_server():
    code = (
        "import sys; from gpcache.cli.app import main; sys.argv = ['gpcache', 'serve', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'fastapi', 'uvicorn')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0
    assert b"--workspace" in done.stdout


def test_a_model_whose_name_is_no_utf8_has_a_workspace_of_its_own(tmp_path):
    names = [b"/caf\xe9.gpc", b"/caf\xe8.gpc"]
    folders = {_own_folder(Path(os.fsdecode(os.fsencode(tmp_path) + name))) for name in names}
    assert len(folders) == 2
