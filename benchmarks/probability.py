"""What probabilities are worth: accuracy and ECE beside other methods, and what a model says of
itself.

    python benchmarks/probability.py            # docs/results/probability.md and its diagram
    python benchmarks/probability.py --jobs 7   # in that many processes
"""

from __future__ import annotations

import argparse
import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import title
from development_data import CHOOSING, REPORTING
from methods import WITH_TEXT, halves, prepare, tasks_of
from pages import RESULTS, table, write_page

from gpcache import GPCacheClassifier, metrics
from gpcache.methods import GDAClassifier, TipAdapterClassifier, ZeroShotClassifier

DATA = (*CHOOSING, WITH_TEXT, *REPORTING)
DRAWN = {"dtd_vitb32": 16, "caltech101_vitb32": 16, "stanford_cars_vitb32": 16}
DRAWN |= {"oxford_flowers_vitb32": 16, "dtd_rn50": 16, WITH_TEXT: 4}
Figures = dict[str, Any]


def judged(model: Any, X: Any, y: Any) -> Figures:
    """Accuracy and ECE in %, and the ECE of a perfect model of the same confidences."""
    probabilities, labels = model.predict_proba(X), np.searchsorted(model.classes_, y)
    table = metrics.reliability(probabilities, labels)
    return {
        "accuracy": 100 * metrics.accuracy(probabilities, labels),
        "ece": 100 * metrics.ece(probabilities, labels),
        "perfect": 100 * metrics.expected_ece_if_calibrated(probabilities),
        "bins": [table.confidence.tolist(), table.accuracy.tolist(), table.count.tolist()],
    }


def measure(key: tuple[str, int, int]) -> tuple[tuple[str, int, int], dict[str, Figures]]:
    """Every model on one task."""
    name, shots, draw = key
    task = tasks_of(name)[shots, draw]
    options: dict[str, Any] = {"text_prior": task.prior, "device": "cpu"}
    found: dict[str, Figures] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default = GPCacheClassifier.from_options(**options).fit(task.X, task.y)
        found["default"] = judged(default, task.X_test, task.y_test)
        found["default"]["loo"] = 100 * default.loo_.accuracy
        found["default"]["loo_ece"] = 100 * default.loo_.ece
        for label, kind in (("tip", TipAdapterClassifier), ("gda", GDAClassifier)):
            found[label] = judged(kind(**options).fit(task.X, task.y), task.X_test, task.y_test)
        if task.prior is not None:
            zero_shot = ZeroShotClassifier(**options).fit(task.X, task.y)
            found["zero-shot"] = judged(zero_shot, task.X_test, task.y_test)
        for label, kind in (("paper", GPCacheClassifier.paper), ("tuned", GPCacheClassifier)):
            parts = []
            for one in halves(task):
                model = (
                    kind(**options) if label == "paper" else kind(criterion="accuracy", **options)
                )
                model.fit(one.X, one.y, validation=(one.X_tuning, one.y_tuning))
                parts.append(judged(model, one.X_test, one.y_test))
            found[label] = {
                figure: float(np.mean([part[figure] for part in parts]))
                for figure in ("accuracy", "ece", "perfect")
            }
    return key, found


def main() -> None:
    """Measure, and write the page and the diagram."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=Path, default=Path("build/probability.jsonl"))
    arguments = parser.parse_args()
    arguments.rows.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[tuple[str, int, int], dict[str, Figures]] = {}
    if arguments.rows.exists():
        lines = arguments.rows.read_text().splitlines()
        rows = {tuple(key): found for key, found in map(json.loads, lines)}
    wanted = [(name, *key) for name in DATA for key in tasks_of(name) if (name, *key) not in rows]
    with (
        ProcessPoolExecutor(arguments.jobs, initializer=prepare) as pool,
        arguments.rows.open("a") as file,
    ):
        for key, found in pool.map(measure, wanted):
            rows[key] = found
            file.write(json.dumps([key, found]) + "\n")
            file.flush()
            print(*key, found["default"]["accuracy"], found["default"]["ece"], flush=True)
    write(rows)


def write(rows: dict[tuple[str, int, int], dict[str, Figures]]) -> None:
    """The page: one row for each data set and number of shots."""
    cells = sorted({key[:2] for key in rows}, key=lambda cell: (DATA.index(cell[0]), cell[1]))

    def mean(cell: tuple[str, int], model: str, figure: str) -> float:
        values = [found[model][figure] for key, found in rows.items() if key[:2] == cell]
        return float(np.mean(values))

    body: list[list[object]] = [
        ["data", "shots", "zero-shot", "Tip-Adapter", "GDA", "paper, validation-tuned"]
        + ["**default**", "perfect ECE", "LOO accuracy − test", "LOO ECE"]
    ]
    for cell in cells:
        present = next(found for key, found in rows.items() if key[:2] == cell)

        def shown(model: str, cell: tuple[str, int] = cell, present: Any = present) -> str:
            if model not in present:
                return "–"
            return f"{mean(cell, model, 'accuracy'):.1f} / {mean(cell, model, 'ece'):.1f}"

        gap = mean(cell, "default", "loo") - mean(cell, "default", "accuracy")
        body.append(
            [title(cell[0]), cell[1], *map(shown, ("zero-shot", "tip", "gda", "paper", "default"))]
            + [f"{mean(cell, 'default', 'perfect'):.1f}"]
            + ["–" if np.isnan(gap) else f"{gap:+.1f}"]
            + ["–" if np.isnan(gap) else f"{mean(cell, 'default', 'loo_ece'):.1f}"]
        )
    write_page(
        "probability",
        "What the probabilities are worth",
        "Cells are test accuracy / ECE (15 bins) in %. Zero-shot, Tip-Adapter, GDA and the default "
        "have no validation set; the paper's method is tuned by accuracy on one (what DTD's draws "
        "left, half of Cars' rows, the files' own elsewhere). *perfect ECE*: what a model whose "
        "confidences are right would score on as many rows. *LOO*: what `loo_` prints, for which "
        "everything was chosen on the other folds. DTD ViT-B/32: means of five draws.",
        table(body),
        "## Bars",
        table(bars(cells, mean)),
        "![Reliability of the default](probability-reliability.png)",
    )
    draw(rows)


def bars(cells: list[tuple[str, int]], mean: Any) -> list[list[object]]:
    """What was to be reached, and what was."""
    with_text = [c for c in cells if c[0] in ("dtd_vitb32", WITH_TEXT, "stanford_cars_vitb32")]
    worse = [
        f"{title(cell[0])} {cell[1]} by {over:.1f}"
        for cell in with_text
        if (over := mean(cell, "default", "ece") - mean(cell, "zero-shot", "ece")) > 0
    ]
    error = np.mean([mean(cell, "default", "ece") for cell in cells])
    perfect = np.mean([mean(cell, "default", "perfect") for cell in cells])
    many = [cell for cell in cells if cell[1] >= 4]
    gaps = [abs(mean(c, "default", "loo") - mean(c, "default", "accuracy")) for c in many]
    accuracy, paper, tuned = (
        np.mean([mean(cell, model, "accuracy") for cell in cells])
        for model in ("default", "paper", "tuned")
    )
    few = [cell for cell in cells if cell[1] <= 2]
    low = [np.mean([mean(cell, m, "accuracy") for cell in few]) for m in ("default", "paper")]
    below = [
        f"{title(cell[0])} {cell[1]} by {under:.1f}"
        for cell in with_text
        if (under := mean(cell, "zero-shot", "accuracy") - mean(cell, "default", "accuracy")) > 0
    ]
    return [
        ["bar", "measured"],
        ["ECE ≤ zero-shot's on sets with text", "; ".join(worse) or "everywhere"],
        ["mean ECE ≤ 4.0", f"{error:.2f} (a perfect model: {perfect:.2f})"],
        ["mean |LOO − test accuracy| ≤ 2 points at 4 shots and more", f"{np.mean(gaps):.2f}"],
        [
            "accuracy within 0.3 of the validation-tuned best",
            f"default {accuracy:.2f}; paper's method tuned {paper:.2f}, our own tuned {tuned:.2f}",
        ],
        ["never below zero-shot on sets with text", "; ".join(below) or "never"],
        ["above the tuned paper method at 1 and 2 shots", f"{low[0]:.2f} against {low[1]:.2f}"],
    ]


def draw(rows: dict[tuple[str, int, int], dict[str, Figures]]) -> None:
    """A reliability diagram for each data set, of its first draw."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(10, 7), layout="constrained")
    for axis, (name, shots) in zip(axes.flat, DRAWN.items(), strict=True):
        found = rows[name, shots, 0]["default"]
        confidence, accuracy, count = (np.array(part, dtype=float) for part in found["bins"])
        axis.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
        axis.bar(confidence, accuracy, width=0.05, color="#4477aa", alpha=0.35)
        axis.scatter(confidence, accuracy, s=4 + 200 * count / np.nansum(count), color="#4477aa")
        axis.set(xlim=(0, 1), ylim=(0, 1), title=f"{title(name)}, {shots} shots")
        axis.text(0.05, 0.9, f"ECE {found['ece']:.1f} %", transform=axis.transAxes)
    for axis in axes[1]:
        axis.set_xlabel("confidence")
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy")
    figure.savefig(RESULTS / "probability-reliability.png", dpi=90)


if __name__ == "__main__":
    main()
