"""Planted label errors and planted copies: what an audit, cleanlab and imagehash find.

Writes a section of docs/results/photos.md. `lite`, `cleanlab` and `imagehash` must be installed:
`pip install cleanlab imagehash`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from development_data import CHOOSING, REPORTING, folder, tasks
from label_error_copies import copy_rows, photo_sets
from numpy.typing import NDArray
from pages import table, write_page
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import cross_val_predict

from gpcache import TextPrior
from gpcache.gp.kernels import unit_rows
from gpcache.model.audit import audit
from gpcache.model.audit.verdicts import CERTAIN
from gpcache.model.training_images import Example

SEEDS = 5
LARGE = 1000  # rows from which two seeds must do
SHARE = 20  # one label in this many is planted wrong
FOLDS = 5
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
PRECISION = 0.8

TEXT = f"""
Data: the training photos of caltech20 and trash6 through `lite`; 8 and 16 rows a class of DTD
ViT-B/32, drawn from its validation rows; 4 and 16 shots a class of Caltech101, Pets and UCF101
ViT-B/32. All of them are for choosing. Protocol: one label in {SHARE} is given to another class at
random, {SEEDS} seeds, two where there are more than {LARGE:,} rows; means.

*cleanlab*: `find_label_issues` and `get_label_quality_scores` with the probabilities of
scikit-learn's `LogisticRegression`, cross-validated in {FOLDS} folds on the same vectors. *AP* is
the average precision of the ranking. *certain* are the labels called almost certainly wrong, and
which share of them was planted; *both* is the share of the planted errors in the two lists
together, and in cleanlab's list; *listed* is the length of the two lists together, and that of
cleanlab's. *clean* counts labels called almost certainly wrong, and labels worth a look, before
errors were planted. Seconds are processor time of one thread: of the whole audit, including copies
and outliers, and of cleanlab with its cross-validation.
"""

CHOSEN = f"""
## The threshold

A label is called almost certainly wrong if the probability that it is wrong is over {CERTAIN}. Here
the threshold is the lowest of {", ".join(map(str, THRESHOLDS))} at which the precision is at least
{PRECISION:.0%} on each of the other data sets; the table shows its precision on the data set that
was left out. The threshold in use is higher, because the precision is lower if fewer labels than
one in {SHARE} are wrong.
"""

COPIES = """
## Near copies

Every training photo of caltech20 and trash6, and a copy of each: resized to 70 %, cropped by 4 %
at every side, mirrored, or saved again as a JPEG of quality 60. *found* is the share of the copies
that are paired with their originals: by features and pictures (`gpcache check`), by features alone,
and by the perceptual hash of `imagehash` (64 bits, mirrored hashes included) at the largest
distance without a false pair. Here every photo has a copy, so the usual distance to the nearest
image is that of copies, and features alone find none. *false* counts pairs of different photos.
Two pairs of caltech20 are copies in the data set itself and are not counted.
"""

DISTANCES = """
## How far apart different images are

Distances (1 − cosine) within each set, in units of the median over all its pairs. By features
alone, near-duplicates are within 0.05 of it (and within a fifth of the usual distance to the
nearest image). In no set are two images of different classes so close.
"""

LIMITS = """
## What this does not show

Errors that people make are not random: look-alike classes are confused first, and are harder to
find. Width of the kernel, noise, threshold and the bounds on copies were chosen on these sets, so
the tables are not an independent test; only the threshold is also shown on sets that it was not
chosen on. With few rows, the estimated share of wrong labels stays low, and most planted errors are
only worth a look.
"""

Labels = NDArray[np.str_]
Rows = NDArray[np.float32]


@dataclass
class Figures:
    """What was measured on one problem, seed after seed."""

    rows: int
    measured: list[list[float]] = field(default_factory=list)
    listed: list[dict[float, tuple[int, int]]] = field(default_factory=list)
    clean: tuple[int, int] = (0, 0)


def plant(labels: Labels, seed: int) -> tuple[Labels, NDArray[np.bool_]]:
    """Labels with errors, and where they are."""
    generator = np.random.default_rng(seed)
    rows = generator.choice(len(labels), round(len(labels) / SHARE), replace=False)
    names, wrong = np.unique(labels), labels.copy()
    for row in rows:
        wrong[row] = generator.choice(names[names != labels[row]])
    return wrong, wrong != labels


def problems() -> Iterator[tuple[str, int, Rows, Labels, TextPrior | None]]:
    """Name, seed, rows, true labels and text."""
    for name, photos in photo_sets().items():
        for seed in range(SEEDS):
            yield name, seed, photos.features, photos.labels, None
            yield f"{name}, text", seed, photos.features, photos.labels, photos.prior
    for shots in (8, 16):
        for task in tasks("dtd_vitb32", (shots,)):
            yield f"DTD, {shots} shots", task.draw, task.X, task.y, None
            yield f"DTD, {shots} shots, text", task.draw, task.X, task.y, task.prior
    for name in ("caltech101", "oxford_pets", "ucf101"):
        with np.load(folder() / f"{name}_vitb32.npz", allow_pickle=False) as file:
            names = file["classnames"].astype(str)
            for shots in (4, 16):
                X = file[f"train{shots}_x"].astype(np.float32)
                y = names[file[f"train{shots}_y"]]
                for seed in range(2 if len(y) > LARGE else SEEDS):
                    yield f"{name}, {shots} shots", seed, X, y, None


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the processor time that it took."""
    start = time.process_time()
    return work(), time.process_time() - start


def by_cleanlab(X: Rows, y: Labels) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How suspicious each row is, and which are listed."""
    numbers = np.searchsorted(np.unique(y), y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # four shots are fewer than the folds
        probabilities = cross_val_predict(
            LogisticRegression(), X, numbers, method="predict_proba", cv=FOLDS
        )
    listed = find_label_issues(numbers, probabilities, n_jobs=1)
    return -get_label_quality_scores(numbers, probabilities), listed


def examples_of(labels: Any) -> list[Example]:
    """Examples with these labels, all of different images."""
    return [Example(f"Row {row}", label, str(row)) for row, label in enumerate(labels)]


def measure() -> dict[str, Figures]:
    """Plant, rank and list, by both."""
    found: dict[str, Figures] = {}
    beside: dict[tuple[str, int], Any] = {}
    for problem, seed, X, y, prior in problems():
        wrong, bad = plant(y, seed)
        key = (problem.removesuffix(", text"), seed)
        if key not in beside:
            beside[key] = timed(lambda X=X, wrong=wrong: by_cleanlab(X, wrong))
        (score, issues), cleanlab_seconds = beside[key]
        result, seconds = timed(
            lambda X=X, wrong=wrong, prior=prior: audit(X, examples_of(wrong), text_prior=prior)
        )
        probability = result.model.wrong.numpy()
        certain, both = np.zeros(len(y), dtype=bool), np.zeros(len(y), dtype=bool)
        certain[[finding.row for finding in result.of("label")]] = True
        both[[finding.row for finding in result.of("label") + result.of("look")]] = True
        figures = found.setdefault(problem, Figures(len(y)))
        if seed == 0:
            clean = audit(X, examples_of(y), text_prior=prior)
            figures.clean = len(clean.of("label")), len(clean.of("look"))
        figures.measured.append(
            [
                average_precision_score(bad, probability),
                average_precision_score(bad, score),
                certain.sum(),
                bad[certain].sum(),
                both[bad].mean(),
                issues[bad].mean(),
                both.sum(),
                issues.sum(),
                seconds,
                cleanlab_seconds,
            ]
        )
        figures.listed.append(
            {
                at: (int((probability > at).sum()), int(bad[probability > at].sum()))
                for at in THRESHOLDS
            }
        )
        print(problem, seed, np.round(figures.measured[-1], 3).tolist(), flush=True)
    return found


def ranking(found: dict[str, Figures]) -> Iterator[list[object]]:
    """The rows of the first table."""
    yield [
        "problem", "rows", "AP %", "cleanlab", "certain", "planted %", "both %", "cleanlab",
        "listed", "cleanlab", "clean", "seconds", "cleanlab",
    ]  # fmt: skip
    for problem, figures in found.items():
        mean = np.mean(figures.measured, 0)
        planted = f"{100 * mean[3] / mean[2]:.0f}" if mean[2] else "–"
        yield [
            problem, figures.rows, *(f"{100 * value:.1f}" for value in mean[:2]),
            f"{mean[2]:.1f}", planted, *(f"{100 * value:.0f}" for value in mean[4:6]),
            *(f"{value:.0f}" for value in mean[6:8]),
            f"{figures.clean[0]} + {figures.clean[1]}",
            *(f"{value:.2f}" for value in mean[8:]),
        ]  # fmt: skip


def thresholds(found: dict[str, Figures]) -> Iterator[list[object]]:
    """For each data set the threshold that the others choose, and its precision here."""
    yield ["data set", "threshold chosen without it", "precision % there", f"% at {CERTAIN}"]
    groups: dict[str, list[Figures]] = {}
    for problem, figures in found.items():
        groups.setdefault(problem.split(",")[0], []).append(figures)

    def precision(figures: list[Figures], at: float) -> float:
        counts = np.sum([seed[at] for one in figures for seed in one.listed], 0)
        return float(counts[1] / counts[0]) if counts[0] else 1.0

    for name, figures in groups.items():
        others = [other for key, other in groups.items() if key != name]
        good = [at for at in THRESHOLDS if all(precision(o, at) >= PRECISION for o in others)]
        chosen = min(good, default=THRESHOLDS[-1])
        there, in_use = precision(figures, chosen), precision(figures, CERTAIN)
        yield [name, chosen, f"{100 * there:.0f}", f"{100 * in_use:.0f}"]


def distances() -> Iterator[list[object]]:
    """For each set: the closest images of two classes, and how many rows have a near-duplicate."""
    sets = {name: (one.features, one.labels) for name, one in photo_sets().items()}
    for name in CHOOSING + REPORTING:
        task = next(tasks(name))
        sets[name] = task.X_test, task.y_test
    yield ["set", "rows", "median distance", "closest of two classes", "rows with a near-duplicate"]
    for name, (X, y) in sets.items():
        rows = unit_rows(torch.as_tensor(X)).numpy()
        apart = 1 - rows @ rows.T
        median = np.median(apart)
        np.fill_diagonal(apart, np.inf)
        other_class = np.where(y[:, None] == y, np.inf, apart).min() / median
        near = int((apart.min(1) < 0.05 * median).sum())
        yield [name, len(y), f"{median:.3f}", f"{other_class:.3f}", near]


def main() -> None:
    """Plant, rank, list, and write the page."""
    torch.set_num_threads(1)
    found = measure()
    write_page(
        "label-errors",
        "Finding planted label errors",
        TEXT,
        table(ranking(found)),
        CHOSEN,
        table(thresholds(found)),
        COPIES,
        table(copy_rows()),
        DISTANCES,
        table(distances()),
        LIMITS,
    )


if __name__ == "__main__":
    main()
