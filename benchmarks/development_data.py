"""Data for measuring: real features and photos, and drawn points.

The real ones lie beside the project, or in $GPCACHE_DEV_DATA; they are not part of it. Feature
files hold unit CLIP features in the community's splits; where a file has no test rows its
validation rows serve as the test set.
"""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from gpcache import TextPrior
from gpcache.benchmark.datasets.stored_features import open_features

CHOOSING = ("dtd_vitb32", "caltech101_vitb32")
REPORTING = ("stanford_cars_vitb32", "oxford_flowers_vitb32", "dtd_rn50", "caltech101_vitb16")


class Task(NamedTuple):
    """Shots, test rows and text of a data set."""

    X: NDArray[np.float32]
    y: NDArray[np.str_]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.str_]
    prior: TextPrior | None


def folder(kind: str) -> Path:
    """Where `kind` of data lie; ends the program with one sentence where they do not."""
    here = Path(__file__).resolve().parent.parent.parent / "shared"
    found = Path(os.environ.get("GPCACHE_DEV_DATA", here)) / kind
    if not found.is_dir():
        sys.exit(f"No {kind} in {found}: set GPCACHE_DEV_DATA to the folder that holds {kind}/.")
    return found


def task_of(name: str, shots: int = 16) -> Task:
    """A feature file at a number of shots; the first draw, if there are several."""
    task = open_features(folder("features") / f"{name}.npz")
    return Task(*task.draw(shots, 0).shots[:2], task.test.features, task.test.labels, task.prior)


def points(
    n: int, n_classes: int, width: int, spread: float = 1.5
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Unit rows around random class means, and their labels."""
    generator, labels = np.random.default_rng(0), np.arange(n) % n_classes
    rows = generator.normal(size=(n_classes, width))[labels]
    return normalize(rows + spread * generator.normal(size=rows.shape)), labels
