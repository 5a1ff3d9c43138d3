"""Real data for measuring: features and photos beside the project, or in $GPCACHE_DEV_DATA.

Nothing of it is part of the project. Feature files hold unit CLIP features in the community's
splits; where a file has no test rows its validation rows serve as the test set.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpcache import FeatureStore, Prompts, TextPrior, load_encoder, text_weights
from gpcache.features.extract import extract
from gpcache.features.store import Rows
from gpcache.images.sources import open_source
from gpcache.splits import draw_shots

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


def photo_features(*parts: str) -> tuple[list[Rows], TextPrior]:
    """The caltech20 photos of each part through `lite`, extracted once, and their text."""
    encoder = load_encoder("lite", device="cpu")
    place = Path(tempfile.gettempdir()) / "gpcache-caltech20.store"
    for part in parts:
        source = open_source(folder("images") / "caltech20" / part)
        extract(source, place, encoder, split=part)
    store = FeatureStore.open(place)
    rows = [store.read(split=part) for part in parts]
    prompts = Prompts.from_templates(sorted(set(rows[0].labels)))
    prior = TextPrior(prompts.class_names, text_weights(encoder, prompts), encoder.logit_scale)
    return rows, prior


def photo_tasks(
    shots: tuple[int, ...] = (1, 2, 4, 8, 16), *, test: str = "train"
) -> Iterator[Task]:
    """Draws from the training photos; tested on the rest of them, or on the test photos.

    Defaults are chosen on the former, so that the test photos stay for reporting.
    """
    (train, *other), prior = photo_features(*dict.fromkeys(("train", test)))
    for k in shots:
        for draw in range(DRAWS):
            drawn = draw_shots(train.labels, train.paths, k, draw)
            X, y = train.features[drawn.indices], train.labels[drawn.indices]
            rest = train.features[drawn.rest], train.labels[drawn.rest]
            tested = (other[0].features, other[0].labels) if other else rest
            yield Task("caltech20_lite", k, draw, X, y, *tested, prior, None, None)


def tasks(name: str, shots: tuple[int, ...] = (1, 2, 4, 8, 16)) -> Iterator[Task]:
    """Every draw at every number of shots that the file allows."""
    with np.load(folder() / f"{name}.npz", allow_pickle=False) as file:
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


def caltech_with_text(name: str = "caltech101_vitb32") -> Iterator[Task]:
    """The 39 Caltech classes that are ImageNet classes too, and so have text."""
    with np.load(folder() / f"{name}.npz", allow_pickle=False) as file:
        names = file["classnames"][file["sub_labels"]]
        prior = TextPrior(list(names), file["sub_text"])
    for task in tasks(name):
        kept, tested = np.isin(task.y, names), np.isin(task.y_test, names)
        assert task.X_tuning is not None
        assert task.y_tuning is not None
        tuned = np.isin(task.y_tuning, names)
        yield Task(
            f"{name}, 39 classes",
            task.shots,
            task.draw,
            task.X[kept],
            task.y[kept],
            task.X_test[tested],
            task.y_test[tested],
            prior,
            task.X_tuning[tuned],
            task.y_tuning[tuned],
        )
