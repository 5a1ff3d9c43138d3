"""`--engine ray`: the tests of the single server on replicas, and replicas that are killed."""

import asyncio
import concurrent.futures
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from gpcache.cluster.connection import connected
from gpcache.encoders import load_encoder
from gpcache.errors import GPCacheError, ImageRefusedError
from gpcache.images import decode
from gpcache.web.encoding import BusyError, LocalEncoding
from gpcache.web.metrics import Metrics
from gpcache.web.open_workspace import open_workspace
from gpcache.web.ray_encoding import LOOK, PHOTOS_EACH, deployed

pytestmark = pytest.mark.slow

REPLICAS = 2
VIEWS = 3
# Seconds in which replicas start again, also beside other tests.
START = 300.0
JPEG = {"content-type": "image/jpeg"}


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


predicting, inferring, editing = map(
    loaded, ("test_predict", "test_inference_v2", "test_workspace")
)

# The fixtures that the tests of the single server ask for, here with replicas.


@pytest.fixture(scope="module")
def ray():
    # Looked for without importing: what Ray takes from the environment it takes at its import.
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs the extra ray")
    # Whatever this machine has: one more CPU than the replicas here take.
    with connected(REPLICAS + 1) as ray:
        yield ray


@pytest.fixture(scope="module")
def encoder():
    pytest.importorskip("efficientnet_lite_pytorch")
    return load_encoder("lite", device="cpu")


@pytest.fixture(scope="module")
def engine(ray, encoder, tmp_path_factory):
    """Replicas for every server here: they depend on the encoder alone."""
    opened = open_workspace(tmp_path_factory.mktemp("engine"), encoder=encoder)
    opened.document = replace(opened.document, views=VIEWS)
    with deployed(ray, opened, REPLICAS) as engine:
        yield engine
    opened.folder.close()


@pytest.fixture(scope="module")
def serve(engine, encoder, run_server, tmp_path_factory):
    running = []

    def serve():
        opened = open_workspace(tmp_path_factory.mktemp("served"), encoder=encoder)
        running.append(run_server(opened, engine))
        return running[-1]

    yield serve
    for one in running:
        one.stop()


@pytest.fixture(scope="module")
def shared(serve, photo, filled):
    running = serve()
    before = filled(running.client, photo, 6)
    yield running
    assert running.client.get("/v1/state").json() == before


@pytest.fixture(scope="module")
def used(serve):
    return serve()


# First, before any server is there: Ray Serve deploys and counts in one thread at a time.
def test_replicas_that_do_not_start_are_a_sentence(ray, encoder, tmp_path):
    opened = open_workspace(tmp_path / "work", encoder=encoder)
    opened.document = replace(opened.document, encoder="none")
    told = "^The replicas do not start: There is no encoder 'none': use [^\n]*$"
    with pytest.raises(GPCacheError, match=told), deployed(ray, opened, 1):
        pass
    opened.folder.close()


corpus = predicting.corpus
version = inferring.version

test_every_hostile_file_is_a_sentence = predicting.test_every_hostile_file_is_a_sentence
test_odd_but_good_files_are_answered = predicting.test_odd_but_good_files_are_answered
test_the_exported_model_answers_alike = predicting.test_the_exported_model_answers_alike
test_side_by_side = predicting.test_requests_side_by_side_share_batches_and_agree
test_options_of_an_answer = predicting.test_options_of_an_answer
test_a_batch_tells_files_apart = predicting.test_a_batch_tells_files_of_one_name_apart
test_metadata_and_health = inferring.test_metadata_and_health
test_is_not_ready_without_a_model = inferring.test_is_not_ready_without_a_model
test_infers_what_v1_predicts = inferring.test_infers_what_v1_predicts
test_mistakes_are_errors = inferring.test_mistakes_are_errors
test_useful_at_zero_photos = editing.test_useful_at_zero_photos_by_the_class_names_alone
test_marks_duplicates = editing.test_marks_duplicates
test_a_pool_photo_becomes_an_example = editing.test_a_pool_photo_becomes_an_example
test_refused_files_collect_in_a_tray = editing.test_refused_files_collect_in_a_tray
test_pictures_are_encoded_anew = editing.test_pictures_are_encoded_anew


# Replicas that die.


def replicas_of(process):
    """The ids of the processes below one that are replicas."""
    found, waiting = [], [process]
    while waiting:
        own = Path(f"/proc/{waiting.pop()}")
        try:
            if own.joinpath("cmdline").read_bytes().startswith(b"ray::ServeReplica"):
                found.append(int(own.name))
            for thread in own.joinpath("task").iterdir():
                waiting += thread.joinpath("children").read_text().split()
        except OSError:
            continue  # it has just ended
    return found


def eventually(true):
    end = time.monotonic() + START
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def ask(client, image):
    return client.post("/v1/predict", content=image, headers=JPEG)


def said(answer):
    told = answer.json()["predictions"][0]
    return told["label"], pytest.approx(told["probability"], abs=1e-6)


@pytest.fixture
def known(shared, photo):
    """Photos, and what is said of them before anything happens."""
    images = [photo(colour, 700 + k) for k, colour in enumerate(("red", "green", "blue") * 2)]
    return images, [said(ask(shared.client, image)) for image in images]


def test_a_killed_replica_loses_no_accepted_request(shared, known, caplog):
    images, expected = known
    before = replicas_of(os.getpid())
    assert len(before) == REPLICAS
    answers, turn = {}, threading.Lock()
    # It is halted first, so that photos wait there when it is killed.
    signals = [(10, signal.SIGSTOP), (30, signal.SIGKILL)]

    def one(number):
        answers[number] = ask(shared.client, images[number % len(images)])
        with turn:
            if signals and len(answers) >= signals[0][0]:
                os.kill(before[0], signals.pop(0)[1])

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(150)))
    assert "A replica was lost" in caplog.text  # it was at work
    accepted = {number: one for number, one in answers.items() if one.status_code != 429}
    assert len(accepted) > 100
    for number, answer in accepted.items():
        assert answer.status_code == 200, answer.text
        assert said(answer) == expected[number % len(images)]
    eventually(lambda: len(replicas_of(os.getpid())) == REPLICAS)
    assert before[0] not in replicas_of(os.getpid())
    assert shared.client.get("/v2/health/ready").status_code == 200


def test_requests_wait_while_no_replica_is_up(shared, known, monkeypatch):
    images, expected = known
    monkeypatch.setattr("gpcache.web.ray_encoding.PATIENCE", START)
    monkeypatch.setattr(shared.client, "timeout", START)
    for process in replicas_of(os.getpid()):
        os.kill(process, signal.SIGKILL)
    with concurrent.futures.ThreadPoolExecutor(len(images)) as pool:
        asked = [pool.submit(ask, shared.client, image) for image in images]
        eventually(lambda: shared.client.get("/v2/health/ready").status_code == 400)
        assert shared.client.get("/v2/health/live").status_code == 200
        answers = [one.result() for one in asked]
    assert [one.status_code for one in answers] == [200] * len(images)
    assert [said(one) for one in answers] == expected
    eventually(lambda: shared.client.get("/v2/health/ready").status_code == 200)
    eventually(lambda: len(replicas_of(os.getpid())) == REPLICAS)


def test_nobody_waits_for_ever(engine, photo, monkeypatch):
    """With a patience of nothing, a photo that meets dead replicas alone is told to come back."""

    async def read():
        return photo("red")

    async def look():
        encoding = engine(Metrics())
        await encoding.encode(read)
        for process in replicas_of(os.getpid()):
            os.kill(process, signal.SIGKILL)
        await asyncio.sleep(LOOK)
        monkeypatch.setattr("gpcache.web.ray_encoding.PATIENCE", 0.0)
        with pytest.raises(BusyError, match="No replica has answered"):
            await encoding.encode(read)
        monkeypatch.setattr("gpcache.web.ray_encoding.PATIENCE", START)
        await encoding.encode(read)
        await encoding.close()

    asyncio.run(look())


# Without HTTP.


def test_a_full_queue_is_busy_and_refusals_are_sentences(engine, photo):
    """Fronts that know nothing of each other bring more than the replicas' queue holds."""

    async def read():
        return photo("red", 1, side=300)

    async def broken():
        return b"no image"

    async def look():
        fronts = [engine(Metrics()) for _ in range(8)]
        asked = [one.encode(read) for one in fronts for _ in range(PHOTOS_EACH * REPLICAS)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        with pytest.raises(ImageRefusedError) as refused:
            await fronts[0].encode(broken)
        for one in fronts:
            await one.close()
        return found, refused.value.reason

    found, reason = asyncio.run(look())
    errors = [one for one in found if isinstance(one, Exception)]
    assert errors
    assert all(isinstance(error, BusyError) for error in errors)
    assert len(errors) < len(found)
    with pytest.raises(ImageRefusedError) as refused:
        decode(b"no image")
    assert reason == refused.value.reason


def test_both_engines_make_the_same_of_a_photo(engine, encoder, photo):
    content = photo("green", 5, side=300)

    async def read():
        return content

    async def look():
        distant, local = engine(Metrics()), LocalEncoding(encoder, Metrics(), views=VIEWS)
        for learn in (True, False):
            found = await distant.encode(read, learn=learn)
            expected = await local.encode(read, learn=learn)
            assert (found[0], found[2]) == (expected[0], expected[2])
            assert bool(found[2]) == learn
            np.testing.assert_allclose(found[1], expected[1], atol=1e-6)
        await distant.close()
        await local.close()

    asyncio.run(look())


# The command.


@pytest.mark.usefixtures("encoder")
def test_from_the_shell_on_a_cluster(ray, photo, tmp_path):
    """It joins, serves, and takes its replicas along when it goes."""
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "gpcache", "serve", "--port", "0", "--engine", "ray", "--json"]
    process = subprocess.Popen(
        [*command, "--replicas", "1", "--workspace", tmp_path / "work"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"RAY_ADDRESS": address},
    )
    before = replicas_of(os.getpid())
    try:
        told = json.loads(process.stdout.readline())
        assert len(replicas_of(os.getpid())) == len(before) + 1
        headers = {"Authorization": f"Bearer {told['token']}"}
        with httpx.Client(base_url=told["address"], headers=headers, timeout=300) as client:
            for name in ("a red wall", "a blue sky"):
                client.post("/v1/classes", json={"name": name})
            answer = ask(client, photo("blue")).json()
            assert len(answer["predictions"][0]["probabilities"]) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(300) in (0, 130, -signal.SIGINT)
        assert replicas_of(os.getpid()) == before
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
