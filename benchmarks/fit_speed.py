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
from development_data import Task, points, task_of
from measuring import least
from numpy.typing import NDArray
from pages import table, text, write_page
from sklearn.linear_model import LogisticRegressionCV

from gpcache import GPCacheClassifier

CASES = [
    ("dtd_rn50", "DTD RN50"),
    ("caltech101_vitb32", "Caltech ViT-B/32"),
    ("oxford_flowers_vitb32", "Flowers ViT-B/32"),
    ("dtd_vitb32", "DTD ViT-B/32, with text"),
    ("stanford_cars_vitb32", "Cars ViT-B/32, with text"),
]
BETAS = [0.25, 0.5, 1, 2, 4, 8, 16]
NOISES = [1e-4, 1e-3, 1e-2, 1e-1, 1.0]
HEAD = [
    "data, 16 shots", "n", "c", "default fit s", "accuracy", "LogisticRegressionCV s", "accuracy",
    "default faster by", "plain grid s", "default faster by", "leave-one-out fit s",
    "faster than the grid by",
]  # fmt: skip
ALPHAS = np.geomspace(0.3, 300, 13)
ETAS = [0.0, 0.5, 1.0, 2.0]


def plain_grid(X: NDArray[np.float64], Y: NDArray[np.float64], text: NDArray[np.float64]) -> float:
    """The best leave-one-out NLL, found by loops."""
    labels = Y.argmax(1)
    rows = np.arange(len(X))
    best = np.inf
    similarity = X @ X.T
    for beta in BETAS:
        kernel = np.exp(-beta * (1 - similarity))
        for noise in NOISES:
            inverse = np.linalg.inv(kernel + noise * np.eye(len(X)))
            diagonal = np.diag(inverse)
            mean = Y - (inverse @ Y) / diagonal[:, None]
            variance = np.clip(1 / diagonal - noise, 1e-6, 1)
            for eta in ETAS:
                scaled = mean / variance[:, None] ** eta
                for alpha in ALPHAS:
                    logits = text + alpha * scaled
                    shifted = logits - logits.max(1, keepdims=True)
                    nll = np.log(np.exp(shifted).sum(1)) - shifted[rows, labels]
                    best = min(best, float(nll.mean()))
    return best


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
    X = task.X.astype(np.float64)
    Y = (task.y[:, None] == model.classes_).astype(np.float64)
    text = np.zeros_like(Y)
    if task.prior is not None:
        text = 100 * X @ task.prior.aligned(model.classes_).T
    grid = least(lambda: plain_grid(X, Y, text))
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
