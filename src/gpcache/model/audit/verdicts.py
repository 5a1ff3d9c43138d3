"""From what the judge says to findings: wrong labels, outliers, harmful shots."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpcache.model.audit.findings import Finding
from gpcache.model.audit.judge import HeldOutRows, Judge
from gpcache.model.audit.rows import LabelledRows, plain
from gpcache.support.checks import shown

# A label is called wrong where another class is this many times as probable, which Jeffreys calls
# substantial evidence. Few rows give no stronger evidence: one error among ten lowers every
# probability. With many rows it drops near ties, but hardly a planted error.
ODDS = 3.0
# Nats that the other rows gain in all: one of them becomes twice as probable.
HARM = math.log(2)
# Iglewicz and Hoaglin's bound on |x − median| / (1.4826 MAD), and rows below which it says nothing.
FAR_OUT = 3.5
ENOUGH_ROWS = 8
# Where all variances are nearly one, what stands out may still be nothing.
UNUSUAL = 1.1
# Spreads below this are rounding.
ROUNDING = 1e-6


def label_findings(rows: LabelledRows, judge: HeldOutRows) -> list[Finding]:
    """Rows of which another class is many times as probable as their own."""
    log_probabilities = judge.logits.log_softmax(1)
    likely, best = log_probabilities.max(1)
    own = log_probabilities.gather(1, judge.labels[:, None])[:, 0]
    found = []
    for row in torch.nonzero(judge.counted & (likely - own > math.log(ODDS))).flatten().tolist():
        suggestion = plain(judge.classes[best[row]])
        mine, its = math.exp(own[row]), math.exp(likely[row])
        sentence = (
            f"{rows.names[row]} is labelled {shown(rows.labels[row])} ({mine:.0%}), but looks like "
            f"{shown(suggestion)} ({its:.0%})."
        )
        found.append(Finding("label", rows.numbers[row], 1 - mine, suggestion, None, sentence, its))
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
            f"{rows.names[row]} is unlike the other images: they leave a variance of "
            f"{float(variance[row]):.2f} there, where {float(usual[row]):.2f} is usual.",
        )
        for row in torch.nonzero(unusual).flatten().tolist()
    ]


def harm_findings(rows: LabelledRows, judge: Judge) -> list[Finding]:
    """Rows that the others are clearly better off without."""
    if not judge.can_remove:
        return []
    gains = judge.removal_gains()
    # To stand out is not enough where no removal matters.
    harmful = (_deviations(gains) > FAR_OUT) & (gains > HARM)
    return [
        Finding(
            "harmful",
            rows.numbers[row],
            float(gains[row]),
            None,
            None,
            f"Without {rows.names[row]} the other images are judged better: their held-out loss "
            f"falls by {float(gains[row]):.2f} nats in all.",
        )
        for row in torch.nonzero(harmful).flatten().tolist()
    ]


def _deviations(values: Tensor) -> Tensor:
    """How many robust standard deviations each value (n,) lies above the median."""
    away = values - values.median()
    spread = 1.4826 * away.abs().median()
    if spread <= ROUNDING:
        # More than half are one value; Iglewicz and Hoaglin then take the mean deviation.
        spread = 1.2533 * away.abs().mean()
    return away / spread if spread > ROUNDING else torch.zeros_like(values)
