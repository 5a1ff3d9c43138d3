"""Pure functions of predictions: figures of merit, calibration, prediction sets, rejection."""

from gpcache.metrics.calibration import (
    Calibration,
    doubt_of,
    fit_calibration,
    fit_scales,
    fit_temperature,
    mean_nll,
    smoothed_losses,
    smoothed_nll,
)
from gpcache.metrics.conformal import least_rows
from gpcache.metrics.probabilities import (
    Binning,
    Reliability,
    accuracy,
    ece,
    expected_ece_if_calibrated,
    nll,
    reliability,
    wilson_interval,
)
from gpcache.metrics.ranking import accuracy_at_coverage, aurc, auroc, fpr_at_tpr, risk_coverage
from gpcache.metrics.rejection import (
    certainty,
    energy,
    familiarity,
    joint_familiarity,
    max_probability,
    neighbour_similarity,
)

__all__ = [
    "Binning",
    "Calibration",
    "Reliability",
    "accuracy",
    "accuracy_at_coverage",
    "aurc",
    "auroc",
    "certainty",
    "doubt_of",
    "ece",
    "energy",
    "expected_ece_if_calibrated",
    "familiarity",
    "fit_calibration",
    "fit_scales",
    "fit_temperature",
    "fpr_at_tpr",
    "joint_familiarity",
    "least_rows",
    "max_probability",
    "mean_nll",
    "neighbour_similarity",
    "nll",
    "reliability",
    "risk_coverage",
    "smoothed_losses",
    "smoothed_nll",
    "wilson_interval",
]
