"""The engine `ray` with a replica in this process: its answers, and what it does about errors."""

import asyncio
import math
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpcache.cli.app import main
from gpcache.encoders import load_encoder
from gpcache.errors import EncoderError, GPCacheError, ImageRefusedError
from gpcache.images import decode
from gpcache.web import ray_encoding
from gpcache.web.encoding import BusyError, LocalEncoding
from gpcache.web.metrics import Metrics
from gpcache.web.open_workspace import open_workspace
from gpcache.web.ray_encoding import PHOTOS_EACH, Replica, _share, deployed

VIEWS = 2


@pytest.fixture(scope="module")
def lite():
    return load_encoder("lite0", device="cpu")


@pytest.fixture
def opened(lite, tmp_path):
    """A workspace whose encoder any process can load by its name."""
    opened = open_workspace(tmp_path / "work", encoder=lite)
    opened.document = replace(opened.document, views=VIEWS)
    yield opened
    opened.folder.close()


@pytest.fixture
def run(in_process_ray, opened):
    """Run a coroutine function that takes an encoding on a replica, which ends with it."""

    def run(use, count=None):
        async def work():
            with deployed(in_process_ray, opened, count) as make:
                distant = make(Metrics())
                try:
                    return await use(distant)
                finally:
                    await distant.close()
                    for replica in in_process_ray.serve.replicas.values():
                        await replica._pipeline.close()

        return asyncio.run(work())

    return run


def fail(*_, **__):
    raise RuntimeError("the driver failed")


def reader(content):
    async def read():
        return content

    return read


@contextmanager
def quickly(monkeypatch, **seconds):
    with monkeypatch.context() as patch:
        for name, value in seconds.items():
            patch.setattr(ray_encoding, name, value)
        yield


def test_a_replica_answers_as_this_server_does(run, in_process_ray, lite, photo, monkeypatch):
    serve, error = in_process_ray.serve, in_process_ray.exceptions.RayError
    read = reader(photo("green", 5, side=300))

    async def look(distant):
        local = LocalEncoding(lite, Metrics(), views=VIEWS)
        for learn in (True, False):
            found = await distant.encode(read, learn=learn)
            expected = await local.encode(read, learn=learn)
            assert (found[0], found[2]) == (expected[0], expected[2])
            assert bool(found[2]) == learn
            np.testing.assert_allclose(found[1], expected[1], atol=1e-6)
        await local.close()
        # A replica that is lost: another one is asked.
        serve.errors = [error("it died"), serve.exceptions.RayServeException("it is going")]
        again = await distant.encode(read)
        np.testing.assert_array_equal(again[1], found[1])
        assert serve.errors == []
        # None that answers, or too many requests: clients are asked to come back.
        serve.errors = [error("it died")]
        with (
            quickly(monkeypatch, PATIENCE=0.0),
            pytest.raises(BusyError, match="No replica has answered for 0 seconds: try again"),
        ):
            await distant.encode(read)
        serve.errors = [serve.exceptions.BackPressureError()]
        with pytest.raises(BusyError, match=r"^The replicas have too much to do: try again"):
            await distant.encode(read)
        # An error of ours is no reason to ask another replica.
        serve.errors = [in_process_ray.exceptions.RayTaskError("a bug"), error("not asked")]
        with pytest.raises(in_process_ray.exceptions.RayTaskError, match="a bug"):
            await distant.encode(read)
        assert len(serve.errors) == 1
        serve.errors = []
        with pytest.raises(ImageRefusedError) as refused:
            await distant.encode(reader(b"no image"))
        with pytest.raises(ImageRefusedError) as expected:
            decode(b"no image")
        assert refused.value.reason == expected.value.reason
        replica = next(iter(serve.replicas.values()))
        await replica.check_health()
        monkeypatch.setattr(replica._pipeline._encoder, "encode_views", fail)
        with pytest.raises(RuntimeError, match="the driver failed"):  # Ray starts another one
            await replica.check_health()

    run(look)
    assert serve.applications == {}


def test_it_is_ready_while_a_replica_is_live(run, in_process_ray, photo, monkeypatch, caplog):
    serve = in_process_ray.serve
    never = asyncio.Event

    async def look(distant):
        assert distant.ready
        (application,) = serve.applications.values()
        (deployment,) = application.deployments.values()
        deployment.replica_states = {"STARTING": 2}
        while distant.ready:
            await asyncio.sleep(0.01)
        deployment.replica_states = {"RUNNING": 1, "STARTING": 1}
        while not distant.ready:
            await asyncio.sleep(0.01)
        serve.silent = True
        while distant.ready:
            await asyncio.sleep(0.01)
        # A call that no replica takes ends some time after the last one was live.
        distant._handle.encode.remote = lambda *_: never().wait()
        with pytest.raises(BusyError, match="No replica has answered"):
            await distant.encode(reader(photo("red")))

    with quickly(monkeypatch, LOOK=0.01, PATIENCE=0.05):
        run(look)
    assert "Ray Serve does not say which replicas are live: no controller" in caplog.text


def test_the_replicas_share_the_cpus_and_wait_for_them(run, in_process_ray, monkeypatch, caplog):
    async def nothing(distant):
        return distant._ahead._value

    assert run(nothing) == 2 * PHOTOS_EACH  # two replicas at least
    options = in_process_ray.serve.options
    assert (options["num_replicas"], options["max_queued_requests"]) == (2, 2 * PHOTOS_EACH)
    assert options["ray_actor_options"] == {"num_cpus": 1.0, "num_gpus": 0}
    assert not caplog.records
    monkeypatch.setattr(in_process_ray, "available_resources", dict)
    assert run(nothing, 6) == 6 * PHOTOS_EACH
    assert in_process_ray.serve.options["ray_actor_options"]["num_cpus"] == 0.5
    assert "The replicas wait for 3 CPUs of Ray, 0 are free now." in caplog.text


def test_replicas_that_do_not_start_are_a_sentence(run, opened):
    opened.document = replace(opened.document, encoder="none")
    told = "^The replicas do not start: There is no encoder 'none': use [^\n]*$"
    with pytest.raises(GPCacheError, match=told):
        run(None)


def test_a_replica_with_another_encoder_does_not_start():
    with pytest.raises(EncoderError, match="install the same packages"):
        Replica("lite0", "0" * 64, "cpu", 0, 1)


@given(st.integers(0, 40), st.integers(1, 200))
def test_every_replica_finds_a_place(units, count):
    share = _share(units, count)
    assert 0 < share <= 1
    assert max(units, 1) * math.floor(1 / share) >= count


# The command.


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command that ends: its exit code, what it printed, and its sentence."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpcache", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return command


def test_the_help_tells_of_replicas(command):
    code, printed, _ = command("serve", "--engine", "ray", "--help")
    assert code == 0
    assert "--replicas" in printed
    assert "RAY_ADDRESS" in printed


def test_without_the_extra_it_is_a_sentence(command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)  # what an import then finds
    code, _, told = command("serve", "--engine", "ray", "--port", "0", "-w", tmp_path / "work")
    assert code == 2
    assert told.count("\n") == 1
    assert "pip install 'gpcache[ray]'" in told
    assert not (tmp_path / "work").exists()


def test_replicas_need_the_engine(command, tmp_path):
    code, _, told = command("serve", "--replicas", 3, "--port", "0", "-w", tmp_path / "work")
    assert code == 2
    assert "--engine ray" in told
