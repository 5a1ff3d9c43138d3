"""Gaussian-process mathematics on tensors, independent of images, estimators and files.

Symbols of the paper and their names here: α `alpha`, β `beta`, σ² `noise`, η `eta`, F `keys`,
Y `values`, g `n_groups`.
"""

from gpcache.gp.class_mean import ClassMeanPrecision
from gpcache.gp.exact import ExactPrecision
from gpcache.gp.grouped import GroupedPrecision
from gpcache.gp.low_rank import FourierPrecision, NystromPrecision
from gpcache.gp.precision import Posterior, Precision
from gpcache.gp.unweighted import Unweighted

PRECISIONS: dict[str, type[Precision]] = {
    "exact": ExactPrecision,
    "grouped": GroupedPrecision,
    "nystrom": NystromPrecision,
    "fourier": FourierPrecision,
    "class_mean": ClassMeanPrecision,
}

__all__ = [
    "PRECISIONS",
    "ClassMeanPrecision",
    "ExactPrecision",
    "FourierPrecision",
    "GroupedPrecision",
    "NystromPrecision",
    "Posterior",
    "Precision",
    "Unweighted",
]
