"""Turns held-out predictions into findings: wrong labels, outliers, harmful images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gpcache.model.audit.audit_model import AuditModel, HeldOutRows
from gpcache.model.audit.findings import Finding, Kind, LabelledRows
from gpcache.support.checks import shown

# The probability from which on a label is called almost certainly wrong. On every set for choosing,
# with one label in 20 planted wrong, at least 80 % of these labels are planted, also if the
# threshold is chosen without that set (docs/results/label-errors.md).
CERTAIN = 0.7
# A label is worth a look if another class is this many times as probable (Jeffreys' substantial
# evidence): the image is hard, or its label is wrong.
ODDS = 3.0
# Total log-likelihood that the other rows must gain: one of them becomes twice as probable.
HARM = math.log(2)
# Suspicious rows whose removal is tried: each costs a pass over all rows and classes.
MOST_REMOVALS = 20
# Iglewicz and Hoaglin's bound on |x − median| / (1.4826 MAD), and the least number of rows for it.
FAR_OUT = 3.5
ENOUGH_ROWS = 8
# If all variances are nearly one, a large deviation may still mean nothing.
UNUSUAL = 1.1
# Smaller spreads are rounding errors.
ROUNDING = 1e-6


def label_findings(rows: LabelledRows, held_out: HeldOutRows) -> list[Finding]:
    """Labels that are almost certainly wrong ("label"), and those worth a look ("look")."""
    log_probabilities = held_out.logits.log_softmax(1)
    log_p_label = log_probabilities.gather(1, held_out.labels[:, None])
    likely, best = log_probabilities.scatter(1, held_out.labels[:, None], -math.inf).max(1)
    certain = held_out.counted & (held_out.wrong > CERTAIN)
    doubtful = held_out.counted & (likely - log_p_label[:, 0] > math.log(ODDS))
    findings, classes = [], held_out.classes.tolist()
    for row in torch.nonzero(certain | doubtful).flatten().tolist():
        example = rows.examples[row]
        suggestion, wrong = classes[best[row]], float(held_out.wrong[row])
        p_label, p_suggestion = (math.exp(float(x[row])) for x in (log_p_label, likely))
        kind: Kind = "label" if certain[row] else "look"
        verdict = (
            f"the label is wrong with {wrong:.0%} probability"
            if certain[row]
            else f"a hard image or a wrong label ({wrong:.0%} probability)"
        )
        sentence = (
            f"{example.name} is labelled {shown(example.label)} ({p_label:.0%}), but looks "
            f"like {shown(suggestion)} ({p_suggestion:.0%}): {verdict}."
        )
        findings.append(
            Finding(kind, rows.numbers[row], wrong, suggestion, None, sentence, p_suggestion)
        )
    return findings


def outlier_findings(rows: LabelledRows, held_out: HeldOutRows) -> list[Finding]:
    """Rows whose left-out variance is far above that of their class."""
    if len(held_out.labels) < ENOUGH_ROWS:
        return []
    variance = held_out.variance
    usual = torch.full_like(variance, float(variance.median()))
    for number in torch.unique(held_out.labels):
        members = held_out.labels == number
        if int(members.sum()) > 2:  # the median of fewer may be the outlier
            usual[members] = variance[members].median()
    deviations = _deviations(variance - usual)
    unusual = (deviations > FAR_OUT) & (variance > UNUSUAL * usual)
    sentence = "{} is unlike the other images of its class and of the others."
    return [
        Finding(
            "outlier", rows.numbers[row], score, sentence=sentence.format(rows.examples[row].name)
        )
        for row, score in enumerate(deviations.tolist())
        if unusual[row]
    ]


def harm_findings(
    rows: LabelledRows, held_out: AuditModel, suspects: Sequence[int]
) -> list[Finding]:
    """The most suspicious rows whose removal clearly improves the others."""
    if not suspects:
        return []
    suspects = sorted(suspects, key=lambda row: -float(held_out.wrong[row]))[:MOST_REMOVALS]
    findings = []
    gains = held_out.removal_gains(torch.tensor(suspects)).tolist()
    for row, gain in zip(suspects, gains, strict=True):
        if gain > HARM:
            sentence = (
                f"Without {rows.examples[row].name} the labels of the other images become "
                f"{math.exp(min(gain, 9)):,.0f} times as probable."
            )
            findings.append(Finding("harmful", rows.numbers[row], gain, sentence=sentence))
    return findings


def _deviations(values: Tensor) -> Tensor:
    """The distance of each value (n,) above the median, in robust standard deviations."""
    away = values - values.median()
    spread = 1.4826 * away.abs().median()
    if spread <= ROUNDING:
        # If more than half are equal, Iglewicz and Hoaglin take the mean deviation.
        spread = 1.2533 * away.abs().mean()
    return away / spread if spread > ROUNDING else torch.zeros_like(values)
