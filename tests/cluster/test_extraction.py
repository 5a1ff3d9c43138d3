"""Extraction on Ray: a real local cluster whose processes are killed, against the local engine."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gpcache.cluster.extraction import encoded_on_ray
from gpcache.encoders import load_encoder
from gpcache.errors import DataError, GPCacheError
from gpcache.features.extract import extract
from gpcache.features.store import FeatureStore
from gpcache.features.stream import encoded
from gpcache.images.augment import Views
from gpcache.images.sources import from_iterable, open_source

pytestmark = pytest.mark.slow

PHOTOS = 90
DRIVER = """
import sys
from gpcache.cluster.extraction import encoded_on_ray
from gpcache.encoders import load_encoder
from gpcache.features.extract import extract
from gpcache.images.sources import open_source
source, encoder = open_source(sys.argv[1]), load_encoder("lite", device="cpu")
extract(source, sys.argv[2], encoder, stream=encoded_on_ray, batch_size=4, shard_rows=4)
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(local_cluster):
    with local_cluster(3):
        yield


@pytest.fixture(scope="module")
def lite():
    return load_encoder("lite", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photos of which two are the same, and two files that are none."""
    place = tmp_path_factory.mktemp("ray") / "photos"
    for number in range(PHOTOS):
        path = place / "abc"[number % 3] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    (place / "a" / "copy.png").write_bytes((place / "c" / "050.png").read_bytes())
    (place / "b" / "broken.jpg").write_bytes(b"no image")
    (place / "c" / "cut.png").write_bytes((place / "c" / "050.png").read_bytes()[:1000])
    return place


@pytest.fixture(scope="module")
def expected(folder, lite):
    """What the local engine makes of the photos: its report and its store."""
    store = folder.parent / "local"
    return extract(open_source(folder), store, lite), FeatureStore.open(store)


def actors(process, stage, state=".submit"):
    """The processes below `process` that run an actor of `stage`, by the titles Ray gives them."""
    parents, titles = {}, {}
    for place in Path("/proc").iterdir():
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rsplit(")")[-1].split()[1])
            titles[int(place.name)] = (place / "cmdline").read_bytes().decode().strip("\0 ")
        except (OSError, ValueError):
            continue

    def below(pid):
        return pid == process or (pid in parents and below(parents[pid]))

    wanted = f"ray::MapWorker(MapBatches({stage})){state}"
    return [pid for pid, title in titles.items() if title.startswith(wanted) and below(pid)]


@contextmanager
def killing(stage, *, ready=lambda: True, state=".submit", only_one=True):
    """Kill a process of the stage once it is at work and `ready`, or every one; gives a list."""
    over, killed = threading.Event(), []

    def work():
        while not over.is_set() and not (only_one and killed):
            found = actors(os.getpid(), stage, state) if ready() else []
            for pid in found[:1] if only_one else found:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def shards(store):
    return list((store / "shards").glob("*.safetensors"))


@pytest.fixture(scope="module")
def disturbed(folder, lite):
    """A run on Ray that loses a process of each stage: report, store, and how many were killed."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("this system does not list its processes")
    store = folder.parent / "ray"
    with killing("_Decode") as first, killing("_Encode", ready=lambda: shards(store)) as second:
        options = {"batch_size": 4, "shard_rows": 4}
        report = extract(open_source(folder), store, lite, stream=encoded_on_ray, **options)
    return report, FeatureStore.open(store), len(first + second)


def test_a_run_that_loses_processes_is_as_one_on_this_machine(disturbed, expected):
    report, store, killed = disturbed
    local_report, local = expected
    assert killed == 2
    assert (report.encoded, report.known) == (local_report.encoded, local_report.known)
    assert (report.encoded, report.known) == (PHOTOS, 1)
    assert report.refused == local_report.refused
    assert {refused.name for refused in report.refused} == {"b/broken.jpg", "c/cut.png"}
    assert store.damaged() == []
    assert sum(shard.rows for shard in store.manifest.shards) == len(store) == PHOTOS
    assert store.read().items == local.read().items
    np.testing.assert_allclose(store.read().features, local.read().features, atol=1e-5)


def test_a_second_run_encodes_nothing(disturbed, folder, lite):
    _, store, _ = disturbed
    before = store.manifest
    report = extract(open_source(folder), store.folder, lite, stream=encoded_on_ray)
    assert (report.encoded, report.known, len(report.refused)) == (0, PHOTOS + 1, 2)
    assert FeatureStore.open(store.folder).manifest == before


def test_a_killed_run_is_completed_by_the_next(folder, lite, expected, tmp_path):
    store = tmp_path / "store"
    process = subprocess.Popen([sys.executable, "-c", DRIVER, folder, store])
    while len(shards(store)) < 2:  # the manifest knows the first before the second is there
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    kept = len(FeatureStore.open(store))
    assert 0 < kept < PHOTOS
    report = extract(open_source(folder), store, lite, stream=encoded_on_ray, batch_size=8)
    assert (report.encoded, report.known) == (PHOTOS - kept, kept + 1)
    whole, local = FeatureStore.open(store), expected[1]
    assert sum(shard.rows for shard in whole.manifest.shards) == len(whole) == PHOTOS
    assert whole.read().items == local.read().items
    np.testing.assert_allclose(whole.read().features, local.read().features, atol=1e-5)


def test_bytes_and_views_are_as_on_this_machine(folder, lite, tmp_path):
    files = sorted((folder / "a").iterdir())[:5]
    images = [files[0], *(file.read_bytes() for file in files), b"", folder / "gone.png"]
    rows, reports = {}, {}
    for engine, stream in (("local", encoded), ("ray", encoded_on_ray)):
        reports[engine] = extract(
            from_iterable(images),
            tmp_path / engine,
            lite,
            views=Views(2, average=False),
            stream=stream,
        )
        rows[engine] = FeatureStore.open(tmp_path / engine).read()
    assert rows["ray"].features.shape == (6, 2, lite.dim)
    assert rows["ray"].items == rows["local"].items
    assert reports["ray"].refused == reports["local"].refused
    assert len(reports["ray"].refused) == 2
    np.testing.assert_allclose(rows["ray"].features, rows["local"].features, atol=1e-5)


def test_an_encoder_that_is_another_one_on_the_cluster_is_one_sentence(folder, encoder, tmp_path):
    """The actors know an encoder by its name, and check that it is the same."""
    encoder.name = "lite"
    with pytest.raises(GPCacheError, match=r"^The encoder 'lite' differs on [^\n]*$"):
        extract(open_source(folder), tmp_path / "store", encoder, stream=encoded_on_ray)


def test_a_cluster_that_gets_nowhere_is_one_sentence(folder, lite, tmp_path):
    """Every encoding actor is killed as soon as it starts, until Ray gives up."""
    import ray.data

    context = ray.data.DataContext.get_current()
    patience, context.execution_no_progress_timeout_s = context.execution_no_progress_timeout_s, 4
    try:
        with (
            killing("_Encode", state="", only_one=False),
            pytest.raises(GPCacheError, match=r"^Ray stopped: [^\n]*no progress[^\n]*$"),
        ):
            extract(open_source(folder), tmp_path / "store", lite, stream=encoded_on_ray)
    finally:
        context.execution_no_progress_timeout_s = patience
    assert len(FeatureStore.open(tmp_path / "store")) == 0


def test_a_mistake_is_one_sentence(encoder, folder, tmp_path):
    picture = Image.new("RGB", (40, 40))
    with pytest.raises(
        DataError, match=r"takes files and bytes, but 'item 0000000' is of the type"
    ):
        extract(from_iterable([picture]), tmp_path / "s", encoder, stream=encoded_on_ray)
    with pytest.raises(DataError, match="workers must be a whole number above zero, got 0"):
        extract(open_source(folder), tmp_path / "s", encoder, stream=encoded_on_ray, workers=0)
    encoder.device = torch.device("cuda", 0)
    with pytest.raises(GPCacheError, match="The Ray cluster has no GPU"):
        extract(open_source(folder), tmp_path / "s", encoder, stream=encoded_on_ray, batch_size=2)


def test_a_cluster_that_does_not_answer_is_one_sentence(folder, tmp_path):
    command = [sys.executable, "-m", "gpcache", "extract", folder, "-o", tmp_path / "store"]
    result = subprocess.run(
        [*command, "--engine", "ray"],
        env=os.environ | {"RAY_ADDRESS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "No Ray cluster could be joined at RAY_ADDRESS='127.0.0.1:1'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_ray_is_imported_only_when_asked_for_and_torch_only_to_encode():
    code = (
        "import sys, gpcache.cluster.extraction\n"
        "assert not {'ray', 'torch'} & set(sys.modules)\n"
        "import gpcache.features.extract\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
