"""How familiar a row looks: scores from logits, neighbours or variance; higher is more familiar.

A score is not a probability. Compared with the scores of held-out labelled rows it gives one: the
share of them that look no more familiar, a conformal p-value (`familiarity`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gpcache.errors import DataError
from gpcache.metrics.checks import Floats, floats, require_shape
from gpcache.metrics.conformal import p_values
from gpcache.support.checks import positive, whole

# Cosines held at once: 32 MB.
_BLOCK = 2**22


def max_probability(logits: ArrayLike, *, temperature: float = 1.0) -> Floats:
    """Compute the highest softmax probability of each row (MCM; Ming et al., 2022).

    Parameters
    ----------
    logits : array of shape (m, c)
        Logits.
    temperature : float, default=1.0
        Divides the logits.

    Returns
    -------
    array of shape (m,)
        The highest probabilities; higher means more familiar.

    Examples
    --------
    >>> from gpcache.metrics import max_probability
    >>> max_probability([[0.0, 0.0]]).tolist()
    [0.5]
    """
    scaled = _scaled(logits, temperature)
    highest: Floats = 1 / np.exp(scaled - scaled.max(1, keepdims=True)).sum(1)
    return highest


def energy(logits: ArrayLike, *, temperature: float = 1.0) -> Floats:
    """Compute the negative energy of each row (Liu et al., 2020).

    It is T · log Σ exp(logits / T).

    Parameters
    ----------
    logits : array of shape (m, c)
        Logits.
    temperature : float, default=1.0
        The temperature T.

    Returns
    -------
    array of shape (m,)
        The negative energies; higher means more familiar.

    Examples
    --------
    >>> from gpcache.metrics import energy
    >>> energy([[0.0, 0.0]]).round(3).tolist()
    [0.693]
    """
    from scipy.special import logsumexp  # a tenth of a second that `gpcache predict` need not wait

    total: Floats = temperature * logsumexp(_scaled(logits, temperature), axis=1)
    return total


def neighbour_similarity(queries: ArrayLike, keys: ArrayLike, *, k: int = 1) -> Floats:
    """Compute the cosine of each query to its k-th nearest key (Sun et al., 2022).

    Parameters
    ----------
    queries : array of shape (m, d)
        Features to score.
    keys : array of shape (n, d)
        Known features.
    k : int, default=1
        Which neighbour counts. With fewer than k keys the farthest counts.

    Returns
    -------
    array of shape (m,)
        The cosines; higher means more familiar.

    Raises
    ------
    DataError
        If queries and keys have different widths.

    Examples
    --------
    >>> from gpcache.metrics import neighbour_similarity
    >>> neighbour_similarity([[1.0, 0.0]], [[0.0, 1.0], [2.0, 0.0]]).tolist()
    [1.0]
    """
    rows, known = _unit_rows(queries, "queries"), _unit_rows(keys, "keys")
    if rows.shape[1] != known.shape[1]:
        raise DataError(
            f"queries have {rows.shape[1]} columns and keys {known.shape[1]}: both must come from "
            "the same encoder."
        )
    place = max(0, len(known) - whole("k", k, least=1))
    similarity = np.empty(len(rows))
    step = max(1, _BLOCK // len(known))
    for start in range(0, len(rows), step):
        cosines = rows[start : start + step] @ known.T
        similarity[start : start + step] = np.partition(cosines, place, axis=1)[:, place]
    return similarity


def certainty(variance: ArrayLike) -> Floats:
    """Compute 1 − variance of a Gaussian process.

    Parameters
    ----------
    variance : array of shape (m,) or (m, g)
        Posterior variances. With g groups of classes the most certain group counts.

    Returns
    -------
    array of shape (m,)
        The certainties; higher means more familiar.

    Examples
    --------
    >>> from gpcache.metrics import certainty
    >>> certainty([[0.2, 0.5]]).tolist()
    [0.8]
    """
    values = np.asarray(variance, dtype=np.float64)
    sure: Floats = 1 - (values.min(1) if values.ndim == 2 else values)
    return sure


def familiarity(held_out: ArrayLike, scores: ArrayLike) -> Floats:
    """Compute conformal p-values of familiarity scores.

    A p-value is the share of held-out rows, with the new row among them, that look no more
    familiar. New rows of the same kind fall below ε at a rate of at most ε, so rejecting p < ε
    loses at most that share of good rows.

    Parameters
    ----------
    held_out : array of shape (n,)
        Scores of held-out rows; higher means more familiar.
    scores : array of shape (m,)
        Scores of the new rows.

    Returns
    -------
    array of shape (m,)
        The p-values.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache.metrics import familiarity
    >>> familiarity(np.linspace(0.1, 0.9, 19), [0.05, 0.5]).tolist()
    [0.05, 0.55]
    """
    return p_values(-np.asarray(held_out, dtype=np.float64), -np.asarray(scores, dtype=np.float64))


def joint_familiarity(held_out: ArrayLike, scores: ArrayLike) -> Floats:
    """Compute conformal p-values from several familiarity scores together.

    The ranks of each row by each score are summed, with the new row among the held-out rows, and
    the sums are compared. The guarantee of `familiarity` holds however the scores depend on each
    other.

    Parameters
    ----------
    held_out : array of shape (s, n)
        s scores of held-out rows; higher means more familiar.
    scores : array of shape (s, m)
        The same scores of the new rows.

    Returns
    -------
    array of shape (m,)
        The p-values.

    Raises
    ------
    DataError
        If the numbers of scores differ.

    Examples
    --------
    >>> from gpcache.metrics import joint_familiarity
    >>> joint_familiarity([[1, 2, 3], [3, 2, 1]], [[0, 4], [0, 4]]).tolist()
    [0.25, 1.0]
    """
    known = floats(held_out, "held_out", "s", "n", may_be_empty="n")
    new_scores = floats(scores, "scores", "s", "n", may_be_empty="n")
    if len(known) != len(new_scores):
        raise DataError(f"held_out holds {len(known)} scores and scores {len(new_scores)}.")
    n, m = known.shape[1], new_scores.shape[1]
    rank = np.zeros(n, dtype=np.int64)
    new_rank = np.ones(m, dtype=np.int64) * len(new_scores)
    for row, new in zip(known, new_scores, strict=True):
        ordered = np.sort(row)
        rank += np.searchsorted(ordered, row, side="right")
        new_rank += np.searchsorted(ordered, new, side="right")
    below = np.empty(m, dtype=np.int64)
    step = max(1, _BLOCK // max(1, n))
    for start in range(0, m, step):
        block = slice(start, start + step)
        passed = (known[:, None, :] >= new_scores[:, block, None]).sum(0)
        below[block] = (rank + passed <= new_rank[block, None]).sum(1)
    p: Floats = (1 + below) / (1 + n)
    return p


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
