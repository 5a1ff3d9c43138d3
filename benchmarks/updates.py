"""Do photos that are added one by one end in the model that all of them give at once?

Writes a section of docs/results/photos.md; `lite` must be installed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from development_data import folder
from numpy.typing import NDArray
from pages import table, write_page

from gpcache import FeatureStore, GPCacheClassifier, TextPrior, load_encoder, metrics
from gpcache.encoders import Encoder
from gpcache.encoders.prompts import Prompts, text_weights
from gpcache.features.extract import extract
from gpcache.images.sources import open_source

FIRST, ALL = 5, 16
BARS = {"accuracy": 0.5, "ECE": 1.0}

TEXT = """
**Data**: the photos of caltech20 and trash6 through `lite`, with class names. **Protocol**: no
validation set; {draws} draws of {all} photos a class. The first {first} of each class are fitted,
the others added by `GPCacheClassifier.add`, one call for each photo, in random order. *At once* is
a fit on the same photos. *Kept* adds them with `refit=False`: all choices are those of the first
{first}. Figures are means over the draws on the test photos, in %.
"""

Rows = tuple[NDArray[np.float32], NDArray[np.str_]]


def rows_of(name: str, part: str, encoder: Encoder) -> Rows:
    """Features and labels of one part of the photos, extracted once."""
    place = Path(tempfile.gettempdir()) / f"gpcache-{name}-{part}.store"
    extract(open_source(folder("images") / name / part), place, encoder, split="all")
    found = FeatureStore.open(place).read(split="all")
    return found.features, found.labels


def figures(model: GPCacheClassifier, X: NDArray[np.float32], y: NDArray[np.str_]) -> list[float]:
    """Accuracy and ECE in %."""
    p = model.predict_proba(X)
    numbers = np.searchsorted(model.classes_, y)
    return [100 * float((p.argmax(1) == numbers).mean()), 100 * metrics.ece(p, numbers)]


def draw(train: Rows, test: Rows, prior: TextPrior, seed: int) -> NDArray[np.float64]:
    """(3, 2): accuracy and ECE at once, one by one, and at kept choices."""
    X, y = train
    generator = np.random.default_rng(seed)
    drawn = [generator.permutation(np.flatnonzero(y == name))[:ALL] for name in np.unique(y)]
    first = np.concatenate([rows[:FIRST] for rows in drawn])
    rest = generator.permutation(np.concatenate([rows[FIRST:] for rows in drawn]))
    both = np.concatenate([first, rest])
    at_once = GPCacheClassifier(text_prior=prior).fit(X[both], y[both])
    by_one = GPCacheClassifier(text_prior=prior).fit(X[first], y[first])
    kept = GPCacheClassifier(text_prior=prior).fit(X[first], y[first])
    for row in rest:
        by_one.add(X[[row]], y[[row]])
    kept.add(X[rest], y[rest], refit=False)
    return np.array([figures(model, *test) for model in (at_once, by_one, kept)])


def main() -> None:
    """Measure both sets and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=5)
    draws = parser.parse_args().draws
    encoder = load_encoder("lite", device="cpu")
    rows: list[list[object]] = [
        ["data", "figure", "at once", "one by one", "kept", "one by one − at once", "bar"]
    ]
    for name in ("caltech20", "trash6"):
        train, test = (rows_of(name, part, encoder) for part in ("train", "test"))
        names = np.unique(train[1]).tolist()
        prompts = Prompts.from_templates(names, ["a photo of a {}."])
        prior = TextPrior(names, text_weights(encoder, prompts), encoder.logit_scale)
        found = np.array([draw(train, test, prior, seed) for seed in range(draws)])
        for place, figure in enumerate(BARS):
            at_once, by_one, kept = found[:, :, place].mean(0)
            gaps = found[:, 1, place] - found[:, 0, place]
            shown = f"{gaps.mean():+.2f} (draws: {gaps.min():+.1f} to {gaps.max():+.1f})"
            cells = [f"{value:.1f}" for value in (at_once, by_one, kept)]
            rows.append([name, figure, *cells, shown, f"± {BARS[figure]:g}"])
    text = TEXT.format(draws=draws, first=FIRST, all=ALL)
    write_page("updates", "Photos added one by one", text, table(rows))


if __name__ == "__main__":
    main()
