"""Selective prediction: how the risk falls as the least confident answers are refused."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from gpcache.metrics import checks
from gpcache.metrics.checks import Floats

# What rounding may add to a coverage or a risk that is a ratio of whole numbers.
_ROUNDING = 1e-12


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Coverage (n,) 1/n…1 and the risk (n,), the share of errors among the answers that are kept.

    The most confident are kept first. Where confidences are equal the risk is the expected one over
    their orders, because the order means nothing.
    """
    values = checks.row_of_numbers(confidence, "confidence")
    right = checks.outcomes(correct, "correct", len(values))
    order = np.argsort(-values, kind="stable")
    errors = np.cumsum(~right[order])
    # The last of each run of equal confidences; between them errors come at an even rate. Compared,
    # not subtracted: ∞ − ∞ is no number.
    ranked = values[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    kept = np.arange(1, len(values) + 1)
    expected = np.interp(kept, np.append(0, ends + 1), np.append(0, errors[ends]))
    return kept / len(values), expected / kept


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk–coverage curve: the mean risk over all coverages; lower is better."""
    return float(risk_coverage(confidence, correct)[1].mean())


def accuracy_at_coverage(confidence: ArrayLike, correct: ArrayLike, coverage: float) -> float:
    """Accuracy of the most confident share `coverage` of the answers, rounded up to whole rows."""
    checks.share("coverage", coverage, closed=True)
    _, risk = risk_coverage(confidence, correct)
    kept = max(1, math.ceil(coverage * len(risk) - _ROUNDING * len(risk)))
    return float(1 - risk[kept - 1])


def coverage_at_risk(confidence: ArrayLike, correct: ArrayLike, risk: float) -> float:
    """The largest share of answers that can be kept with a risk of at most `risk`; 0 if none."""
    checks.share("risk", risk, closed=True)
    coverage, risks = risk_coverage(confidence, correct)
    bearable = np.flatnonzero(risks <= risk + _ROUNDING)
    return float(coverage[bearable[-1]]) if bearable.size else 0.0
