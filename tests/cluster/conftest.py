"""The encoder of colours that the tests of extraction use, and Ray: in this process, or not."""

import importlib.util
import logging
from contextlib import contextmanager
from pathlib import Path

import pytest


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tiny = loaded(Path(__file__).parents[1] / "features" / "tiny.py")
in_process_ray = loaded(Path(__file__).with_name("in_process_ray.py")).in_process_ray


@pytest.fixture(scope="session")
def ray_nodes():
    """Makes clusters of three nodes."""
    return loaded(Path(__file__).with_name("ray_nodes.py"))


@pytest.fixture
def encoder():
    return tiny.ColourEncoder()


def pytest_ignore_collect(collection_path):
    """Leave out what needs the extra `ray`: importing it to find out would slow down every run."""
    own = collection_path.parent == Path(__file__).parent
    needs_ray = (
        collection_path.name.startswith("test_") and collection_path.name != "test_in_process.py"
    )
    return True if own and needs_ray and importlib.util.find_spec("ray") is None else None


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
