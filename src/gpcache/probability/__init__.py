"""From scores to probabilities."""

from gpcache.probability.temperature import (
    doubt_of,
    fit_scales,
    fit_temperature,
    mean_nll,
    smoothed_nll,
)

__all__ = ["doubt_of", "fit_scales", "fit_temperature", "mean_nll", "smoothed_nll"]
