"""Accuracy after 20 to 80 labels chosen by `suggest`, compared with other choices.

Writes a section of docs/results/photos.md; `lite` must be installed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from development_data import photo_features
from numpy.typing import NDArray
from pages import table, write_page

from gpcache import GPCacheClassifier
from gpcache.model.suggest import suggest

SEEDS = 10
POOL = 300
BATCH = 20
BUDGETS = (20, 40, 60, 80)

TEXT = """
A pool of 300 of the 400 caltech20 training photos through `lite` (20 classes), another one for each
of 10 seeds. 20 to 80 of them are labelled. The default classifier is fitted **without text** on
these only, and tested on the 378 test photos. Accuracy in %, mean ± deviation over the seeds, and
the number of classes among the first 20 labels.

- *random*: uniformly.
- *suggest*: all photos chosen at once, before any label is known.
- *suggest, with model*: 20 without labels, then 20 at a time from a model fitted on those so far;
  *its own noise* takes the model's noise instead of 0.01.
- *k-centre*: the row farthest from all chosen ones, starting with the most central one.
- *uncertainty*: 20 at random, then 20 at a time by the least margin of a model fitted so far;
  *suggest, then uncertainty* starts from the 20 of suggest.

β = 1, noise = 0.01 and the centred space were chosen among 40 settings on the training photos, some
of them also on DTD and Caltech101 (ViT-B/32, test rows), never on these test photos. The decision
not to use the model's noise was not made on them either. Most of these classes are ImageNet
classes, which the image network of `lite` was trained on.
"""

Rows = NDArray[np.float32]
Labels = NDArray[np.str_]
Choose = Callable[[Rows, Labels, int], list[int]]


def at_random(pool: Rows, _labels: Labels, seed: int) -> list[int]:
    """Any rows."""
    order: list[int] = np.random.default_rng(seed).permutation(len(pool)).tolist()
    return order[: BUDGETS[-1]]


def suggested(pool: Rows, _labels: Labels, _seed: int) -> list[int]:
    """All rows before any label."""
    rows: list[int] = suggest(pool, BUDGETS[-1]).rows.tolist()
    return rows


def k_centre(pool: Rows, _labels: Labels, _seed: int) -> list[int]:
    """The farthest row from all chosen, again and again."""
    chosen = [int((pool @ pool.mean(0)).argmax())]
    distance = 1 - pool @ pool[chosen[0]]
    while len(chosen) < BUDGETS[-1]:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, 1 - pool @ pool[chosen[-1]])
    return chosen


def in_batches(
    start: Choose, best: Callable[[GPCacheClassifier, Rows], NDArray[np.int64]]
) -> Choose:
    """The first of `start`, then batches that a model fitted on the labels so far chooses."""

    def choose(pool: Rows, labels: Labels, seed: int) -> list[int]:
        chosen = start(pool, labels, seed)[:BATCH]
        while len(chosen) < BUDGETS[-1]:
            model = GPCacheClassifier.from_options(device="cpu").fit(pool[chosen], labels[chosen])
            rest = np.setdiff1d(np.arange(len(pool)), chosen)
            chosen += rest[best(model, pool[rest])].tolist()
        return chosen

    return choose


def least_margin(model: GPCacheClassifier, rest: Rows) -> NDArray[np.int64]:
    """The rows between two classes."""
    ordered = np.sort(model.predict_proba(rest), axis=1)
    return np.argsort(ordered[:, -1] - ordered[:, -2], kind="stable")[:BATCH]


STRATEGIES: dict[str, Choose] = {
    "random": at_random,
    "suggest": suggested,
    "suggest, with model": in_batches(
        suggested, lambda model, rest: suggest(rest, BATCH, model=model).rows
    ),
    "suggest, with model, its own noise": in_batches(
        suggested, lambda model, rest: suggest(rest, BATCH, model=model, noise=model.noise_).rows
    ),
    "k-centre": k_centre,
    "uncertainty": in_batches(at_random, least_margin),
    "suggest, then uncertainty": in_batches(suggested, least_margin),
}


def main() -> None:
    """Choose, label, fit, test, and write the page."""
    (train, test), _ = photo_features("train", "test")
    rows: list[list[object]] = [
        ["choice", *(f"{budget} labels" for budget in BUDGETS), "classes in 20"]
    ]
    for name, choose in STRATEGIES.items():
        figures = []
        for seed in range(SEEDS):
            drawn = np.random.default_rng(seed).permutation(len(train.features))[:POOL]
            pool, labels = train.features[drawn], train.labels[drawn]
            chosen = choose(pool, labels, seed)
            accuracies = []
            for budget in BUDGETS:
                known = chosen[:budget]
                model = GPCacheClassifier.from_options(device="cpu").fit(pool[known], labels[known])
                accuracies.append(100 * np.mean(model.predict(test.features) == test.labels))
            figures.append([*accuracies, len(set(labels[chosen[: BUDGETS[0]]]))])
        *mean, classes = np.mean(figures, 0)
        spread = np.std(figures, 0)
        cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(mean, spread, strict=False)]
        rows.append([name, *cells, f"{classes:.1f}"])
    write_page("suggest", "What to label next", TEXT, table(rows))


if __name__ == "__main__":
    main()
