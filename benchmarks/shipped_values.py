"""Are the shipped values of the softmax likelihood good on data they were not chosen on?

    python benchmarks/shipped_values.py

Varies one shipped value at a time on the choosing sets at 1, 2 and 4 shots. For every data set it
shows the value that the other sets choose, and what that costs on the set itself. Writes
docs/results/shipped-values.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comparison_data import SETS, Cell, cells, load
from pages import table, write_page

from gpcache import GPCacheClassifier
from gpcache.methods.cache import softmax_search, softmax_weights
from gpcache.metrics import accuracy, nll

# Each shipped value, the values tried, and the shot counts that it matters at.
CANDIDATES: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "ONE_SHOT_SHRINKAGE": ((1.0, 3.0, 10.0), (1,)),
    "ONE_SHOT_ALPHA": ((1.0, 1.25, 1.5, 2.0), (1,)),
    "FEW_THETA": ((30.0, 100.0, 300.0, 1000.0), (1, 2)),
    "DIAGONALS": (((0.5, 0.9, 0.0), (0.0,), (0.9,)), (1, 2, 4)),
    "SHRINKAGE": ((0.3, 1.0, 3.0), (2, 4)),
    "BETA": ((0.25, 0.5, 1.0), (1, 2, 4)),
    "TRUSTS": (((0.7, 0.0), (1.0, 0.0), (0.7,), (0.0,)), (1, 2, 4)),
    "PRIOR": ((0.0, 0.03, 0.1, 0.3), (4,)),
    "PULL": ((0.02, 0.2, 2.0), (4,)),
    "FEW_PULL": ((0.4, 4.0, 40.0), (2,)),
}

TEXT = """
**Data**: the sets that defaults may be chosen on, the first draws of each. **Protocol**: no
validation set; accuracy (%) and NLL on the test rows. One shipped value is changed at a time, all
others stay. *regret* is the mean NLL of a value over the data sets, less that of the best value of
each data set. *left out*: for each data set the value that the **other** sets choose by that
regret, and what it costs there in accuracy against the shipped value (0.0 where it is the same).
"""


def _value(name: str) -> Any:
    """A shipped value, from the module that holds it."""
    module = softmax_search if hasattr(softmax_search, name) else softmax_weights
    return getattr(module, name)


@contextmanager
def shipped(name: str, value: Any) -> Iterator[None]:
    """The module with another value, for a while."""
    modules = [one for one in (softmax_search, softmax_weights) if hasattr(one, name)]
    before = getattr(modules[0], name)
    for module in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, name, before)


def measured(cell: Cell, features: Path, photos: Path) -> tuple[float, float]:
    """Accuracy (%) and NLL of the default on one cell."""
    task = load(cell, features, photos)
    model = GPCacheClassifier.from_options(text_prior=task.prior, device="cpu").fit(task.X, task.y)
    probabilities = model.predict_proba(task.X_test)
    labels = np.searchsorted(model.classes_, task.y_test)
    return 100 * accuracy(probabilities, labels), nll(probabilities, labels)


def rows_of(name: str, features: Path, photos: Path, draws: int) -> Iterator[list[str]]:
    """One row for each value: the regret, the mean accuracy, and what leaving sets out says."""
    values, shots = CANDIDATES[name]
    sets = [one for one in SETS.values() if one.group == "choosing"]
    asked = [
        [cell for cell in cells("plain") if cell.data == one.name and cell.shots in shots]
        for one in sets
    ]
    figures = np.empty((len(values), len(sets), 2))
    for v, value in enumerate(values):
        with shipped(name, value):
            for s, mine in enumerate(asked):
                some = [cell for cell in mine if cell.draw < draws]
                figures[v, s] = np.mean([measured(cell, features, photos) for cell in some], 0)
    loss = figures[..., 1] - figures[..., 1].min(0)
    own = values.index(_value(name))
    others = [int(np.delete(loss, s, 1).mean(1).argmin()) for s in range(len(sets))]
    costs = [figures[other, s, 0] - figures[own, s, 0] for s, other in enumerate(others)]
    for v, value in enumerate(values):
        chosen = [SETS[sets[s].name].title for s, other in enumerate(others) if other == v]
        cost = [f"{costs[s]:+.1f}" for s, other in enumerate(others) if other == v]
        yield [
            f"`{name}`" if v == 0 else "",
            f"**{value}**" if v == own else str(value),
            f"{loss[v].mean():.4f}",
            f"{figures[v, :, 0].mean():.2f}",
            f"{len(chosen)} of {len(sets)}",
            " ".join(cost),
        ]


def main() -> None:
    """Measure every candidate and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--lite-features", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    head = ["value", "tried", "regret", "accuracy", "chosen with a set left out", "cost there"]
    rows = [head]
    for name in CANDIDATES:
        found = list(rows_of(name, options.features, options.lite_features, options.draws))
        rows += found
        # After every value, so that a run that is stopped leaves what it has measured.
        write_page(
            "shipped-values",
            "Shipped values of the softmax likelihood, each data set left out in turn",
            TEXT,
            f"Draws where a set has several: {options.draws}. The shipped value is bold.",
            table(rows),
            made_by="`python benchmarks/shipped_values.py --features FOLDER --lite-features FILE`",
        )


if __name__ == "__main__":
    main()
