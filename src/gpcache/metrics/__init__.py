"""Pure functions of predictions: figures of merit, calibration, prediction sets, rejection."""

from importlib import import_module
from typing import TYPE_CHECKING

from gpcache.metrics import conformal
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

if TYPE_CHECKING:
    from gpcache.metrics.calibration import Calibration, fit_calibration, fit_temperature
    from gpcache.metrics.scales import (
        doubt_of,
        fit_scales,
        mean_nll,
        smoothed_losses,
        smoothed_nll,
    )
else:  # type checkers would otherwise accept any misspelt name
    _REMOVED = {
        "bootstrap_interval": "use scipy.stats.bootstrap",
        "bootstrap_metric": "use scipy.stats.bootstrap",
        "brier": "use sklearn.metrics.brier_score_loss of scikit-learn 1.7",
        "classwise_ece": "use gpcache.metrics.ece, or read gpcache.metrics.reliability",
        "coverage_at_risk": "read it from the curve of gpcache.metrics.risk_coverage",
    }

    def __getattr__(name: str) -> object:
        if name in __all__:  # on first use: only these two modules need torch
            own = name in ("Calibration", "fit_calibration", "fit_temperature")
            module = "calibration" if own else "scales"
            return getattr(import_module(f"gpcache.metrics.{module}"), name)
        if name in _REMOVED:
            raise ImportError(f"gpcache.metrics has no {name} any more: {_REMOVED[name]}.")
        if not name.startswith("_") and hasattr(conformal, name):
            raise ImportError(f"{name} is in gpcache.metrics.conformal: import it from there.")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
