"""How good predictions and their probabilities are: pure functions of arrays."""

from gpcache.metrics.detection import auroc, fpr_at_tpr
from gpcache.metrics.intervals import bootstrap_interval, bootstrap_metric, wilson_interval
from gpcache.metrics.probabilities import (
    Binning,
    Reliability,
    accuracy,
    brier,
    classwise_ece,
    ece,
    expected_ece_if_calibrated,
    nll,
    reliability,
)
from gpcache.metrics.selective import (
    accuracy_at_coverage,
    aurc,
    coverage_at_risk,
    risk_coverage,
)

__all__ = [
    "Binning",
    "Reliability",
    "accuracy",
    "accuracy_at_coverage",
    "aurc",
    "auroc",
    "bootstrap_interval",
    "bootstrap_metric",
    "brier",
    "classwise_ece",
    "coverage_at_risk",
    "ece",
    "expected_ece_if_calibrated",
    "fpr_at_tpr",
    "nll",
    "reliability",
    "risk_coverage",
    "wilson_interval",
]
