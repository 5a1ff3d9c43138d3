"""`gpcache extract` and `gpcache store`: exit codes, what goes to stdout and what to stderr."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from gpcache import FeatureStore


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of three photos, a broken one and an animation."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(6):
        path = folder / ("cat" if number < 3 else "dög") / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    (folder / "cat" / "broken\x1b[31m.jpg").write_bytes(b"\xff\xd8 nothing")
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "cat" / "moving.gif", save_all=True, append_images=frames[1:])
    return folder


@pytest.fixture(scope="module")
def extracted(photos, tmp_path_factory, shell):
    store = tmp_path_factory.mktemp("out") / "store"
    return store, shell("extract", photos, "-o", store, "--split", "train", "--json")


def test_extract_reports_on_stdout_and_refuses_on_stderr(extracted):
    store, result = extracted
    assert result.returncode == 0
    report = json.loads(result.stdout)
    assert (report["images"], report["encoded"], report["known"]) == (7, 7, 0)
    assert [entry["path"] for entry in report["refused"]] == ["cat/broken\x1b[31m.jpg"]
    err = result.stderr.decode()
    assert "1 refused:" in err
    assert "\x1b" not in err  # a file's name must not steer the terminal
    assert "moving.gif" in err  # only its first frame was taken
    rows = FeatureStore.open(store).read(split="train")
    assert rows.features.shape == (7, 1664)
    assert set(rows.labels) == {"cat", "dög"}


def test_a_second_run_encodes_nothing(run, extracted, photos):
    store, _ = extracted
    code, out, _ = run("extract", photos, "-o", store, "--split", "train")
    assert code == 0
    assert "7 images; 0 encoded now" in out
    assert "7 known before, 1 refused" in out


def test_info_says_what_is_there(run, extracted):
    store, _ = extracted
    found = json.loads(run("store", "info", store, "--json")[1])
    assert (found["encoder"], found["items"], found["classes"]) == ("lite", 7, 2)
    assert found["splits"] == {"train": 7}
    assert found["refused"] == 1
    assert "encoder      lite" in run("store", "info", store)[1]


def test_verify_finds_and_repairs(run, mistake, extracted, tmp_path, photos):
    store, _ = extracted
    copy = shutil.copytree(store, tmp_path / "my store")
    code, out, err = run("store", "verify", copy)
    assert (code, err) == (0, "")
    assert "are intact" in out
    (shard,) = (copy / "shards").glob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    code, out, _ = run("store", "verify", copy)
    assert code == 1
    assert f"damaged: shards/{shard.name}" in out
    assert f"gpcache store verify --repair '{copy}'" in out  # quoted for the shell
    assert "gpcache store verify --repair" in mistake("extract", photos, "-o", copy)
    assert run("store", "verify", copy, "--repair", "--json")[0] == 0
    again = run("extract", photos, "-o", copy, "--json")[1]
    assert json.loads(again)["encoded"] == 7


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no/such/folder", "-o", "{out}"], "There is no file or folder"),
        (["{empty}", "-o", "{out}"], "no image"),
        (["{photos}", "-o", "{out}", "--encoder", "liet"], "There is no encoder 'liet'"),
        (["{photos}", "-o", "{photos}"], "is not a feature store and not empty"),
        (["{photos}", "-o", "{out}", "--device", "tpu"], "device must be"),
        (["{zip}", "-o", "{out}"], "unpack it"),
    ],
)
def test_a_mistake_is_one_sentence(mistake, photos, tmp_path, arguments, sentence):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.zip").write_bytes(b"PK")
    places = {
        "photos": photos,
        "out": tmp_path / "out",
        "empty": tmp_path / "empty",
        "zip": tmp_path / "a.zip",
    }
    given = (argument.format(**places) for argument in arguments)
    assert sentence in mistake("extract", *given)


def test_no_store_is_one_sentence(mistake, tmp_path):
    for command in ("info", "verify"):
        assert "is not a feature store" in mistake("store", command, tmp_path)


def test_an_interrupt_leaves_a_whole_store(tmp_path):
    """Ctrl-C while images are encoded: exit code 130, nothing half-written, no traceback."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(400):
        pixels = np.random.default_rng(number).integers(0, 256, (300, 300, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.bmp")
    store = tmp_path / "store"
    code = (
        "import signal, sys, threading\n"
        "from pathlib import Path\n"
        "import gpcache.features.extract as extract\n"
        "extract.SHARD_ROWS = 32\n"
        "from gpcache.cli.app import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it\n"
        "def watch():\n"
        "    import os, time\n"
        f"    while not list(Path({str(store)!r}, 'shards').glob('*.safetensors')):\n"
        "        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        f"sys.argv = ['gpcache', 'extract', {str(folder)!r}, '-o', {str(store)!r}]\n"
        "extract.extract.__kwdefaults__['shard_rows'] = 32\n"
        "main()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 130
    assert "Traceback" not in result.stderr
    opened = FeatureStore.open(store)
    assert opened.damaged() == []
    assert 32 <= len(opened) < 400
