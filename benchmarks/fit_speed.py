"""Seconds of a whole default fit and of its alternatives, in one run on the same rows.

    python benchmarks/fit_speed.py

*plain grid*: the paper's model in raw space, chosen by leave-one-out the literal way — for every
(β, noise) of a 7 × 5 grid one explicit inverse, then a loop over 13 α and 4 η — beside the same
model and criterion fitted by the library (*leave-one-out fit*). *LogisticRegressionCV*: what a
scikit-learn user would pick (5 values of C, 4 folds). For docs/results/speed.md.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import torch
from development_data import Task, points, task_of
from measuring import least
from pages import table, text, write_page
from roofline_search import PLAIN, likelihood, naive_grid
from sklearn.linear_model import LogisticRegressionCV

from gpcache import GPCacheClassifier

CASES = [
    ("dtd_rn50", "DTD RN50"),
    ("caltech101_vitb32", "Caltech ViT-B/32"),
    ("oxford_flowers_vitb32", "Flowers ViT-B/32"),
    ("dtd_vitb32", "DTD ViT-B/32, with text"),
    ("stanford_cars_vitb32", "Cars ViT-B/32, with text"),
]
HEAD = [
    "data, 16 shots", "n", "c", "default fit s", "accuracy", "LogisticRegressionCV s", "accuracy",
    "default faster by", "plain grid s", "default faster by", "leave-one-out fit s",
    "faster than the grid by",
]  # fmt: skip


def compared(title: str, task: Task) -> list[str]:
    """A row of the table."""
    model = GPCacheClassifier(text_prior=task.prior)
    model.fit(task.X, task.y)  # warm up the thread pool and the allocator
    ours = least(lambda: model.fit(task.X, task.y), 3)
    raw = GPCacheClassifier.from_options(
        text_prior=task.prior,
        likelihood="gaussian",
        kernel_space="raw",
        prior="zero_shot",
        confidence_scaling=True,
    )
    same = least(lambda: raw.fit(task.X, task.y), 3)
    probe = LogisticRegressionCV(Cs=5, cv=4, max_iter=300)
    theirs = least(lambda: probe.fit(task.X, task.y))
    accuracies = ["–", "–"]
    if len(task.X_test):
        accuracies = [
            f"{100 * np.mean(one.predict(task.X_test) == task.y_test):.1f}"
            for one in (model, probe)
        ]
    keys = torch.from_numpy(task.X).double()
    values = torch.from_numpy(task.y[:, None] == model.classes_).double()
    zero_shot = torch.zeros_like(values)
    if task.prior is not None:
        vectors = torch.from_numpy(np.asarray(task.prior.aligned(model.classes_)))
        zero_shot = 100 * keys @ vectors.to(keys).mT
    grid = least(lambda: naive_grid(keys, values, zero_shot, likelihood, PLAIN))
    return [
        title, f"{len(task.X):,}", str(len(model.classes_)), f"{ours:.2f}", accuracies[0],
        f"{theirs:.2f}", accuracies[1], f"{theirs / ours:.1f}×", f"{grid:.2f}",
        f"{grid / ours:.1f}×", f"{same:.2f}", f"{grid / same:.1f}×",
    ]  # fmt: skip


def main() -> None:
    """Print and write the table."""
    warnings.filterwarnings("ignore")
    X, y = points(160, 10, 512)
    rows = [compared("drawn rows, d = 512", Task(X, y, X[:0], y[:0], None))]
    for name, title in CASES:
        rows.append(compared(title, task_of(name)))
        print(*rows[-1], flush=True)
    write_page(
        "fit-speed",
        "Seconds of a default fit",
        text("fit-speed", cores=os.cpu_count()),
        table([HEAD, *rows]),
    )


if __name__ == "__main__":
    main()
