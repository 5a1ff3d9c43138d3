"""Three nodes on one machine: worker nodes are killed during extraction, a fit and serving.

Every command runs in its own process and joins by RAY_ADDRESS. The results are compared with those
of one process without Ray.
"""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from gpcache import FeatureStore, ImageClassifier, load_encoder
from gpcache.features.extract import extract
from gpcache.images.drawn import draw_pictures
from gpcache.images.sources import open_source
from gpcache.methods.cache import explicit_choice, setup

if not Path("/proc/self/task").exists():
    pytest.skip("this system does not list its processes", allow_module_level=True)

pytestmark = pytest.mark.slow


CLASSES = ("bricks", "marble", "wood")
EACH = 30
MANY, PART = 50, 60  # so few photos count as many
SETTINGS = f"""
from gpcache.methods.cache import explicit_choice, setup
setup.EXACT_ROWS, explicit_choice.PART_ROWS = {MANY}, {PART}
"""
COMMAND = f"{SETTINGS}from gpcache.cli.app import main\nmain()"
EXTRACT = """
import sys
from gpcache.cluster.extraction import encoded_on_ray
from gpcache.encoders import load_encoder
from gpcache.features.extract import extract
from gpcache.images.sources import open_source
source, encoder = open_source(sys.argv[1]), load_encoder("lite", device="cpu")
done = extract(source, sys.argv[2], encoder, stream=encoded_on_ray, batch_size=4, shard_rows=4)
print(done.encoded, done.known, len(done.refused))
"""
# Fits rows of a mapped file in float32 and float64, says when the first fit is in the middle, and
# compares with one process.
FIT = f"""{SETTINGS}
import sys, threading, time
import numpy as np
from gpcache import GPCacheClassifier
from gpcache.cluster.fitting import rows_on_ray
from gpcache.methods import Explicit
X, y = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2])
def fit(rows, dtype):
    classifier = GPCacheClassifier(approximation=Explicit(64), dtype=dtype)
    return classifier.fit(rows, y).predict_proba(X[:200])
def watch(rows):
    while rows.passes < 5:
        time.sleep(0.001)
    print("middle", flush=True)
with rows_on_ray(X) as rows:
    threading.Thread(target=watch, args=(rows,), daemon=True).start()
    first, passes = fit(rows, "auto"), rows.passes
    second = fit(rows, "float64")
print(passes, np.abs(first - fit(X, "auto")).max(), np.abs(second - fit(X, "float64")).max())
"""


# Seconds for what takes a few of them on quiet cores: other tests may start clusters, too.
LIMIT = 300


@pytest.fixture(scope="module")
def cluster(ray_nodes):
    with ray_nodes.three_nodes() as cluster:
        yield cluster


@pytest.fixture
def whole(cluster):
    """The cluster with all of its nodes."""
    cluster.complete()
    return cluster


@pytest.fixture(scope="module")
def run(cluster):
    """Start a program on the cluster."""
    started = []

    def run(code, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=os.environ | cluster.environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def ended(process):
    """What a program printed, if it ended well."""
    printed = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 0
    return printed


def eventually(true, process):
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos, of which two are the same, and a file that is none."""
    place = tmp_path_factory.mktemp("three") / "photos"
    draw_pictures(place, CLASSES, each=EACH)
    first = sorted((place / "wood").iterdir())[0]
    (place / "wood" / f"copy{first.suffix}").write_bytes(first.read_bytes())
    (place / "marble" / "broken.jpg").write_bytes(b"no image")
    return place


@pytest.fixture(scope="module")
def local(photos):
    """The store and the model that one process makes."""
    store, model = photos.parent / "local.store", photos.parent / "local.gpc"
    extract(open_source(photos), store, load_encoder("lite", device="cpu"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "EXACT_ROWS", MANY)
        patch.setattr(explicit_choice, "PART_ROWS", PART)
        ImageClassifier(device="cpu").fit(store).save(model)
    return store, model


def test_each_worker_has_a_network_of_its_own_if_this_is_allowed(cluster):
    spaces = {os.readlink(f"/proc/{node.process.pid}/ns/net") for node in cluster.nodes}
    assert len(spaces) == (3 if cluster.isolated else 1)


def test_extraction_loses_both_workers(whole, run, photos, local, tmp_path):
    store, seen = tmp_path / "store", set()
    process = run(EXTRACT, photos, store)

    def in_the_middle():
        seen.update(node.name for node in whole.nodes if node.runs("MapWorker"))
        return len(seen) > 1 and len(list((store / "shards").glob("*.safetensors"))) > 2

    eventually(in_the_middle, process)
    for node in whole.workers:
        node.kill()
    assert ended(process).split() == [str(EACH * len(CLASSES)), "1", "1"]
    found, expected = FeatureStore.open(store), FeatureStore.open(local[0])
    assert found.damaged() == []
    assert sum(shard.rows for shard in found.manifest.shards) == len(found) == len(expected)
    assert found.read().items == expected.read().items
    np.testing.assert_allclose(found.read().features, expected.read().features, atol=1e-6)


def test_a_fit_loses_a_node(whole, run, tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(3_000) % 5
    X = rng.normal(size=(5, 2, 24))[y, rng.integers(2, size=3_000)] + rng.normal(size=(3_000, 24))
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    process = run(FIT, tmp_path / "X.npy", tmp_path / "y.npy")
    assert process.stdout.readline() == "middle\n"
    assert all(node.runs("_Reader") for node in whole.nodes)
    whole.workers[0].kill()
    passes, *differences = map(float, ended(process).split())
    assert passes > 10
    assert max(differences) < 1e-6


def test_the_command_fits_a_store_on_all_nodes(whole, run, local, tmp_path):
    store, expected = local
    process = run(COMMAND, "fit", store, "-o", tmp_path / "ray.gpc", "--engine", "ray", "--json")
    seen = set()

    def all_work():
        seen.update(node.name for node in whole.nodes if node.runs("_Reader"))
        return len(seen) == 3

    eventually(all_work, process)
    assert json.loads(ended(process))["images"] == EACH * len(CLASSES)
    rows = FeatureStore.open(store).read().features
    found, expected = (ImageClassifier.load(one).model for one in (tmp_path / "ray.gpc", expected))
    assert repr(found.fitted_).startswith("Fitted(explicit features")
    assert np.abs(found.predict_proba(rows) - expected.predict_proba(rows)).max() < 1e-6
    assert np.abs(found.novelty(rows) - expected.novelty(rows)).max() < 1e-6


def test_serving_loses_a_node(whole, run, photos, local, tmp_path):
    images = [path.read_bytes() for path in sorted(photos.glob("*/*0.*"))]
    expected = [one.probabilities for one in ImageClassifier.load(local[1]).predict(images)]
    words = ("serve", local[1], "--port", "0", "--json", "--workspace", tmp_path / "work")
    process = run(COMMAND, *words, "--engine", "ray", "--replicas", "3")
    told = json.loads(process.stdout.readline())
    serving = [node for node in whole.nodes if node.runs("ServeReplica")]
    assert len(serving) > 1
    headers = {"Authorization": f"Bearer {told['token']}", "content-type": "image/jpeg"}
    answers = {}
    with httpx.Client(base_url=told["address"], headers=headers, timeout=LIMIT) as client:

        def ask(number):
            content = images[number % len(images)]
            answers[number] = client.post("/v1/predict", content=content)
            if len(answers) == 20:
                serving[-1].kill()

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(100)))
    assert {answer.status_code for answer in answers.values()} == {200}
    for number, answer in answers.items():
        told = answer.json()["predictions"][0]["probabilities"]
        found = {one["label"]: one["probability"] for one in told}
        assert found == pytest.approx(expected[number % len(images)], abs=1e-6)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT) in (0, 130, -signal.SIGINT)
