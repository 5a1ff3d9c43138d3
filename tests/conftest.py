"""Settings that all tests share."""

import gc
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import gpcache  # noqa: F401  before a test imports onnxruntime, whose telemetry it switches off

# A slow machine is not a failure: timings live in benchmarks/.
settings.register_profile("gpcache", deadline=None)
settings.load_profile("gpcache")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The matrices are small: on a busy machine more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # for the processes that tests start
        yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory):
    """No test reads or leaves anything in the cache of the user; all processes share one."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPCACHE_CACHE", str(place / "cache" / "gpcache"))
        yield


# Fixtures that start a browser: what asks for one of them is slow.
SLOW_FIXTURES = frozenset({"browser"})
# Tests that took longest on a quiet machine, with or without the brackets of their parameters.
SLOW_TESTS = frozenset(Path(__file__).with_name("slow_tests.txt").read_text().splitlines())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as slow what `make test` leaves out; files with Ray and kills mark themselves."""
    for item in items:
        names = {item.nodeid, item.nodeid.partition("[")[0]}
        if names & SLOW_TESTS or SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Spare the garbage collector what stays to the end: modules and tests, a million objects."""
    gc.freeze()
