"""A demonstration that needs no download: few-shot on scikit-learn's handwritten digits.

Pixels stand in for an encoder's features, and there is no text, so the cache speaks alone.
"""

from __future__ import annotations

import json as json_module
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import normalize

from gpcache import metrics
from gpcache.errors import DataError
from gpcache.methods import GPCacheClassifier, TipAdapterClassifier
from gpcache.progress import progress_bar

CLASSES = 10
POOL = 0.5


def linear_probe(shots: int) -> Any:
    """Logistic regression; its strength by cross-validation on the shots where that is possible."""
    probe = LogisticRegression(max_iter=1000)
    if shots < 2:
        return probe
    strengths = {"C": np.logspace(-2, 4, 7)}
    return GridSearchCV(probe, strengths, scoring="neg_log_loss", cv=min(4, shots))


METHODS: dict[str, Callable[[int], Any]] = {
    "GPCache": lambda _: GPCacheClassifier(),
    "Tip-Adapter": lambda _: TipAdapterClassifier(),
    "linear probe": linear_probe,
}


def main(shots: Sequence[int], seeds: int, json: bool) -> None:
    """Print accuracy ± its deviation over draws, ECE and seconds of a fit, for each method."""
    if seeds < 1 or any(k < 1 for k in shots):
        raise DataError("demo needs at least one seed, and at least one shot a class.")
    digits = load_digits()
    X = normalize(digits.data)
    X_pool, X_test, y_pool, y_test = train_test_split(
        X, digits.target, test_size=1 - POOL, stratify=digits.target, random_state=0
    )
    most = int(np.bincount(y_pool).min())
    if max(shots) > most:
        raise DataError(f"The digits have {most} images of a class to draw from, not {max(shots)}.")
    rows: list[dict[str, Any]] = []
    with progress_bar("demo", total=len(shots) * len(METHODS) * seeds, unit="fit") as bar:
        for k in shots:
            for name, make in METHODS.items():
                figures = []
                for seed in range(seeds):
                    chosen = _draw(y_pool, k, seed)
                    figures.append(
                        _measure(make(k), X_pool[chosen], y_pool[chosen], X_test, y_test)
                    )
                    bar.update()
                accuracy, ece, seconds = np.array(figures).T
                rows.append(
                    {
                        "shots": k,
                        "method": name,
                        "accuracy": float(accuracy.mean()),
                        "accuracy_std": float(accuracy.std()),
                        "ece": float(ece.mean()),
                        "seconds": float(seconds.mean()),
                    }
                )
    if json:
        print(json_module.dumps(rows, indent=1))
        return
    print(
        f"Handwritten digits (scikit-learn, 8×8 pixels as features, no text): {len(y_test)} test\n"
        f"images, mean of {seeds} draws of shots a class. Nothing is tuned on test images:\n"
        "hyper-parameters come from the shots alone.\n"
    )
    print(f"{'shots':>5}  {'method':<13} {'accuracy %':>12}  {'ECE %':>6}  {'fit s':>6}")
    for row in rows:
        accuracy = f"{100 * row['accuracy']:.1f} ± {100 * row['accuracy_std']:.1f}"
        print(
            f"{row['shots']:>5}  {row['method']:<13} {accuracy:>12}  "
            f"{100 * row['ece']:>6.1f}  {row['seconds']:>6.2f}"
        )


def _draw(labels: NDArray[Any], shots: int, seed: int) -> NDArray[np.int64]:
    generator = np.random.default_rng(seed)
    rows = [
        generator.choice(np.flatnonzero(labels == label), shots, replace=False)
        for label in range(CLASSES)
    ]
    return np.concatenate(rows)


def _measure(
    model: Any,
    X: NDArray[Any],
    y: NDArray[Any],
    X_test: NDArray[Any],
    y_test: NDArray[Any],
) -> tuple[float, float, float]:
    """Accuracy, ECE and seconds of the fit."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    seconds = time.perf_counter() - start
    probabilities = model.predict_proba(X_test)
    return (
        metrics.accuracy(probabilities, y_test),
        metrics.ece(probabilities, y_test),
        seconds,
    )
