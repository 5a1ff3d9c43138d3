"""The encoder of colours that the tests of extraction use, and a local Ray cluster."""

import importlib.util
import logging
from contextlib import contextmanager
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location(
    "tiny", Path(__file__).parents[1] / "features" / "tiny.py"
)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)


@pytest.fixture
def encoder():
    return tiny.ColourEncoder()


@pytest.fixture(scope="session")
def local_cluster():
    """Starts a cluster of processes on this machine, which says nothing and reports nowhere."""

    @contextmanager
    def started(num_cpus):
        import ray

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
            patch.delenv("RAY_ADDRESS", raising=False)
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
            yield
            ray.shutdown()

    return started
