"""Does the accuracy that `fit` prints hold? Twenty draws of five photos a class through `lite`."""

from __future__ import annotations

import numpy as np
from development_data import photo_features
from pages import table, write_page

from gpcache import GPCacheClassifier, metrics
from gpcache.splits import draw_shots

DRAWS = 20
SHOTS = 5


def main() -> None:
    """Fit on each draw; compare held-out accuracy, its interval, and test accuracy."""
    (train, test), prior = photo_features("train", "test")
    rows: list[list[object]] = [
        ["draw", "held out %", "95 % interval", "test %", "inside", "held-out ECE %", "test ECE %"]
    ]
    inside, figures = 0, []
    for seed in range(DRAWS):
        drawn = draw_shots(train.labels, train.paths, SHOTS, seed)
        X, y = train.features[drawn.indices], train.labels[drawn.indices]
        model = GPCacheClassifier(text_prior=prior).fit(X, y)
        probabilities = model.predict_proba(test.features)
        labels = np.searchsorted(model.classes_, test.labels)
        accuracy, ece = metrics.accuracy(probabilities, labels), metrics.ece(probabilities, labels)
        n = int(model.loo_.counted.sum())
        low, high = metrics.wilson_interval(round(model.loo_.accuracy * n), n)
        inside += low <= accuracy <= high
        figures.append((model.loo_.accuracy, accuracy, model.loo_.ece, ece))
        rows.append(
            [
                seed,
                f"{100 * model.loo_.accuracy:.1f}",
                f"{100 * low:.1f} – {100 * high:.1f}",
                f"{100 * accuracy:.1f}",
                "yes" if low <= accuracy <= high else "no",
                f"{100 * model.loo_.ece:.1f}",
                f"{100 * ece:.1f}",
            ]
        )
    mean = 100 * np.mean(figures, 0)
    rows.append(["mean", f"{mean[0]:.1f}", "", f"{mean[1]:.1f}", f"{inside} of {DRAWS}"])
    rows[-1] += [f"{mean[2]:.1f}", f"{mean[3]:.1f}"]
    text = f"""
{SHOTS} photos of each of 20 Caltech classes through `lite`, tested on the 378 test photos. *Held
out* is what `fit` prints: no validation set, everything learned anew in folds of the shots, at
numbers that the other folds chose.
"""
    write_page("held-out", "Does the printed accuracy hold?", text, table(rows))


if __name__ == "__main__":
    main()
