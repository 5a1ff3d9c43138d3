"""A fit that does not fit into memory is one sentence, before it starts or while it runs."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from gpcache import GPCacheClassifier, GPCacheFClassifier
from gpcache.methods import Fourier, Grouped, Nystrom, TipAdapterClassifier
from gpcache.methods.cache.memory import fit_bytes

LIMITED = """
import resource
import numpy as np
from gpcache import GPCacheClassifier, NumericalError
from gpcache.support import devices

generator = np.random.default_rng(0)
X, y = generator.normal(size=(4000, 8)), np.arange(4000) % 10
GPCacheClassifier().fit(X[:40], y[:40])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000, resource.RLIM_INFINITY))
for free in (devices.free_memory, lambda device: 10**12):
    devices.free_memory = free  # the second time as if the memory were taken after the check
    try:
        GPCacheClassifier(approximation="exact").fit(X, y)
    except NumericalError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is that of Linux")
def test_a_fit_beyond_the_limit_of_the_process_is_one_sentence():
    # Threads that come and go take and free address space of their own.
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
    assert (done.stderr, done.returncode) == ("", 0)
    refused, stopped = done.stdout.splitlines()
    assert re.fullmatch(
        r"A fit of 4,000 shots of 10 classes needs \d{3}\.\d MB, but cpu has \d{2,3}\.\d MB free. "
        r"Use fewer shots, approximation='explicit' \(softmax\) or approximation='nystrom'\.",
        refused,
    )
    assert stopped == (
        "A fit of 4,000 shots of 10 classes ran out of memory. "
        "Use fewer shots, approximation='explicit' (softmax) or approximation='nystrom'."
    )


@pytest.mark.parametrize("likelihood", ["softmax", "gaussian"])
@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_approximations_need_less_and_more_shots_need_more(likelihood, space, problem):
    def needed(rows, approximation="exact"):
        model = GPCacheClassifier(
            likelihood=likelihood, kernel_space=space, approximation=approximation
        ).fit(problem.X, problem.y)
        shots = model.fitted_.shots
        many = shots[np.arange(rows) % len(shots)]
        return fit_bytes(model.fitted_.recipe, many, trained=False)

    assert needed(2_000) > 2 * needed(1_000)
    approximations = [Nystrom(50), Fourier(50), "class_mean"]
    if (space, likelihood) != ("raw", "gaussian"):
        # The leave-one-out search of groups keeps more than that of the exact posterior.
        approximations.append(Grouped(4))
    for approximation in approximations:
        assert needed(2_000, approximation) < needed(2_000)


def test_rows_for_validation_need_memory(problem):
    model = GPCacheClassifier().fit(problem.X, problem.y)
    recipe, shots = model.fitted_.recipe, model.fitted_.shots
    needed = [fit_bytes(recipe, shots, count, trained=False) for count in (0, 1_000, 100_000)]
    n, c = len(shots), shots.n_classes
    assert needed[1] > needed[0]
    assert needed[2] > 100_000 * (n + c) * 4


def test_a_whitening_of_many_features_is_counted():
    """The matrix alone has d × d numbers."""
    rows = np.random.default_rng(0).normal(size=(20, 1_500))
    model = GPCacheClassifier().fit(rows, np.arange(20) % 4)
    assert fit_bytes(model.fitted_.recipe, model.fitted_.shots, trained=False) > 8 * 1_500**2


@pytest.mark.parametrize("kind", [GPCacheFClassifier, TipAdapterClassifier])
def test_every_cache_is_counted(kind, problem):
    fitted = kind().fit(problem.X, problem.y).fitted_
    assert fit_bytes(fitted.recipe, fitted.shots, trained=fitted.training is not None) > 0
