"""A run that is killed goes on, and ends with the very numbers of one that was not."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from gpcache import ModelFileError
from gpcache.similarity import ProjectionOptions, learn_projection
from gpcache.similarity.checkpoint import Checkpoint

PROGRAM = Path(__file__).with_name("killed.py")
spec = importlib.util.spec_from_file_location("killed", PROGRAM)
killed = importlib.util.module_from_spec(spec)
spec.loader.exec_module(killed)

SMALL = ProjectionOptions(neighbours=4, batch_size=8, epochs=2)


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(2, 20, 6))


def test_a_killed_run_ends_as_one_that_was_let_be(tmp_path):
    place = tmp_path / "checkpoint"
    process = subprocess.Popen(
        [sys.executable, PROGRAM, place], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 300
    while not place.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    assert process.wait() != 0, "it ended before it could be killed"
    features = killed.features()
    resumed, history = learn_projection(
        *features, options=killed.OPTIONS, checkpoint=Checkpoint(place), device="cpu"
    )
    whole, expected = learn_projection(*features, options=killed.OPTIONS, device="cpu")
    assert history == expected
    assert all(map(torch.equal, resumed.weights, whole.weights))


def test_a_run_that_is_over_is_not_learned_again(tmp_path, rows):
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    first, history = learn_projection(*rows, options=SMALL, checkpoint=checkpoint, device="cpu")
    written = checkpoint.path.stat().st_mtime_ns
    again, same = learn_projection(*rows, options=SMALL, checkpoint=checkpoint, device="cpu")
    assert torch.equal(first.matrix, again.matrix)
    assert (history, written) == (same, checkpoint.path.stat().st_mtime_ns)
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []


def test_another_run_and_damage_are_refused(tmp_path, rows):
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    learn_projection(*rows, options=SMALL, checkpoint=checkpoint, device="cpu")
    other = ProjectionOptions(neighbours=4, batch_size=8, epochs=3)
    for features, options in ((rows, other), (rows[::-1], SMALL)):
        with pytest.raises(ModelFileError, match="belongs to other images or options"):
            learn_projection(*features, options=options, checkpoint=checkpoint, device="cpu")
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:-9])
    with pytest.raises(ModelFileError, match="is damaged: remove it to start again"):
        learn_projection(*rows, options=SMALL, checkpoint=checkpoint, device="cpu")
