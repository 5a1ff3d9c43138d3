"""How familiar a row looks: scores from logits, neighbours or variance; higher is more familiar.

A score alone is no probability. Beside the scores of held-out labelled rows it becomes one: their
share that looks no more familiar, a conformal p-value (`familiarity`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax

from gpcache.errors import DataError
from gpcache.metrics.checks import Floats, floats, require_shape
from gpcache.metrics.conformal import p_values
from gpcache.support.checks import positive, whole

# Cosines held at once: 32 MB.
_BLOCK = 2**22


def max_probability(logits: ArrayLike, *, temperature: float = 1.0) -> Floats:
    """The highest softmax probability (m,) of logits (m, c): MCM (Ming et al., 2022)."""
    highest: Floats = softmax(_scaled(logits, temperature), axis=1).max(1)
    return highest


def energy(logits: ArrayLike, *, temperature: float = 1.0) -> Floats:
    """T · log Σ exp(logits / T) (m,) of logits (m, c): the negative energy (Liu et al., 2020)."""
    total: Floats = temperature * logsumexp(_scaled(logits, temperature), axis=1)
    return total


def neighbour_similarity(queries: ArrayLike, keys: ArrayLike, *, k: int = 1) -> Floats:
    """The cosine (m,) of queries (m, d) to their k-th nearest of the keys (n, d).

    Deep nearest neighbours (Sun et al., 2022). With fewer keys than k the farthest counts.
    """
    rows, known = _unit_rows(queries, "queries"), _unit_rows(keys, "keys")
    if rows.shape[1] != known.shape[1]:
        raise DataError(
            f"queries have {rows.shape[1]} columns and keys {known.shape[1]}: both must come from "
            "the same encoder."
        )
    place = max(0, len(known) - whole("k", k, least=1))
    found = np.empty(len(rows))
    step = max(1, _BLOCK // len(known))
    for start in range(0, len(rows), step):
        cosines = rows[start : start + step] @ known.T
        found[start : start + step] = np.partition(cosines, place, axis=1)[:, place]
    return found


def certainty(variance: ArrayLike) -> Floats:
    """1 − variance (m,) of a Gaussian process; of groups (m, g) the most certain one counts."""
    values = np.asarray(variance, dtype=np.float64)
    sure: Floats = 1 - (values.min(1) if values.ndim == 2 else values)
    return sure


def familiarity(held_out: ArrayLike, scores: ArrayLike) -> Floats:
    """p-values (m,) of scores (m,): the share of held-out rows (n,), and itself, no more familiar.

    New rows of the same kind fall below ε at a rate of ε at most: refuse those, and no more than
    that share of good ones is lost.
    """
    return p_values(-np.asarray(held_out, dtype=np.float64), -np.asarray(scores, dtype=np.float64))


def joint_familiarity(held_out: ArrayLike, scores: ArrayLike) -> Floats:
    """p-values (m,) of several scores (s, m) together, beside those of held-out rows (s, n).

    Each row's ranks by each score are summed, the new row among the held-out ones every time, and
    the sums compared: whatever the scores have to do with each other, the promise is the same.
    """
    known, asked = _score_rows(held_out, "held_out"), _score_rows(scores, "scores")
    if len(known) != len(asked):
        raise DataError(f"held_out holds {len(known)} scores and scores {len(asked)}.")
    n, m = known.shape[1], asked.shape[1]
    rank = np.zeros(n, dtype=np.int64)
    own = np.ones(m, dtype=np.int64) * len(asked)
    for row, new in zip(known, asked, strict=True):
        ordered = np.sort(row)
        rank += np.searchsorted(ordered, row, side="right")
        own += np.searchsorted(ordered, new, side="right")
    below = np.empty(m, dtype=np.int64)
    step = max(1, _BLOCK // max(1, n))
    for start in range(0, m, step):
        block = slice(start, start + step)
        passed = (known[:, None, :] >= asked[:, block, None]).sum(0)
        below[block] = (rank + passed <= own[block, None]).sum(1)
    p: Floats = (1 + below) / (1 + n)
    return p


def _score_rows(values: ArrayLike, name: str) -> Floats:
    return floats(values, name, "s", "n", may_be_empty="n")


def _scaled(logits: ArrayLike, temperature: float) -> Floats:
    values = np.asarray(logits, dtype=np.float64)  # NaN stands for a row that was not held out
    require_shape(values, "logits", "m", "c", may_be_empty="m")
    scaled: Floats = values / positive("temperature", temperature)
    return scaled


def _unit_rows(rows: ArrayLike, name: str) -> Floats:
    values = floats(rows, name, "n", "d")
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    if not lengths.all():
        row = int(lengths[:, 0].argmin())
        raise DataError(f"Row {row} of {name} is all zeros and has no direction: remove it.")
    unit: Floats = values / lengths
    return unit
