"""Settings that all tests share."""

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
    yield
    torch.set_num_threads(threads)


# Fixtures that start a browser: what asks for one of them is slow.
SLOW_FIXTURES = frozenset({"browser"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
