"""Where Ray comes from: a cluster of one's own, or the one that RAY_ADDRESS names."""

import os
import socket
import subprocess
import sys

import pytest

from gpcache.cluster import connection as ray_cluster
from gpcache.errors import GPCacheError

pytestmark = pytest.mark.slow


def test_starts_and_stops_what_was_not_there(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with ray_cluster.connected(cpus=1) as ray:
        assert ray.cluster_resources()["CPU"] == 1
        with ray_cluster.connected() as same:
            assert same is ray
        assert ray.is_initialized()
    assert not ray.is_initialized()


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_an_address_where_nobody_is(prefix, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"{prefix}127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with (
            pytest.raises(GPCacheError, match="No Ray cluster could be joined") as caught,
            ray_cluster.connected(),
        ):
            pass
    assert address in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stranger_without_the_token_cannot_join_a_local_cluster():
    """In a process of its own: Ray reads its token when it is first imported."""
    program = """
import os, subprocess, sys
from gpcache.cluster.connection import connected

stranger = "import ray; ray.init(address=sys.argv[1], log_to_driver=False)"
with connected(cpus=1) as ray:
    address = ray.get_runtime_context().gcs_address
    bare = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    for environment in (dict(os.environ), bare):
        done = subprocess.run(
            [sys.executable, "-c", "import sys; " + stranger, address],
            env=environment, capture_output=True, timeout=300,
        )
        print(done.returncode == 0)
"""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    found = subprocess.run(
        [sys.executable, "-c", program], env=bare, capture_output=True, text=True, timeout=300
    )
    assert found.stdout.split() == ["True", "False"], found.stderr
