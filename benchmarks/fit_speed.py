"""Seconds of a whole default fit and of its alternatives, in one run on the same rows.

    python benchmarks/fit_speed.py

*plain grid*: the paper's model in raw space, chosen by leave-one-out the literal way — for every
(β, noise) of a 7 × 5 grid one explicit inverse, then a loop over 13 α and 4 η — beside the same
model and criterion fitted by the library (*leave-one-out fit*). *LogisticRegressionCV*: what a
scikit-learn user would pick (5 values of C, 4 folds). For docs/results/speed.md.
"""

import os
import warnings
from functools import partial

import numpy as np
import torch
from development_data import Task, points, task_of
from literal import PLAIN, naive_grid
from measuring import least
from pages import table, text, write_page
from sklearn.linear_model import LogisticRegressionCV

from gpcache import GPCacheClassifier

CASES = {
    "DTD RN50": "dtd_rn50",
    "Caltech ViT-B/32": "caltech101_vitb32",
    "Flowers ViT-B/32": "oxford_flowers_vitb32",
    "DTD ViT-B/32, with text": "dtd_vitb32",
    "Cars ViT-B/32, with text": "stanford_cars_vitb32",
}
PUBLISHED = {"likelihood": "gaussian", "kernel_space": "raw", "prior": "zero_shot"}
HEAD = ["data, 16 shots", "n", "c", "default fit s", "accuracy", "LogisticRegressionCV s"]
HEAD += ["accuracy", "default faster by", "plain grid s", "default faster by"]
HEAD += ["leave-one-out fit s", "faster than the grid by"]


def compared(title: str, task: Task) -> list[str]:
    """A row of the table."""
    options = PUBLISHED | {"text_prior": task.prior, "confidence_scaling": True}
    model = GPCacheClassifier(text_prior=task.prior).fit(task.X, task.y)  # warms up
    raw = GPCacheClassifier.from_options(**options)
    probe = LogisticRegressionCV(Cs=5, cv=4, max_iter=300)
    ours, same = (least(lambda one=one: one.fit(task.X, task.y), 3) for one in (model, raw))
    theirs = least(lambda: probe.fit(task.X, task.y))
    accuracies = [
        f"{100 * np.mean(one.predict(task.X_test) == task.y_test):.1f}" if len(task.X_test) else "–"
        for one in (model, probe)
    ]
    keys = torch.from_numpy(task.X).double()
    values = torch.from_numpy(task.y[:, None] == model.classes_).double()
    zero_shot = 0 * values
    if task.prior is not None:
        vectors = torch.from_numpy(np.asarray(task.prior.aligned(model.classes_)))
        zero_shot = 100 * keys @ vectors.to(keys).mT
    searched = partial(naive_grid, keys, values, zero_shot, "nll", PLAIN)
    grid = least(searched)
    if grid < 1:  # as for ours: the first run also warms up
        grid = least(searched, 3)
    times = [f"{theirs:.2f}", accuracies[1], f"{theirs / ours:.1f}×", f"{grid:.2f}"]
    times += [f"{grid / ours:.1f}×", f"{same:.2f}", f"{grid / same:.1f}×"]
    sizes = f"{len(task.X):,}", str(len(model.classes_))
    return [title, *sizes, f"{ours:.2f}", accuracies[0], *times]


def main() -> None:
    """Print and write the table."""
    warnings.filterwarnings("ignore")
    X, y = points(160, 10, 512)
    tasks = {"drawn rows, d = 512": Task(X, y, X[:0], y[:0], None)}
    tasks |= {title: task_of(name) for title, name in CASES.items()}
    rows = (compared(*one) for one in tasks.items())
    about = text("fit-speed", cores=os.cpu_count())
    write_page("fit-speed", "Seconds of a default fit", about, table([HEAD, *rows]))


if __name__ == "__main__":
    main()
