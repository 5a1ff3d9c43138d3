"""From scores to probabilities."""

from gpcache.probability.calibration import Calibration, fit_calibration
from gpcache.probability.conformal import (
    aps_scores,
    class_p_values,
    in_set,
    lac_scores,
    least_rows,
    p_values,
    threshold,
    why_everything,
)
from gpcache.probability.rejection import (
    certainty,
    energy,
    familiarity,
    joint_familiarity,
    max_probability,
    neighbour_similarity,
)
from gpcache.probability.temperature import (
    doubt_of,
    fit_scales,
    fit_temperature,
    mean_nll,
    smoothed_losses,
    smoothed_nll,
)

__all__ = [
    "Calibration",
    "aps_scores",
    "certainty",
    "class_p_values",
    "doubt_of",
    "energy",
    "familiarity",
    "fit_calibration",
    "fit_scales",
    "fit_temperature",
    "in_set",
    "joint_familiarity",
    "lac_scores",
    "least_rows",
    "max_probability",
    "mean_nll",
    "neighbour_similarity",
    "p_values",
    "smoothed_losses",
    "smoothed_nll",
    "threshold",
    "why_everything",
]
