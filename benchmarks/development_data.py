"""Data for measuring: real features and photos, and drawn points.

The real ones lie beside the project, or in $GPCACHE_DEV_DATA; they are not part of it. Feature
files hold unit CLIP features in the community's splits; where a file has no test rows its
validation rows serve as the test set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from gpcache import TextPrior

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
    with np.load(folder("features") / f"{name}.npz", allow_pickle=False) as file:
        data = dict(file)
    names = data["classnames"]

    def rows(split: str) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
        return data[f"{split}_x"].astype(np.float32), names[data[f"{split}_y"]]

    X, y = rows(f"train{shots}" if name != "dtd_vitb32" else "val")
    if name == "dtd_vitb32":
        generator, places = np.random.default_rng(0), [np.flatnonzero(y == one) for one in names]
        chosen = np.concatenate([generator.choice(one, shots, replace=False) for one in places])
        X, y = X[chosen], y[chosen]
    prior = TextPrior(list(names), data["text"]) if "text" in data else None
    return Task(X, y, *rows("test" if "test_x" in data else "val"), prior)


def points(
    n: int, n_classes: int, width: int, spread: float = 1.5
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Unit rows around random class means, and their labels."""
    generator, labels = np.random.default_rng(0), np.arange(n) % n_classes
    rows = generator.normal(size=(n_classes, width))[labels]
    return normalize(rows + spread * generator.normal(size=rows.shape)), labels
