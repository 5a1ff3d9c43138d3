"""Real data for measuring: features and photos beside the project, or in $GPCACHE_DEV_DATA.

Nothing of it is part of the project. Feature files hold unit CLIP features in the community's
splits; where a file has no test rows its validation rows serve as the test set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpcache import TextPrior

DRAWS = 5
CHOOSING = ("dtd_vitb32", "caltech101_vitb32")
REPORTING = ("stanford_cars_vitb32", "oxford_flowers_vitb32", "dtd_rn50", "caltech101_vitb16")


@dataclass(frozen=True)
class Task:
    """Shots, text and test rows of one draw of one data set; `tuning` is its validation set."""

    name: str
    shots: int
    draw: int
    X: NDArray[np.float32]
    y: NDArray[np.str_]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.str_]
    prior: TextPrior | None
    X_tuning: NDArray[np.float32] | None
    y_tuning: NDArray[np.str_] | None


def folder(kind: str = "features") -> Path:
    """Where `kind` of data lie; ends the program with one sentence where they do not."""
    here = Path(__file__).resolve().parent.parent.parent / "shared"
    found = Path(os.environ.get("GPCACHE_DEV_DATA", here)) / kind
    if not found.is_dir():
        sys.exit(f"No {kind} in {found}: set GPCACHE_DEV_DATA to the folder that holds {kind}/.")
    return found


def tasks(
    name: str, shots: tuple[int, ...] = (1, 2, 4, 8, 16), place: Path | None = None
) -> Iterator[Task]:
    """Every draw at every number of shots that the file allows; `place` holds the files."""
    with np.load((place or folder()) / f"{name}.npz", allow_pickle=False) as file:
        data = {key: file[key] for key in file.files}
    names = data["classnames"]

    def rows(split: str) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
        return data[f"{split}_x"].astype(np.float32), names[data[f"{split}_y"]]

    prior = TextPrior(list(names), data["text"]) if "text" in data else None
    X_val, y_val = rows("val")
    X_test, y_test = rows("test") if "test_x" in data else (X_val, y_val)
    tuning = (X_val, y_val) if "test_x" in data else (None, None)
    for k in shots:
        if name == "dtd_vitb32":  # drawn from val, of which the rest is left to choose on
            for draw in range(DRAWS):
                generator = np.random.default_rng(draw)
                chosen = np.concatenate(
                    [
                        generator.choice(np.flatnonzero(y_val == label), k, replace=False)
                        for label in names
                    ]
                )
                left = np.setdiff1d(np.arange(len(y_val)), chosen)
                shots_of_draw = X_val[chosen], y_val[chosen]
                rest = X_val[left], y_val[left]
                yield Task(name, k, draw, *shots_of_draw, X_test, y_test, prior, *rest)
        elif f"train{k}_x" in data:
            yield Task(name, k, 0, *rows(f"train{k}"), X_test, y_test, prior, *tuning)
