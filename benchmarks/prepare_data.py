"""Writes the data of the specs in benchmarks/shared/ as .npz files in build/data.

    python benchmarks/prepare_data.py            # ten data sets, 55 MB; needs the photos and `lite`

The eight feature files are taken as they are, but for DTD ViT-B/32: its shots are drawn from its
validation rows by `numpy.random.default_rng(seed)`, class by class. The photos of caltech20 and
trash6 go through `lite`; their shots are drawn in the same way. `images` is a link to the photos
themselves. `splits/` has 40 random splits of all photos of both sets. Nothing of this is part of
the project: the folder is not committed.
"""

import shutil
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from development_data import folder
from numpy.typing import NDArray

PLACE = Path(__file__).resolve().parent.parent / "build" / "data"
SHOTS, SEEDS = (1, 2, 4, 8, 16), range(5)
# Intervals and prediction sets are measured over many draws of one size.
MANY_SEEDS, MANY_SHOTS = range(20), (4,)
DRAWN, PHOTOS = "dtd_vitb32", ("caltech20", "trash6")
SPLITS = range(40)
Arrays = dict[str, NDArray[Any]]


def draws(labels: NDArray[np.int64]) -> Arrays:
    """The rows of every draw, by the names that `gpcache benchmark` reads."""
    found = {}
    for shots, seed in [*product(SHOTS, SEEDS), *product(MANY_SHOTS, MANY_SEEDS)]:
        choose = np.random.default_rng(seed).choice
        rows = [choose(np.flatnonzero(labels == one), shots, False) for one in np.unique(labels)]
        found[f"draw{shots}_{seed}"] = np.concatenate(rows).astype(np.int32)
    return found


def drawn_from_validation(name: str) -> Arrays:
    """The arrays of a file with its validation rows as the rows to draw from."""
    with np.load(folder("features") / f"{name}.npz", allow_pickle=False) as opened:
        arrays = {key: opened[key] for key in ("classnames", "text", "test_x", "test_y")}
        arrays |= {"train_x": opened["val_x"], "train_y": opened["val_y"]}
    return arrays | draws(arrays["train_y"])


def photos(name: str) -> Arrays:
    """The photos of both parts through `lite`, and unlabelled photos as rows of no class."""
    from gpcache import FeatureStore, Prompts, load_encoder, text_weights
    from gpcache.features.extract import extract
    from gpcache.images.sources import open_source

    def encoded(place: Path, split: str | None = None) -> Any:
        with tempfile.TemporaryDirectory() as store:
            extract(open_source(place), store, encoder, split=split)
            return FeatureStore.open(store).read(split=split)

    encoder = load_encoder("lite", device="cpu")
    arrays: Arrays = {"logit_scale": np.array(encoder.logit_scale)}
    for part in ("train", "test"):
        rows = encoded(folder("images") / name / part)
        order = np.argsort(rows.paths)  # draws depend on it
        classes, numbers = np.unique(rows.labels, return_inverse=True)
        arrays[f"{part}_x"] = rows.features[order].astype(np.float16)
        arrays[f"{part}_y"] = numbers[order]
    arrays["classnames"] = classes
    arrays["text"] = text_weights(encoder, Prompts.from_templates(list(classes)))
    if name == PHOTOS[0]:
        outside = encoded(folder("images") / "unlabelled", "all")
        arrays["outside_x"] = outside.features.astype(np.float16)
    return arrays | draws(arrays["train_y"])


def write_splits(name: str) -> None:
    """Write random splits of all photos of a set: up to 16 shots a class, and the rest to test."""
    with np.load(PLACE / f"{name}.npz", allow_pickle=False) as opened:
        arrays = {key: opened[key] for key in ("classnames", "text", "logit_scale")}
        rows, labels = (
            np.concatenate([opened[f"{part}_{axis}"] for part in ("train", "test")])
            for axis in "xy"
        )
    for seed in SPLITS:
        choose = np.random.default_rng(seed).choice
        drawn = np.stack(
            [choose(np.flatnonzero(labels == one), SHOTS[-1], False) for one in np.unique(labels)]
        )
        split = arrays | {"test_x": np.delete(rows, drawn, axis=0)}
        split["test_y"] = np.delete(labels, drawn)
        for shots in SHOTS:
            some = drawn[:, :shots].flatten()
            split |= {f"train{shots}_x": rows[some], f"train{shots}_y": labels[some]}
        np.savez(PLACE / "splits" / f"{name}-split{seed:02d}.npz", **split)


def main() -> None:
    """Write every file that is not there, each in one step."""
    PLACE.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder("features").glob("*.npz")):
        if file.stem != DRAWN and not (PLACE / file.name).exists():
            shutil.copyfile(file, PLACE / file.name)
    for name, make in ((DRAWN, drawn_from_validation), *((name, photos) for name in PHOTOS)):
        if not (place := PLACE / f"{name}.npz").exists():
            np.savez_compressed(PLACE / "new.npz", **make(name))
            (PLACE / "new.npz").replace(place)
            print(place)
    if not (PLACE / "splits").exists():
        (PLACE / "splits").mkdir()
        for name in PHOTOS:
            write_splits(name)
    if not (PLACE / "images").exists():
        (PLACE / "images").symlink_to(folder("images").resolve())


if __name__ == "__main__":
    main()
