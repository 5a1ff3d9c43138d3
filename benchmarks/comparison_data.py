"""The cells of the comparison: which shots, text and test rows a method is given.

A cell is a data set at a number of shots; some cells have five draws. Nothing here looks at rows
that are neither shots nor test rows.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from development_data import DRAWS, Task, caltech_with_text, tasks
from numpy.typing import NDArray

from gpcache import TextPrior

SHOTS = (1, 2, 4, 8, 16)
PHOTO_SETS = ("caltech20", "trash6")
# Intervals of held-out accuracy: many draws of one size, the default alone.
INTERVAL_SHOTS, INTERVAL_DRAWS = 5, 20
WRONG_LABELS = 0.1
PROTOCOLS = ("plain", "unequal", "wrong", "interval")


@dataclass(frozen=True)
class DataSet:
    """A data set as the pages name it; `shots` it has, several `draws` or one."""

    name: str
    title: str
    group: str
    text: bool = False
    shots: tuple[int, ...] = SHOTS
    draws: int = 1


@dataclass(frozen=True)
class Cell:
    """One draw of one data set at a number of shots, under one protocol."""

    data: str
    shots: int
    draw: int
    protocol: str = "plain"


SUBSET = "39 classes, text"
_SETS = (
    DataSet("dtd_vitb32", "DTD ViT-B/32, text", "choosing", True, draws=DRAWS),
    DataSet("caltech101_vitb32", "Caltech ViT-B/32", "choosing"),
    DataSet(f"caltech101_vitb32 ({SUBSET})", f"Caltech ViT-B/32, {SUBSET}", "choosing", True),
    DataSet("oxford_pets_vitb32", "Pets ViT-B/32", "choosing"),
    DataSet("ucf101_vitb32", "UCF101 ViT-B/32", "choosing"),
    DataSet("caltech20 (names)", "caltech20 photos, names", "choosing", True, draws=DRAWS),
    DataSet("caltech20 (no names)", "caltech20 photos, no names", "choosing", draws=DRAWS),
    DataSet("trash6 (names)", "trash6 photos, names", "choosing", True, draws=DRAWS),
    DataSet("trash6 (no names)", "trash6 photos, no names", "choosing", draws=DRAWS),
    DataSet("stanford_cars_vitb32", "Cars ViT-B/32, text", "reporting", True),
    DataSet("oxford_flowers_vitb32", "Flowers ViT-B/32", "reporting"),
    DataSet("dtd_rn50", "DTD RN50", "reporting", shots=(2, 4, 8, 16)),
    DataSet("caltech101_vitb16", "Caltech ViT-B/16", "reporting", shots=(16,)),
    DataSet(
        f"caltech101_vitb16 ({SUBSET})",
        f"Caltech ViT-B/16, {SUBSET}",
        "reporting",
        True,
        shots=(16,),
    ),
)
SETS = {data.name: data for data in _SETS}


def without_names(name: str) -> str:
    """The set whose rows a method without text shares: names change nothing for it."""
    return name.replace("(names)", "(no names)")


def cells(protocol: str) -> list[Cell]:
    """All cells of a protocol, in the order of the pages."""
    found = []
    for data in SETS.values():
        if protocol == "interval":
            is_asked = data.name.endswith("(names)")
            shots: tuple[int, ...] = (INTERVAL_SHOTS,) if is_asked else ()
            draws = INTERVAL_DRAWS
        else:
            asked = {"plain": SHOTS, "unequal": (16,), "wrong": (8, 16)}[protocol]
            if protocol != "plain" and data.name.endswith(("(no names)", f"({SUBSET})")):
                continue  # the same photos and features as the set beside it
            shots, draws = tuple(k for k in asked if k in data.shots), data.draws
        found += [Cell(data.name, k, draw, protocol) for k in shots for draw in range(draws)]
    return found


def load(cell: Cell, features: Path, photos: Path) -> Task:
    """The shots, the text and the test rows of a cell."""
    task = _tasks(cell.data, features, photos)[cell.shots, cell.draw]
    if cell.protocol == "unequal":
        return _unequal(task)
    return _wrong(task) if cell.protocol == "wrong" else task


@cache
def _tasks(name: str, features: Path, photos: Path) -> dict[tuple[int, int], Task]:
    base = name.partition(" ")[0]
    if base in PHOTO_SETS:
        found = _photo_tasks(base, photos, with_names=name.endswith("(names)"))
    elif SUBSET in name:
        found = list(caltech_with_text(base, features))
    else:
        found = list(tasks(base, SHOTS, features))
    return {(task.shots, task.draw): task for task in found}


def _photo_tasks(name: str, photos: Path, *, with_names: bool) -> list[Task]:
    with np.load(photos, allow_pickle=False) as file:
        data = {key: file[f"{name}_{key}"] for key in ("classes", "text", "train_x", "train_y")}
        data |= {key: file[f"{name}_{key}"] for key in ("test_x", "test_y")}
        scale = float(file["logit_scale"])
    classes = data["classes"].astype(str)
    prior = TextPrior(list(classes), data["text"], scale) if with_names else None
    y, y_test = classes[data["train_y"]], classes[data["test_y"]]
    sizes = [(k, draw) for k in SHOTS for draw in range(DRAWS)]
    found = []
    for k, draw in sizes + [(INTERVAL_SHOTS, draw) for draw in range(INTERVAL_DRAWS)]:
        rows = _draw(y, dict.fromkeys(classes, k), np.random.default_rng(draw))
        shots = data["train_x"][rows], y[rows]
        found.append(Task(name, k, draw, *shots, data["test_x"], y_test, prior, None, None))
    return found


def _draw(
    labels: NDArray[np.str_], counts: dict[Any, int], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of each class, as many as `counts` says."""
    drawn = [
        generator.choice(np.flatnonzero(labels == label), count, replace=False)
        for label, count in counts.items()
    ]
    return np.concatenate(drawn)


def _unequal(task: Task) -> Task:
    """1 to 16 of the sixteen shots of each class, uniformly."""
    generator = np.random.default_rng([task.draw, 1])
    classes = np.unique(task.y)
    counts = dict(zip(classes, generator.integers(1, 17, len(classes)).tolist(), strict=True))
    rows = _draw(task.y, counts, generator)
    return replace(task, X=task.X[rows], y=task.y[rows])


def _wrong(task: Task) -> Task:
    """A tenth of the labels replaced by another class, uniformly."""
    generator = np.random.default_rng([task.draw, 2])
    classes, numbers = np.unique(task.y, return_inverse=True)
    rows = generator.choice(len(task.y), round(WRONG_LABELS * len(task.y)), replace=False)
    shift = generator.integers(1, len(classes), len(rows))
    numbers[rows] = (numbers[rows] + shift) % len(classes)
    return replace(task, y=classes[numbers])


def extract_photos(images: Path, place: Path) -> None:
    """Write the features and the text of both photo sets through `lite` to `place`."""
    # Imported here: a machine that is given the features needs neither images nor encoders.
    from gpcache import FeatureStore, Prompts, load_encoder, text_weights
    from gpcache.features.extract import extract
    from gpcache.images.sources import open_source

    encoder = load_encoder("lite", device="cpu")
    found: dict[str, Any] = {"logit_scale": np.float32(encoder.logit_scale)}
    with tempfile.TemporaryDirectory() as temporary:
        for name in PHOTO_SETS:
            for part in ("train", "test"):
                store = Path(temporary) / f"{name}-{part}"
                extract(open_source(images / name / part), store, encoder)
                rows = FeatureStore.open(store).read()
                order = np.argsort(rows.paths)  # draws depend on it
                classes, numbers = np.unique(rows.labels, return_inverse=True)
                found[f"{name}_{part}_x"] = rows.features[order]
                found[f"{name}_{part}_y"] = numbers[order]
            found[f"{name}_classes"] = classes
            found[f"{name}_text"] = text_weights(encoder, Prompts.from_templates(list(classes)))
    place.parent.mkdir(parents=True, exist_ok=True)
    written = place.with_name(f"{place.name}.new.npz")
    np.savez(written, **found)
    written.replace(place)
