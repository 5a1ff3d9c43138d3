"""From what the judge says to findings: wrong labels, outliers, harmful shots."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gpcache.model.audit.findings import Finding, Kind
from gpcache.model.audit.judge import HeldOutRows, Judge
from gpcache.model.audit.rows import LabelledRows, plain
from gpcache.support.checks import shown

# The probability of being wrong from which a label is called almost certainly wrong. On every set
# for choosing, with one label in 20 planted wrong, at least 80 % of what is called so is planted,
# also where the threshold is chosen without that set (docs/results/label-errors.md).
CERTAIN = 0.7
# A label is worth a look where another class is this many times as probable, which Jeffreys calls
# substantial evidence: the image is hard, or its label is wrong.
ODDS = 3.0
# Nats that the other rows gain in all: one of them becomes twice as probable.
HARM = math.log(2)
# Suspicious rows that are taken away for a try: each costs a pass over all rows and classes.
MOST_REMOVALS = 20
# Iglewicz and Hoaglin's bound on |x − median| / (1.4826 MAD), and rows below which it says nothing.
FAR_OUT = 3.5
ENOUGH_ROWS = 8
# Where all variances are nearly one, what stands out may still be nothing.
UNUSUAL = 1.1
# Spreads below this are rounding.
ROUNDING = 1e-6


def label_findings(rows: LabelledRows, judge: HeldOutRows) -> list[Finding]:
    """Labels that are almost certainly wrong ("label"), and those worth a look ("look")."""
    log_probabilities = judge.logits.log_softmax(1)
    own = log_probabilities.gather(1, judge.labels[:, None])
    likely, best = log_probabilities.scatter(1, judge.labels[:, None], -math.inf).max(1)
    certain = judge.counted & (judge.wrong > CERTAIN)
    doubtful = judge.counted & (likely - own[:, 0] > math.log(ODDS))
    found = []
    for row in torch.nonzero(certain | doubtful).flatten().tolist():
        suggestion, wrong = plain(judge.classes[best[row]]), float(judge.wrong[row])
        mine, its = (math.exp(float(value)) for value in (own[row], likely[row]))
        kind: Kind = "label" if certain[row] else "look"
        verdict = (
            f"wrong with {wrong:.0%}" if certain[row] else f"hard or wrong (wrong with {wrong:.0%})"
        )
        sentence = (
            f"{rows.names[row]} is labelled {shown(rows.labels[row])} ({mine:.0%}), but looks like "
            f"{shown(suggestion)} ({its:.0%}): {verdict}."
        )
        found.append(Finding(kind, rows.numbers[row], wrong, suggestion, None, sentence, its))
    return found


def outlier_findings(rows: LabelledRows, judge: HeldOutRows) -> list[Finding]:
    """Rows whose variance without them is far above what their class has."""
    if len(judge.labels) < ENOUGH_ROWS:
        return []
    variance = judge.variance
    usual = torch.full_like(variance, float(variance.median()))
    for number in torch.unique(judge.labels):
        members = judge.labels == number
        if int(members.sum()) > 2:  # the median of fewer may be the outlier
            usual[members] = variance[members].median()
    deviations = _deviations(variance - usual)
    unusual = (deviations > FAR_OUT) & (variance > UNUSUAL * usual)
    return [
        Finding(
            "outlier",
            rows.numbers[row],
            float(deviations[row]),
            None,
            None,
            f"{rows.names[row]} is unlike the other images of its class and of the others.",
        )
        for row in torch.nonzero(unusual).flatten().tolist()
    ]


def harm_findings(rows: LabelledRows, judge: Judge, suspects: Sequence[int]) -> list[Finding]:
    """Of the most suspicious rows, those that the others are clearly better off without."""
    if not suspects:
        return []
    suspects = sorted(suspects, key=lambda row: -float(judge.wrong[row]))[:MOST_REMOVALS]
    gains = judge.removal_gains(torch.tensor(suspects))
    return [
        Finding(
            "harmful",
            rows.numbers[row],
            gain,
            None,
            None,
            f"Without {rows.names[row]} the labels of the other images become "
            f"{math.exp(min(gain, 9)):,.0f} times as probable.",
        )
        for row, gain in zip(suspects, gains.tolist(), strict=True)
        if gain > HARM
    ]


def _deviations(values: Tensor) -> Tensor:
    """How many robust standard deviations each value (n,) lies above the median."""
    away = values - values.median()
    spread = 1.4826 * away.abs().median()
    if spread <= ROUNDING:
        # More than half are one value; Iglewicz and Hoaglin then take the mean deviation.
        spread = 1.2533 * away.abs().mean()
    return away / spread if spread > ROUNDING else torch.zeros_like(values)
