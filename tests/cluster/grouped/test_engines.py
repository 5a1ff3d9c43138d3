"""Ray gives the bits of the single process, from arrays and from files."""

import warnings

import numpy as np
import pytest

from gpcache import GPCacheError, NumericalError
from gpcache.cluster import connection as ray_cluster
from gpcache.cluster.grouped import GroupedCache
from gpcache.cluster.grouped.runner import task_runner
from gpcache.gp.cholesky import JitterWarning

pytest.importorskip("ray", reason="the extra gpcache[ray] is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with ray_cluster.connected(cpus=2) as ray:
        yield ray


@pytest.mark.parametrize("eta", [0.0, "auto"])
def test_same_bits(eta, problem):
    """Search, leave-one-out, fit and answers, all chosen, in float32."""
    options = {"n_groups": 4, "eta": eta, "text_prior": problem.prior, "device": "cpu"}
    here = GroupedCache(**options).fit(problem.X, problem.y)
    there = GroupedCache(**options, engine="ray").fit(problem.X, problem.y)
    for name, column in here.search_.items():
        assert column.tolist() == there.search_[name].tolist(), name
    assert (here.temperature_, here.entropy_slope_) == (there.temperature_, there.entropy_slope_)
    assert np.array_equal(here.loo_.logits, there.loo_.logits)
    assert np.array_equal(here.loo_.probabilities, there.loo_.probabilities)
    for mine, theirs in zip(here._model.parts, there._model.parts, strict=True):
        assert np.array_equal(mine.solved, theirs.solved)
    assert np.array_equal(here.logits(problem.queries), there.logits(problem.queries))
    for mine, theirs in zip(
        here.posterior(problem.queries), there.posterior(problem.queries), strict=True
    ):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_keys_in_a_file(engine, problem, tools, tmp_path):
    """A mapped file, whole or in part, is as good as the array, and only its name is kept."""
    file = tmp_path / "keys.npy"
    np.save(file, np.concatenate([problem.X, problem.X]))
    n = len(problem.X)
    mapped = np.load(file, mmap_mode="r")
    expected = tools.grouped_cache().fit(problem.X, problem.y).logits(problem.queries)
    part = tools.grouped_cache(engine=engine).fit(mapped[:n], problem.y)
    assert np.array_equal(part.logits(problem.queries), expected)
    whole = np.memmap(file, mapped.dtype, "r", offset=mapped.offset, shape=problem.X.shape)
    model = tools.grouped_cache(engine=engine).fit(whole, problem.y)
    assert np.array_equal(model.logits(problem.queries), expected)
    file.unlink()
    with pytest.raises(GPCacheError, match="cannot be read any more") as caught:
        model.predict(problem.queries)
    assert "\n" not in str(caught.value)


def _fails(item):
    raise NumericalError(f"Item {item} cannot be.")


def _warns(item):
    warnings.warn("lifted", JitterWarning, stacklevel=1)
    return item


@pytest.mark.parametrize("name", ["local", "ray"])
def test_errors_and_warnings_come_through(name):
    with task_runner(name) as runner:
        with pytest.raises(NumericalError, match=r"^Item 1 cannot be\.$"):
            list(runner.scatter(_fails, [1, 2]))
        with pytest.warns(JitterWarning, match="^lifted$"):
            assert list(runner.scatter(_warns, [5, 3, 4])) == [5, 3, 4]


def test_an_open_connection_stays_open(cluster, problem, tools):
    tools.grouped_cache(engine="ray").fit(problem.X, problem.y)
    assert cluster.is_initialized()
