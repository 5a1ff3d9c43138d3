"""What the rows of the comparison say: means over draws, differences, and standard errors."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from comparison_data import INTERVAL_DRAWS, SETS, cells, without_names
from comparison_methods import BASELINES, DEFAULT, METHODS, ROBUST
from numpy.typing import NDArray

Row = dict[str, Any]
# Below the best baseline by more than both: a cell that the default loses.
MARGIN, ERRORS = 0.7, 2.0


@dataclass(frozen=True)
class Difference:
    """Accuracy of the default minus that of the best baseline, in points."""

    data: str
    shots: int
    best: str
    default_accuracy: float
    best_accuracy: float
    error: float

    @property
    def points(self) -> float:
        """Positive where the default is better."""
        return self.default_accuracy - self.best_accuracy

    @property
    def is_loss(self) -> bool:
        """Whether the default is below by more than the margin and two standard errors."""
        return self.points < -MARGIN and self.points < -ERRORS * self.error


class Results:
    """The rows by cell and method."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[tuple[str, str, int, str], dict[int, Row]] = defaultdict(dict)
        self.made_by: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            key = row["protocol"], row["data"], row["shots"], row["method"]
            self._rows[key][row["draw"]] = row
            self.made_by[row["method"]].add(f"{row['commit']} ({row['source']})")

    def draws(self, data: str, shots: int, method: str, protocol: str = "plain") -> dict[int, Row]:
        """The rows of one cell by draw; none where a draw is missing, or a fit gave up."""
        if not METHODS[method].uses_text:
            data = without_names(data) if protocol == "plain" else data
        found = self._rows.get((protocol, data, shots, method), {})
        kept = {draw: row for draw, row in found.items() if "skipped" not in row}
        asked = INTERVAL_DRAWS if protocol == "interval" else SETS[data].draws
        return kept if len(kept) == asked else {}

    def skipped(self) -> list[Row]:
        """Rows that say that a fit took too long."""
        return [row for rows in self._rows.values() for row in rows.values() if "skipped" in row]

    def on_gpu(self) -> list[str]:
        """The methods that were fitted on a GPU, in some cell at least."""
        rows = [row for rows in self._rows.values() for row in rows.values()]
        return sorted({row["method"] for row in rows if row.get("device") == "cuda"})

    def mean(
        self, data: str, shots: int, method: str, key: str = "accuracy", protocol: str = "plain"
    ) -> float:
        """The mean over draws, accuracies and errors in %; NaN where there is none."""
        rows = self.draws(data, shots, method, protocol).values()
        values = [row[key] for row in rows if row.get(key) is not None]
        scale = 1.0 if key in ("nll", "fit_s", "n") else 100.0
        return scale * float(np.mean(values)) if values else float("nan")

    def plain_cells(self, group: str) -> list[tuple[str, int]]:
        """The data sets of a group and their shots, as far as the default was run there."""
        return self.protocol_cells("plain", group)

    def protocol_cells(self, protocol: str, group: str) -> list[tuple[str, int]]:
        """The data sets and shots of a protocol, as far as the default was run there."""
        found = dict.fromkeys(
            (cell.data, cell.shots) for cell in cells(protocol) if SETS[cell.data].group == group
        )
        return [cell for cell in found if self.draws(*cell, DEFAULT, protocol)]

    def standard_error(
        self, data: str, shots: int, first: str, second: str, protocol: str = "plain"
    ) -> float:
        """The standard error of the difference of two accuracies, in points.

        Several draws: over the draws. One draw: over the test rows, paired, which is what a paired
        bootstrap over the rows tends to.
        """
        one = self.draws(data, shots, first, protocol)
        other = self.draws(data, shots, second, protocol)
        shared = sorted(one.keys() & other.keys())
        if len(shared) > 1:
            gaps = [one[draw]["accuracy"] - other[draw]["accuracy"] for draw in shared]
            return 100 * float(np.std(gaps, ddof=1) / np.sqrt(len(gaps)))
        if not shared:
            return float("nan")
        rows = one[shared[0]], other[shared[0]]
        gap = _correct(rows[0]).astype(float) - _correct(rows[1])
        return 100 * float(gap.std() / np.sqrt(len(gap)))

    def against(
        self, data: str, shots: int, names: Iterable[str], protocol: str = "plain"
    ) -> Difference:
        """The default beside the best of `names` in one cell."""
        means = {name: self.mean(data, shots, name, protocol=protocol) for name in names}
        known = {name: value for name, value in means.items() if np.isfinite(value)}
        mine = self.mean(data, shots, DEFAULT, protocol=protocol)
        if not known:
            return Difference(data, shots, "–", mine, float("nan"), float("nan"))
        best = max(known, key=lambda name: known[name])
        error = self.standard_error(data, shots, DEFAULT, best, protocol)
        return Difference(data, shots, best, mine, known[best], error)

    def differences(self, group: str) -> list[Difference]:
        """The default beside the best baseline in every cell of a group."""
        return [self.against(*cell, BASELINES) for cell in self.plain_cells(group)]


def _correct(row: Row) -> NDArray[np.bool_]:
    packed = np.frombuffer(base64.b64decode(row["correct"]), np.uint8)
    return np.unpackbits(packed)[: row["n_test"]].astype(bool)


def summary(rows: Iterable[Row]) -> str:
    """Plain text: every cell where the default is below some baseline by more than the margin."""
    results = Results(rows)
    lines = [f"Cells where the default is more than {MARGIN} points below a baseline."]
    for group in ("choosing", "reporting"):
        found = results.plain_cells(group)
        lines.append(f"\n{group}: {len(found)} cells measured")
        for data, shots in found:
            mine = results.mean(data, shots, DEFAULT)
            worse = []
            for name in BASELINES:
                gap = results.mean(data, shots, name) - mine
                if gap > MARGIN:
                    error = results.standard_error(data, shots, DEFAULT, name)
                    worse.append((gap, f"{name} +{gap:.1f} (SE {error:.1f})"))
            if worse:
                shown = "; ".join(text for _, text in sorted(worse, reverse=True))
                lines.append(f"  {data}, {shots} shots: default {mine:.1f}; {shown}")
        for name in METHODS:
            shared = [cell for cell in found if np.isfinite(results.mean(*cell, name))]
            if shared:
                gaps = [results.mean(*cell, DEFAULT) - results.mean(*cell, name) for cell in shared]
                lines.append(
                    f"  mean of default − {name}: {np.mean(gaps):+.2f} over {len(shared)} cells"
                )
        for protocol in ("unequal", "wrong"):
            for data, shots in results.protocol_cells(protocol, group):
                one = results.against(data, shots, ROBUST[1:], protocol)
                lines.append(
                    f"  {protocol}: {data}, {shots} shots: default {one.default_accuracy:.1f}; "
                    f"{one.best} {-one.points:+.1f} (SE {one.error:.1f})"
                )
    lines.append(f"\nRows of the default: {', '.join(sorted(results.made_by[DEFAULT]))}")
    return "\n".join(lines) + "\n"
