"""Pure functions of predictions: figures of merit, calibration, prediction sets, rejection."""

from gpcache.metrics.calibration import Calibration, fit_calibration
from gpcache.metrics.conformal import (
    aps_scores,
    class_p_values,
    in_set,
    lac_scores,
    least_rows,
    p_values,
    threshold,
    why_everything,
)
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
from gpcache.metrics.rejection import (
    certainty,
    energy,
    familiarity,
    joint_familiarity,
    max_probability,
    neighbour_similarity,
)
from gpcache.metrics.selective import (
    accuracy_at_coverage,
    aurc,
    coverage_at_risk,
    risk_coverage,
)
from gpcache.metrics.temperature import (
    doubt_of,
    fit_scales,
    fit_temperature,
    mean_nll,
    smoothed_losses,
    smoothed_nll,
)

__all__ = [
    "Binning",
    "Calibration",
    "Reliability",
    "accuracy",
    "accuracy_at_coverage",
    "aps_scores",
    "aurc",
    "auroc",
    "bootstrap_interval",
    "bootstrap_metric",
    "brier",
    "certainty",
    "class_p_values",
    "classwise_ece",
    "coverage_at_risk",
    "doubt_of",
    "ece",
    "energy",
    "expected_ece_if_calibrated",
    "familiarity",
    "fit_calibration",
    "fit_scales",
    "fit_temperature",
    "fpr_at_tpr",
    "in_set",
    "joint_familiarity",
    "lac_scores",
    "least_rows",
    "max_probability",
    "mean_nll",
    "neighbour_similarity",
    "nll",
    "p_values",
    "reliability",
    "risk_coverage",
    "smoothed_losses",
    "smoothed_nll",
    "threshold",
    "why_everything",
    "wilson_interval",
]
